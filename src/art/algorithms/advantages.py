"""From the rewards of a group to one advantage per rollout.

Axis legend: G rollouts of one group.
"""

from __future__ import annotations

import torch
from torch import Tensor

ZERO_SPREAD = 1e-6
"""Relative: rewards computed in floating point differ by residue where they are meant to be equal."""


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
    constant is needed in the divisor.
    """
    rewards_G = rewards_G.to(torch.float64)
    if not has_spread(rewards_G):
        return torch.zeros_like(rewards_G)
    centred_G = rewards_G - rewards_G.mean()
    return centred_G / centred_G.square().mean().sqrt() if normalize else centred_G
