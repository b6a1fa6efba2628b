"""What a run's figures come to: sums over its steps, and what is made of the sums. Pure functions.

A step's figure is summed under another name: `data/step_x` as `data/cum/x`, `time/step_x` as `time/cum/x`, the idle
seconds of `throughput/step_*_idle_s` as `throughput/cum/*_idle_s`, `costs/x/y` as `costs/cum/x/y`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

COSTS = "costs/"
ALL_COSTS = "costs/all"
_AVERAGES = {
    "throughput/avg_trainer_tok_per_s": ("data/cum/trainer_tokens", "time/cum/trainer_s"),
    "throughput/avg_actor_tok_per_s": ("data/cum/actor_tokens", "time/cum/actor_s"),
}
"""Speeds of the whole run: (what, in how many seconds)."""


def is_cumulative(name: str) -> bool:
    """Whether a metric is a sum over the run."""
    return name.split("/", 2)[1:2] == ["cum"]


def cumulative_name(name: str) -> str | None:
    """The name under which a step's figure is summed up; None for one that is not."""
    section, _, rest = name.partition("/")
    if is_cumulative(name) or not rest:
        return None
    if section == "costs":
        return f"costs/cum/{rest}"
    if not rest.startswith("step_"):
        return None
    own = rest.removeprefix("step_")
    if section in ("data", "time") or (section == "throughput" and own.endswith("_idle_s")):
        return f"{section}/cum/{own}"
    return None


def rolled_up(row: Mapping[str, float]) -> dict[str, float]:
    """The costs that are sums of others in the row: `costs/train` of `costs/train/judge`, ..., and `costs/all`.

    One that the row gives itself stands as it is. Empty for a row without costs.
    """
    values = {name: row[name] for name in row if name.startswith(COSTS) and not is_cumulative(name)}
    given = values.pop(ALL_COSTS, None)
    if not values:
        return {}
    parents = {
        "/".join(parts[:depth])
        for name in values
        for parts in [name.split("/")]
        for depth in range(2, len(parts))
    }
    found: dict[str, float] = {}
    for parent in sorted(parents - values.keys(), key=lambda name: name.count("/"), reverse=True):
        found[parent] = values[parent] = _children(values, parent)
    if given is None:
        found[ALL_COSTS] = _children(values, "costs")
    return found


def _children(values: Mapping[str, float], parent: str) -> float:
    return math.fsum(value for name, value in values.items() if name.rpartition("/")[0] == parent)


def advance(
    totals: Mapping[str, float], row: Mapping[str, float]
) -> tuple[dict[str, float], dict[str, float]]:
    """(the run's sums behind `row`, what is to be added to the row).

    A sum that the row gives itself was made where its figure was counted: it is not counted again, and the run's sums are
    at least as much from then on. So a row that holds a train call's figures may be logged twice.
    """
    added = rolled_up(row)
    after = dict(totals)
    for name, value in {**row, **added}.items():
        total = cumulative_name(name)
        if total is None:
            continue
        if total in row:
            after[total] = max(after.get(total, row[total]), row[total])
            continue
        summed = after.get(total, 0.0) + value
        if math.isfinite(summed):
            after[total] = added[total] = summed
    added |= averages(after, {**row, **added}.keys())
    return after, {name: value for name, value in added.items() if name not in row}


def averages(totals: Mapping[str, float], changed: Collection[str]) -> dict[str, float]:
    """The run's speeds whose sums are among the `changed` names."""
    found = {}
    for name, (amount, seconds) in _AVERAGES.items():
        moved = amount in changed or seconds in changed
        if moved and amount in totals and totals.get(seconds, 0.0) > 0:
            found[name] = totals[amount] / totals[seconds]
    return found


def totals_in(row: Mapping[str, object]) -> dict[str, float]:
    """The sums that a row holds."""
    return {
        name: float(value)
        for name, value in row.items()
        if is_cumulative(name) and isinstance(value, int | float) and not isinstance(value, bool)
    }
