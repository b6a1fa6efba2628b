"""How far the policy is from a reference, estimated from the policy's own samples.

Axis legend: N trained tokens. All estimators: Schulman 2020, "Approximating KL divergence", with
d = logprob - reference logprob of the sampled token, so that the mean of each is KL(policy || reference).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from art.config.train import Estimator


def k1(logprobs_N: Tensor, reference_N: Tensor) -> Tensor:
    """d: unbiased, of either sign, and noisy. In nats."""
    return logprobs_N - reference_N


def k2(logprobs_N: Tensor, reference_N: Tensor) -> Tensor:
    """d ** 2 / 2: biased, never negative. As a loss its gradient, d * d logprob, is the true one on average."""
    return (logprobs_N - reference_N).square() / 2


def k3(logprobs_N: Tensor, reference_N: Tensor) -> Tensor:
    """exp(-d) - 1 + d: unbiased and never negative. GRPO's penalty, arXiv:2402.03300, equation 4."""
    d_N = logprobs_N - reference_N
    return torch.expm1(-d_N) + d_N


ESTIMATORS: dict[Estimator, Callable[[Tensor, Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}


def reward_penalty(kl_N: Tensor, *, mean: float, coef: float) -> Tensor:
    """What the divergence adds to each token's advantage, [N]: coef * (mean - kl).

    As a part of the reward it costs every token what it strays (Ziegler et al. 2019, arXiv:1909.08593, equation 2).
    Less the batch's `mean` it adds to nothing, so the penalty encourages no token just because all stray.
    """
    return coef * (mean - kl_N)
