"""The parity check: is what is trained what was served?

Axis legend: N tokens that were sampled from the step's parent version.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from art.config.train import ResolvedTrainConfig

P99_TOKENS = 300
"""Under this many tokens the 99th percentile is nearly the maximum, which has no bound."""


def parity_metrics(differences_N: Tensor) -> dict[str, float]:
    """Figures over d = trainer's minus recorded log-probability; empty without tokens.

    `k3` estimates KL(served || trained) from samples of the served policy as mean(exp(d) - 1 - d):
    Schulman 2020, "Approximating KL divergence".
    """
    if not len(differences_N):
        return {}
    d_N = differences_N.double()
    return {
        "parity/mean": float(d_N.abs().mean()),
        "parity/p99": float(torch.quantile(d_N.abs(), 0.99)),
        "parity/max": float(d_N.abs().max()),
        "parity/k3": float((torch.expm1(d_N) - d_N).mean()),
        "parity/tokens": float(len(d_N)),
    }


def past_bound(metrics: dict[str, float], config: ResolvedTrainConfig) -> list[str]:
    """The figures past their bound, for people; empty when the check holds.

    The bounds are on expectations. A mean over n tokens strays from its expectation by about its own
    size over sqrt(n), so three times that is allowed on top.
    """
    if not metrics:
        return []
    tokens = metrics["parity/tokens"]
    slack = 1 + 3 / math.sqrt(tokens)
    bounds = {"parity/mean": config.parity_mean * slack, "parity/k3": config.parity_k3 * slack}
    if tokens >= P99_TOKENS:
        bounds["parity/p99"] = config.parity_p99
    return [
        f"{name} is {metrics[name]:.4g}, the bound {bound:.4g}"
        for name, bound in bounds.items()
        if not metrics[name] <= bound
    ]
