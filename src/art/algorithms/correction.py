"""Correction for tokens that were sampled by something other than the policy being trained.

Axis legend: N trained tokens.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from art.algorithms.ratios import completion_sums


def truncation_factor(weight_N: Tensor, *, bound: float) -> Tensor:
    """Factor on each token's loss that truncates the weight it has, [N], without a gradient.

    f = min(w, bound) / w, so f = 1 wherever w <= bound: truncated importance sampling, Ionides 2008, as used against
    the mismatch of sampler and trainer by Yao et al. 2025. A loss weighs a token by its ratio; its own clip does not
    bound the ratio where the advantage is negative, and one token of a stale or differently computed rollout
    could then outweigh the batch.
    """
    return (bound / weight_N.detach()).clamp(max=1.0)


def level_log_ratio(log_ratio_N: Tensor, owner_N: Tensor, level: Literal["token", "sequence"]) -> Tensor:
    """[N]; a token's own log ratio, or the one of its whole completion: the sum over its tokens."""
    return log_ratio_N if level == "token" else completion_sums(log_ratio_N, owner_N)


def truncated(log_ratio_N: Tensor, *, bound: float) -> Tensor:
    """min(r, bound), [N]: the weight of samples whose log ratio is known before the update."""
    return log_ratio_N.clamp(max=math.log(bound)).exp()


def within(log_ratio_N: Tensor, *, bound: float) -> Tensor:
    """[N] of bool: 1 / bound <= r <= bound. Masked importance sampling drops the rest.

    A ratio far from 1 in either direction says that engine and trainer disagree about a token, and then neither is to
    be believed: IcePop (Ling team 2025, arXiv:2510.18855) for tokens, Liu et al. 2025 for sequences.
    """
    return log_ratio_N.abs() <= math.log(bound)


def correction(
    weight_N: Tensor,
    log_ratio_N: Tensor,
    *,
    owner_N: Tensor,
    bound: float,
    kind: Literal["truncate", "mask"],
    level: Literal["token", "sequence"],
) -> tuple[Tensor, Tensor]:
    """(factor on the loss [N], tokens it changes [N] of bool), where the loss weighs with the ratio already.

    `weight_N` is what the loss weighs each token by, `log_ratio_N` the trainer's minus the recorded log-probability.
    """
    ratio_N = level_log_ratio(log_ratio_N.detach(), owner_N, level)
    if kind == "mask":
        kept_N = within(ratio_N, bound=bound)
        return kept_N.to(weight_N.dtype), ~kept_N
    if level == "token":
        factor_N = truncation_factor(weight_N, bound=bound)
    else:  # min(R, bound) / R; by logarithms, since the product R over a long completion overflows
        factor_N = (math.log(bound) - ratio_N).clamp(max=0.0).exp()
    return factor_N, factor_N < 1


def serving_weight(
    log_ratio_N: Tensor,
    *,
    owner_N: Tensor,
    bound: float,
    kind: Literal["truncate", "mask"],
    level: Literal["token", "sequence"],
) -> tuple[Tensor, Tensor]:
    """(weight [N], tokens it bounds [N] of bool), where the loss's ratio starts from the trainer's own numbers.

    `log_ratio_N` is the trainer's log-probability before the first update minus the recorded one. The weight is
    min(R, bound), or R where it is within the mask and 0 elsewhere.
    """
    ratio_N = level_log_ratio(log_ratio_N, owner_N, level)
    if kind == "mask":
        kept_N = within(ratio_N, bound=bound)
        return torch.where(kept_N, truncated(ratio_N, bound=bound), torch.zeros_like(ratio_N)), ~kept_N
    return truncated(ratio_N, bound=bound), ratio_N > math.log(bound)
