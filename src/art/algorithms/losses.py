"""Losses per token: what is minimised, before weights and corrections.

Axis legend: N trained tokens.

A loss of your own is a function like these: `LossInputs` in, [N] out, with a gradient by `logprobs_N`. It is named
as `package.module:function`, or declared as an entry point of the group `art.losses` under a name with a dot in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LossInputs:
    """Whole completions, as many as one row holds."""

    logprobs_N: Tensor
    """Of the policy being trained, in nats, with a gradient."""
    ratio_N: Tensor
    """exp(logprob - old logprob), or a completion's (`importance_sampling_level`), with a gradient."""
    advantages_N: Tensor
    """Without a gradient; the reward's, less penalties."""
    owner_N: Tensor
    """Each token's completion, counted from 0."""
    epsilon: float
    """The ratio's lower clip is 1 - epsilon,"""
    epsilon_high: float
    """the upper one 1 + epsilon_high."""


LossFunction = Callable[[LossInputs], Tensor]


def clipped_ratio(inputs: LossInputs) -> Tensor:
    """[N]; the ratio within its clip."""
    return inputs.ratio_N.clamp(1.0 - inputs.epsilon, 1.0 + inputs.epsilon_high)


def within_clip(inputs: LossInputs) -> Tensor:
    """[N] of bool: tokens whose ratio lies in the clip, bounds included."""
    return (inputs.ratio_N >= 1.0 - inputs.epsilon) & (inputs.ratio_N <= 1.0 + inputs.epsilon_high)


def ppo(inputs: LossInputs) -> Tensor:
    """The clipped surrogate objective, [N].

    l = -min(r * A, clip(r, 1 - epsilon, 1 + epsilon_high) * A), Schulman et al. 2017, arXiv:1707.06347, equation 7;
    the separate upper bound is DAPO's clip-higher, arXiv:2503.14476. At r = 1 its gradient is -A * d logprob. With a
    completion's ratio for r it is GSPO, arXiv:2507.18071, equation 5.
    """
    a_N = inputs.advantages_N
    return -torch.minimum(inputs.ratio_N * a_N, clipped_ratio(inputs) * a_N)


def ppo_stopped(inputs: LossInputs) -> Tensor:
    """[N] of bool: tokens whose gradient the clip of `ppo` removes."""
    up_N = (inputs.advantages_N > 0) & (inputs.ratio_N > 1.0 + inputs.epsilon_high)
    down_N = (inputs.advantages_N < 0) & (inputs.ratio_N < 1.0 - inputs.epsilon)
    return up_N | down_N


def cispo(inputs: LossInputs) -> Tensor:
    """The policy gradient with a clipped weight, [N].

    l = -clip(r, 1 - epsilon, 1 + epsilon_high) * A * logprob, the clipped ratio without a gradient: MiniMax-M1,
    arXiv:2506.13585, equation 4. Unlike ppo's, its clip bounds what a token weighs and never silences it.
    """
    return -clipped_ratio(inputs).detach() * inputs.advantages_N * inputs.logprobs_N


def importance_sampling(inputs: LossInputs) -> Tensor:
    """REINFORCE with an importance weight, [N].

    l = -r * A, whose gradient is -r * A * d logprob: Williams 1992 for samples of the policy itself (r = 1), weighed by
    the likelihood ratio for samples of an older one. Nothing bounds r but the correction.
    """
    return -inputs.ratio_N * inputs.advantages_N
