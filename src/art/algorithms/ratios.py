"""The probability ratio between the policy that is trained and the one that sampled, at four levels.

Axis legend: N trained tokens, C completions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from art.config.train import Level


def completion_sums(values_N: Tensor, owner_N: Tensor) -> Tensor:
    """[N]; to each token the sum of `values_N` over its completion. `owner_N` is each token's completion."""
    sums_C = values_N.new_zeros(int(owner_N.max()) + 1).index_add(0, owner_N, values_N)
    return sums_C[owner_N]


def completion_means(values_N: Tensor, owner_N: Tensor) -> Tensor:
    """[N]; to each token the mean of `values_N` over its completion."""
    counts_C = torch.bincount(owner_N)
    return completion_sums(values_N, owner_N) / counts_C[owner_N]


def importance_ratio(log_ratio_N: Tensor, owner_N: Tensor, level: Level) -> Tensor:
    """Ratio by which each token is weighed, [N], from d = logprob - old logprob, with d's gradient.

    token               r_t = exp(d_t): PPO, arXiv:1707.06347
    sequence            s = exp(mean of d over the completion): GSPO, arXiv:2507.18071, equation 7
    average             (r_t + s) / 2
    geometric_average   sqrt(r_t * s)

    A completion's tokens must all be among the N: a row never cuts one.
    """
    if level == "token":
        return log_ratio_N.exp()
    mean_N = completion_means(log_ratio_N, owner_N)
    if level == "sequence":
        return mean_N.exp()
    if level == "average":
        return (log_ratio_N.exp() + mean_N.exp()) / 2
    return ((log_ratio_N + mean_N) / 2).exp()
