"""What changes a reward before it is compared, and which groups are worth comparing.

Axis legend: G rollouts of one group.
"""

from __future__ import annotations

from torch import Tensor

from art.algorithms.advantages import mean_and_deviation


def overlong(length: int, *, max_length: int, buffer: int) -> float:
    """DAPO's soft penalty of long completions, in [-1, 0] (arXiv:2503.14476, equation 13).

    0 up to max_length - buffer sampled tokens, then falling linearly to -1 at max_length, and -1 beyond. It keeps a
    completion that was cut off from being judged as if it had been finished wrong.
    """
    return -min(1.0, max(0.0, (length - (max_length - buffer)) / buffer))


def in_range(rewards_G: Tensor, bounds: tuple[float, float] | None) -> bool:
    """Whether a group's mean reward lies within `bounds` (both included): neither too hard nor too easy.

    Dynamic sampling (DAPO, arXiv:2503.14476, section 3.2) leaves out the groups that are all right or all wrong. Those
    have no spread and never train; this takes the nearly solved and the hopeless too, as PRIME does with 0.2 and
    0.8 (arXiv:2502.01456). Filling the batch up again is the caller's.
    """
    if bounds is None:
        return True
    mean, _ = mean_and_deviation(rewards_G)
    return bounds[0] <= mean <= bounds[1]
