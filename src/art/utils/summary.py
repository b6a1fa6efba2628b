"""One row of metrics for a split: averages over trajectories, under the names dashboards expect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean, pstdev
from typing import Any, cast

from art.errors import InvalidInput
from art.trajectories import TrajectoryGroup

SECTIONS = ("reward", "loss", "offpolicy", "pipeline", "throughput", "costs", "time", "data", "parity")
"""Metric names under these sections are kept as they are; others get the split as their section."""
_OWN = frozenset({"reward", "reward_std_dev", "exception_rate"})
"""Averages that are computed here; a trajectory's metric of the same name does not mix with them."""
SPLITS = ("train", "val", "test", "discarded", "checkpoint")


def named_for_split(metrics: Mapping[str, float], split: str) -> dict[str, float]:
    """The metrics under their full names: `{split}/name` unless the name has a known section.

    InvalidInput names a metric that is no number.
    """
    known = {*SECTIONS, *SPLITS, split}
    return {
        name if "/" in name and name.partition("/")[0] in known else f"{split}/{name}": _number(name, value)
        for name, value in metrics.items()
    }


def _number(name: str, value: object) -> float:
    try:
        return float(cast(Any, value))
    except (TypeError, ValueError):
        raise InvalidInput(
            f"metric {name!r} must be a number",
            cause=f"it is {value!r}, a {type(value).__name__}",
            hint="words go into a trajectory's metadata or logs",
        ) from None


def summarize(groups: Iterable[TrajectoryGroup], split: str) -> dict[str, float]:
    """Averages over the trajectories of all groups.

    `{split}/reward`, `{split}/reward_std_dev` (mean over groups of the population standard deviation),
    `{split}/exception_rate`, `{split}/{metric}` and `{split}/group_{metric}`, where a metric is averaged over
    the trajectories or groups that carry it. Empty without groups.
    """
    groups = list(groups)
    if not groups:
        return {}
    trajectories = [trajectory for group in groups for trajectory in group]
    exceptions = sum(len(group.exceptions) for group in groups)
    values: dict[str, list[float]] = {}
    for trajectory in trajectories:
        values.setdefault("reward", []).append(trajectory.reward)
        for name, value in trajectory.metrics.items():
            if name not in _OWN:
                values.setdefault(name, []).append(float(value))
    for group in groups:
        if len(group) > 1:
            rewards = [trajectory.reward for trajectory in group]
            values.setdefault("reward_std_dev", []).append(pstdev(rewards))
        for name, value in group.metrics.items():
            values.setdefault(f"group_{name}", []).append(float(value))
    if trajectories or exceptions:
        values["exception_rate"] = [exceptions / (len(trajectories) + exceptions)]
    return named_for_split({name: fmean(series) for name, series in values.items()}, split)
