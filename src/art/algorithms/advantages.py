"""From the rewards of the groups to one advantage per rollout.

Axis legend: G rollouts of one group, B rollouts of all groups.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

ZERO_SPREAD = 1e-6
"""Relative: rewards computed in floating point differ by residue where they are meant to be equal."""


def magnitude(values_G: Tensor) -> float:
    """The power of two that divides `values_G` to at most 2 in size, at least 2**-20; never infinite.

    Rewards may be any finite numbers, and squares and sums of large ones overflow. Dividing by a power of two
    changes no digit, so ordinary rewards give what they give without it. 1 without values.
    """
    largest = max(float(values_G.abs().max()), 2.0**-20) if values_G.numel() else 1.0
    return 2.0 ** (math.frexp(largest)[1] - 1)


def mean_and_deviation(values_G: Tensor) -> tuple[float, float]:
    """Mean and standard deviation (divisor G) of finite numbers, finite whatever their size. G >= 1."""
    values_G = values_G.to(torch.float64)
    scale = magnitude(values_G)
    scaled_G = values_G / scale
    return float(scaled_G.mean()) * scale, float(scaled_G.std(correction=0)) * scale


def tolerance(rewards_G: Tensor) -> float:
    """Differences up to this are residue: 1e-6 * max(1, max |reward|)."""
    return ZERO_SPREAD * max(1.0, float(rewards_G.abs().max()))


def has_spread(rewards_G: Tensor) -> bool:
    """Whether a group's rewards carry a signal: max - min > tolerance."""
    if rewards_G.numel() < 2:
        return False
    return float(rewards_G.max() - rewards_G.min()) > tolerance(rewards_G)


def grpo(rewards_G: Tensor, *, normalize: bool = True) -> Tensor:
    """Group-relative advantages, [G] in float64.

    A_i = (r_i - mean(r)) / std(r), the standard deviation over the group itself (divisor G):
    DeepSeekMath, arXiv:2402.03300, section 4.1.2. Without `normalize` A_i = r_i - mean(r), as
    Dr. GRPO proposes (arXiv:2503.20783). A group without spread gets zeros exactly, so no small
    constant is needed in the divisor. Normalised advantages of finite rewards are finite; without `normalize`
    they overflow where a difference of rewards does.
    """
    rewards_G = rewards_G.to(torch.float64)
    if not has_spread(rewards_G):
        return torch.zeros_like(rewards_G)
    scale = magnitude(rewards_G)
    scaled_G = rewards_G / scale
    centred_G = scaled_G - scaled_G.mean()
    return centred_G / centred_G.square().mean().sqrt() if normalize else centred_G * scale


def rloo(rewards_G: Tensor, *, normalize: bool = False) -> Tensor:
    """Leave-one-out advantages, [G] in float64.

    A_i = r_i - mean of the others' rewards = G / (G - 1) * (r_i - mean(r)): Ahmadian et al. 2024,
    arXiv:2402.14740. The baseline does not depend on the rollout's own reward. With `normalize`
    divided by the group's standard deviation (divisor G). Zeros without spread.
    """
    size = rewards_G.numel()
    return grpo(rewards_G, normalize=normalize) * (size / max(1, size - 1))


def rank(rewards_G: Tensor) -> Tensor:
    """Centred ranks, [G] in float64, from -1 (the worst) to 1 (the best).

    A_i = 2 * rank_i / (G - 1) - 1 with ranks 0 ... G - 1; equal rewards share the mean of their ranks. The order of the
    rewards counts and their distances do not: the fitness shaping of evolution strategies (Wierstra et al. 2014;
    Salimans et al. 2017, arXiv:1703.03864, section 2.1). Neighbours closer than the tolerance are equal.
    """
    rewards_G = rewards_G.to(torch.float64)
    if not has_spread(rewards_G):
        return torch.zeros_like(rewards_G)
    sorted_G, order_G = torch.sort(rewards_G)
    steps = (sorted_G.diff() > tolerance(rewards_G)).long()
    class_G = torch.cat([torch.zeros(1, dtype=torch.long), steps.cumsum(0)])
    places_G = torch.arange(len(rewards_G), dtype=torch.float64)
    sums = torch.zeros(int(class_G[-1]) + 1, dtype=torch.float64).index_add_(0, class_G, places_G)
    shared_G = (sums / class_G.bincount())[class_G]
    ranks_G = torch.empty_like(shared_G)
    ranks_G[order_G] = shared_G
    return 2 * ranks_G / (len(rewards_G) - 1) - 1


def reinforce_pp(groups: Sequence[Tensor]) -> list[Tensor]:
    """Advantages normalised over the batch, each [G] in float64.

    A_i = (a_i - mean_B(a)) / std_B(a) with a_i = r_i - mean of its group: REINFORCE++ with a group baseline,
    arXiv:2501.03262. A group with little spread keeps a small advantage, where GRPO would blow it up. The mean over
    the batch is 0 because every group's is. Zeros where no group has spread.
    """
    scale = magnitude(torch.cat(list(groups)).to(torch.float64)) if groups else 1.0
    centred = [grpo(rewards_G, normalize=False) / scale for rewards_G in groups]
    deviation = float(torch.cat(centred).square().mean().sqrt()) if groups else 0.0
    return [centred_G / deviation if deviation > 0 else centred_G for centred_G in centred]


PER_GROUP: dict[str, Callable[[Tensor, bool], Tensor]] = {
    "grpo": lambda rewards_G, normalize: grpo(rewards_G, normalize=normalize),
    "dr_grpo": lambda rewards_G, normalize: grpo(rewards_G, normalize=False),
    "rloo": lambda rewards_G, normalize: rloo(rewards_G, normalize=normalize),
    "rank": lambda rewards_G, normalize: rank(rewards_G),
}
"""By the option's name, what looks at one group at a time."""


def compare(name: str, groups: Sequence[Tensor], *, normalize: bool) -> list[Tensor]:
    """The advantages of all groups of a batch, each [G] in float64, by the estimator `name`."""
    if name == "reinforce++":
        return reinforce_pp(groups)
    return [PER_GROUP[name](rewards_G, normalize) for rewards_G in groups]


def balance(advantages_G: Tensor, b: float) -> Tensor:
    """Weigh encouragement against discouragement, b in [-1, 1].

    b > 0 multiplies negative advantages by 1 - b, b < 0 positive ones by 1 + b: at 1 only what went well is learned
    from, at -1 only what went wrong.
    """
    negative, positive = 1 - max(b, 0.0), 1 + min(b, 0.0)
    return torch.where(advantages_G < 0, advantages_G * negative, advantages_G * positive)
