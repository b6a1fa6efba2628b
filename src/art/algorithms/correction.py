"""Correction for tokens that were sampled by something other than the policy being trained.

Axis legend: N trained tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor


def truncation_factor(logprobs_N: Tensor, old_logprobs_N: Tensor, *, bound: float | None) -> Tensor:
    """Factor on each token's loss that truncates its importance ratio, [N], without a gradient.

    f = min(r, bound) / r with r = exp(logprob - recorded logprob). The surrogate objective weighs a token by
    the train/serve ratio r; its own clip does not bound r where the advantage is negative, and one token
    of a stale or differently computed rollout could then outweigh the batch. With f the weight is
    min(r, bound): truncated importance sampling, Ionides 2008, as used against the mismatch of sampler and
    trainer by Yao et al. 2025. f = 1 wherever r <= bound. None switches it off.
    """
    ratio_N = torch.exp(logprobs_N.detach() - old_logprobs_N)
    if bound is None:
        return torch.ones_like(ratio_N)
    return torch.clamp(bound / ratio_N, max=1.0)
