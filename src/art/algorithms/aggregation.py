"""From a loss per token to the loss of a step.

Axis legend: N trained tokens of the step, R rollouts.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from art.algorithms.advantages import magnitude


def token_weights(
    rollout_N: Tensor,
    scale_N: Tensor,
    rollout_weights_R: Tensor,
    *,
    aggregation: Literal["rollout", "token"],
) -> Tensor:
    """Weights w with sum 1, [N] in float64; the step's loss is sum(w * loss_N).

    `rollout_N` is each token's rollout, `scale_N` its own weight (1 unless its call has one),
    `rollout_weights_R` the rollouts' weights. With `rollout`: the mean over a rollout's tokens, then over
    rollouts, so neither length nor the number of branches changes what a rollout counts (arXiv:2402.03300,
    equation 3). With `token`: the mean over all tokens (arXiv:2503.14476, equation 12).

    The weights are taken over the whole step, so cutting it into micro-batches changes nothing.
    """
    # Only ratios of weights count, so scaling them changes nothing but that their sums stay finite.
    scale_N = scale_N.to(torch.float64) / magnitude(scale_N)
    weights_R = rollout_weights_R.to(torch.float64) / magnitude(rollout_weights_R)
    mass_R = torch.zeros_like(weights_R).index_add_(0, rollout_N, scale_N)
    if aggregation == "token":
        weighted_N = weights_R[rollout_N] * scale_N
        return weighted_N / weighted_N.sum().clamp_min(torch.finfo(torch.float64).tiny)
    present_R = torch.where(mass_R > 0, weights_R, torch.zeros_like(weights_R))
    share_R = present_R / present_R.sum().clamp_min(torch.finfo(torch.float64).tiny)
    per_token_R = share_R / torch.where(mass_R > 0, mass_R, torch.ones_like(mass_R))
    return per_token_R[rollout_N] * scale_N
