"""The parity check: is what is trained what was served?

Axis legend: N tokens that were sampled from the step's parent version.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from art.config.train import ResolvedTrainConfig
from art.errors import ParityFailed
from art.tokens.samples import SampledChoice
from art.trainer.forward import Policy, make_row

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


DIAGNOSED = 4
"""Choices that a failed check is diagnosed with: enough to tell causes apart, a fraction of a second."""
ARITHMETIC = 0.3
"""Nats: a mean difference under this with no other explanation is rounding."""


def check(
    differences_N: Tensor, choices: Sequence[SampledChoice], policy: Policy, config: ResolvedTrainConfig
) -> None:
    """Raise ParityFailed, naming the likely cause, when the figures are past their bounds."""
    metrics = parity_metrics(differences_N)
    failures = past_bound(metrics, config)
    if failures:
        cause, hint = diagnose([choice for choice in choices if choice.on_policy][:DIAGNOSED], policy, config)
        raise ParityFailed(
            "The trainer does not reproduce the log-probabilities that were recorded; nothing was published",
            cause=f"{cause} ({'; '.join(failures)})",
            hint=hint,
        )


@torch.no_grad()
def diagnose(
    choices: Sequence[SampledChoice], policy: Policy, config: ResolvedTrainConfig
) -> tuple[str, str]:
    """(likely cause, hint): which change of the trainer's forward pass would reproduce the records."""
    with policy.adapter_off():
        if _mean_difference(choices, policy) <= config.parity_mean:
            return (
                "adapter: the records are those of the base model, so the engine did not apply the adapter",
                "restart the server; the engine's self-check after loading should have refused this adapter",
            )
    at_one = [replace(choice, temperature=1.0) for choice in choices]
    tempered = any(choice.temperature != 1.0 for choice in choices)
    if tempered and _mean_difference(at_one, policy) <= config.parity_mean:
        return (
            "temperature: the records are log-probabilities at temperature 1, not at the one sampled with",
            "record log-softmax(logits / temperature)",
        )
    if _mean_difference(choices, policy) <= ARITHMETIC:
        return (
            f"dtype: the difference looks like rounding; the trainer computes in {policy.dtype}",
            "run engine and trainer in the same type (--dtype fp32), or raise parity_mean, parity_p99 and parity_k3",
        )
    return (
        "template or adapter: the recorded tokens are not what the engine was given, or another step served them",
        "compare a call's prompt_token_ids with what the engine logged, and its version with the checkpoint's",
    )


def _mean_difference(choices: Sequence[SampledChoice], policy: Policy) -> float:
    """Mean |trainer - recorded| over the choices' tokens, each computed by itself."""
    differences = []
    for choice in choices:
        row = make_row([choice], policy.device)
        found, _ = policy.logprobs(row, chunk=1024)
        recorded = torch.from_numpy(choice.logprobs[row.trie.offset])
        differences.append((found.cpu() - recorded).abs())
    return float(torch.cat(differences).mean())
