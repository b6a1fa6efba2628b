"""The clipped surrogate objective.

Axis legend: N trained tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor


def ppo_clip(
    logprobs_N: Tensor, old_logprobs_N: Tensor, advantages_N: Tensor, *, epsilon: float, epsilon_high: float
) -> Tensor:
    """Loss per token, [N]; to be minimised.

    l = -min(r * A, clip(r, 1 - epsilon, 1 + epsilon_high) * A), r = exp(logprob - old_logprob).
    Schulman et al. 2017, arXiv:1707.06347, equation 7; the separate upper bound is DAPO's clip-higher,
    arXiv:2503.14476. At r = 1 its gradient is -A * d logprob.
    """
    ratio_N = torch.exp(logprobs_N - old_logprobs_N)
    clipped_N = ratio_N.clamp(1.0 - epsilon, 1.0 + epsilon_high)
    return -torch.minimum(ratio_N * advantages_N, clipped_N * advantages_N)


def clipped(
    logprobs_N: Tensor, old_logprobs_N: Tensor, advantages_N: Tensor, *, epsilon: float, epsilon_high: float
) -> Tensor:
    """[N] of bool: tokens whose gradient the clip removes."""
    ratio_N = torch.exp(logprobs_N - old_logprobs_N)
    return ((advantages_N > 0) & (ratio_N > 1.0 + epsilon_high)) | (
        (advantages_N < 0) & (ratio_N < 1.0 - epsilon)
    )
