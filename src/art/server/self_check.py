"""What an engine shows after loading an adapter, against what the trainer wrote into the manifest."""

from __future__ import annotations

from collections.abc import Sequence

from art.engine.protocol import AdapterCheck
from art.errors import ArtError, InfraError
from art.types.jobs import CheckpointInfo

PROBE_BOUND_BF16 = 0.06
"""Mean absolute difference of log-probabilities between two bf16 forward passes of one model (measured 0.04)."""
PROBE_BOUND_FP32 = 1e-3
"""The same in fp32, where only the order of sums differs."""
NO_EFFECT_FP32 = 1e-4
"""A trained adapter moves the probe at least this far from the base model, or it was not applied."""


def check_adapter(info: CheckpointInfo, check: AdapterCheck, dtype: str) -> ArtError | None:
    """What speaks against serving a loaded adapter, or None.

    Every tensor found its place; the probe's log-probabilities are those of the manifest within the noise of
    the number format; and in fp32 they are not exactly the base model's.
    """
    name = f"{info.project}/{info.name}@{info.step}"
    if check.unmatched:
        shown = ", ".join(check.unmatched[:3])
        return InfraError(
            f"the adapter {name} does not fit the engine's model",
            cause=f"{len(check.unmatched)} of its tensors have no place, among them {shown}",
            hint="the adapter was made for another architecture, or by another release",
        )
    if not info.probe_logprobs:
        return None
    gap = _mean_gap(info.probe_logprobs, check.probe_logprobs)
    bound = PROBE_BOUND_BF16 if dtype in ("bf16", "bfloat16") else PROBE_BOUND_FP32
    if not gap <= bound:
        return InfraError(
            f"the engine serves {name} differently from what the trainer wrote",
            cause=f"mean |log p| difference on the probe is {gap:.4f}, the bound is {bound} ({dtype})",
            hint="the adapter was loaded partly or under another base model, or its files were changed",
        )
    applied = check.base_probe_logprobs != check.probe_logprobs
    if not applied and bound == PROBE_BOUND_FP32:
        moved = _mean_gap(info.probe_logprobs, check.base_probe_logprobs)
        if moved > NO_EFFECT_FP32:
            return InfraError(
                f"the adapter {name} has no effect in the engine",
                cause="the probe's log-probabilities are exactly the base model's",
                hint="the engine did not apply it: see the engine's log in server/logs",
            )
    return None


def _mean_gap(left: Sequence[float], right: Sequence[float]) -> float:
    """Mean absolute difference; infinite when the lengths differ."""
    if len(left) != len(right) or not left:
        return float("inf")
    return sum(abs(a - b) for a, b in zip(left, right, strict=True)) / len(left)
