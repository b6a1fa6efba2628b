"""From the rewards of a group to one advantage per rollout.

Axis legend: G rollouts of one group.
"""

from __future__ import annotations

import math

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


def has_spread(rewards_G: Tensor) -> bool:
    """Whether a group's rewards carry a signal: max - min > 1e-6 * max(1, max |reward|)."""
    if rewards_G.numel() < 2:
        return False
    spread = float(rewards_G.max() - rewards_G.min())
    return spread > ZERO_SPREAD * max(1.0, float(rewards_G.abs().max()))


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
