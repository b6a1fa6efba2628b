"""One row of metrics for a split: averages over trajectories, under the names dashboards expect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import sqrt
from statistics import fmean, pstdev, stdev
from typing import Any, cast

from art.errors import InvalidInput
from art.trajectories import TrajectoryGroup
from art.types.metrics import full_name

_OWN = frozenset({"reward", "reward_std_dev", "reward_ci_low", "reward_ci_high", "exception_rate"})
"""Averages that are computed here; a trajectory's metric of the same name does not mix with them."""
NOT_MEASURED = ("train", "discarded")
"""Splits whose rewards come from a model that changes, or were left out: an interval around their mean says nothing."""
RESAMPLED = 200
"""Scenarios up to which the interval is found by resampling; with more the normal one is as good, and takes no time."""
Z95 = 1.959964


def named_for_split(metrics: Mapping[str, float], split: str) -> dict[str, float]:
    """The metrics under their full names (`types.metrics.full_name`).

    InvalidInput names a metric that is no number, or one of openpipe-art's old names of costs.
    """
    for name in metrics:
        if name.rpartition("/")[2].startswith("costs_"):
            raise InvalidInput(
                f"{name!r} is an old name of a cost",
                cause="costs have a section of their own, and are summed up there",
                hint=f"costs/{split}/{name.rpartition('/')[2].removeprefix('costs_')}",
            )
    return {full_name(name, split): _number(name, value) for name, value in metrics.items()}


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
    the trajectories or groups that carry it; of an evaluation also `{split}/reward_ci_low` and `_high` (`interval`).
    Empty without groups.
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
    found = {name: fmean(series) for name, series in values.items()}
    if split not in NOT_MEASURED and (ends := interval(groups)) is not None:
        found["reward_ci_low"], found["reward_ci_high"] = ends
    return {full_name(name, split): value for name, value in found.items()}


def interval(groups: Sequence[TrajectoryGroup]) -> tuple[float, float] | None:
    """The 95 % interval of the mean reward that `art.evaluate` gives; None where nothing is known about it.

    Groups are scenarios, each of which counts once; the trajectories of a single group stand for one scenario each.
    """
    from art.evals.bootstrap import bootstrap_ci

    means_S = [fmean(trajectory.reward for trajectory in group) for group in groups if len(group)]
    if len(groups) == 1:
        means_S = [trajectory.reward for trajectory in groups[0]]
    if len(means_S) < 2:
        return None
    if len(means_S) <= RESAMPLED:
        return bootstrap_ci(means_S)
    mean, spread = fmean(means_S), stdev(means_S) / sqrt(len(means_S))
    return mean - Z95 * spread, mean + Z95 * spread
