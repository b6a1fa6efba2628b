"""A run's figures over its steps, thinned for a chart."""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from art.store.sql import Conn, loads
from art.types.metrics import state_of
from art.types.policy import RolloutStatus
from art.types.wire_views import Figure, Series, SeriesSet

LOW, HIGH = "_ci_low", "_ci_high"
"""Behind a metric's name: the ends of its 95 % interval, as evaluations log it."""
SPREAD = "_std_dev"
"""Behind the name of a training figure: its standard deviation."""
TRAIN = "train/"
COUNTS = tuple(f"data/step_num_{status}" for status in ("trajectories", *RolloutStatus))
SMALLEST = ("train/reward_std_dev",)
"""Figures in which a train call that published nothing shows, though its step has those of another call: the counts of
rollouts by status, which add up, and the spread of rewards, of which the smaller one counts."""
LARGEST = sys.float_info.max


class Point(NamedTuple):
    """One step."""

    step: int
    time: float
    value: float


def series_set(conn: Conn, project: str, name: str, metrics: Iterable[str], *, max_points: int) -> SeriesSet:
    """The series of the metrics that the run has, each of at most `max_points` steps."""
    found: dict[str, Series] = {}
    for metric in dict.fromkeys(metrics):
        points = points_of(conn, project, name, metric)
        if points and metric in (*COUNTS, *SMALLEST):
            points = _with_unpublished(conn, project, name, metric, points)
        if points:
            found[metric] = _series(points, _band(conn, project, name, metric, points), max_points)
    return SeriesSet(series=found)


def points_of(conn: Conn, project: str, name: str, metric: str) -> list[Point]:
    """All steps that have the metric, in their order."""
    found = conn.execute(
        "SELECT step, time, value FROM run_figures WHERE project = ? AND name = ? AND metric = ? ORDER BY step",
        (project, name, metric),
    )
    return [Point(*row) for row in found]


def _with_unpublished(
    conn: Conn, project: str, name: str, metric: str, points: Sequence[Point]
) -> list[Point]:
    """The points with what train calls found that published nothing. Of a step the figures are those of the call that
    published it, or of the first one where none did; the others would not be seen."""
    unseen: dict[int, list[float]] = defaultdict(list)
    published = set[int]()
    for step, was_published, data in conn.execute(
        "SELECT step, published, metrics FROM batches WHERE project = ? AND name = ? AND step IN"
        " (SELECT step FROM batches WHERE project = ? AND name = ? AND NOT published) ORDER BY batch",
        (project, name, project, name),
    ):
        if was_published:
            published.add(step)
        elif metric in (found := loads(data)):
            unseen[step].append(float(found[metric]))

    def value(point: Point) -> float:
        others = unseen[point.step][0 if point.step in published else 1 :]
        return min([point.value, *others]) if metric in SMALLEST else point.value + sum(others)

    return [point._replace(value=value(point)) for point in points]


def _band(
    conn: Conn, project: str, name: str, metric: str, points: Sequence[Point]
) -> dict[int, tuple[float, float]]:
    """By step, from where to where: an evaluation's interval, a training figure's spread."""

    def values(suffix: str) -> dict[int, float]:
        return {point.step: point.value for point in points_of(conn, project, name, f"{metric}{suffix}")}

    low, high = values(LOW), values(HIGH)
    if low and high:
        return {step: (low[step], high[step]) for step in low.keys() & high.keys()}
    spread = values(SPREAD) if metric.startswith(TRAIN) else {}
    band = {
        point.step: (
            max(-LARGEST, point.value - spread[point.step]),
            min(LARGEST, point.value + spread[point.step]),
        )
        for point in points
        if point.step in spread
    }
    return _within_rewards(conn, project, name, points, band) if metric == f"{TRAIN}reward" else band


def _within_rewards(
    conn: Conn, project: str, name: str, points: Sequence[Point], band: dict[int, tuple[float, float]]
) -> dict[int, tuple[float, float]]:
    """The band without what lies past every reward that the run's rollouts have: nothing was there."""
    lowest, highest = conn.execute(
        "SELECT MIN(reward), MAX(reward) FROM rollout_facts WHERE project = ? AND model = ?", (project, name)
    ).fetchone()
    if lowest is None:
        return band
    means = {point.step: point.value for point in points}
    return {
        step: (min(means[step], max(low, lowest)), max(means[step], min(high, highest)))
        for step, (low, high) in band.items()
    }


def _series(points: Sequence[Point], band: dict[int, tuple[float, float]], max_points: int) -> Series:
    kept = [points[place] for place in thinned([point.value for point in points], max_points)]
    series = Series(
        step=[point.step for point in kept],
        time=[point.time for point in kept],
        value=[point.value for point in kept],
    )
    if band:
        ends = [band.get(point.step, (point.value, point.value)) for point in kept]
        series.low, series.high = [low for low, _ in ends], [high for _, high in ends]
    return series


def thinned(values: Sequence[float], most: int) -> list[int]:
    """Places of at most `most` (2 or more) values, in order: the first, the last, and of every bucket between them the
    smallest and the largest, so that no spike is lost."""
    count = len(values)
    if count <= most:
        return list(range(count))
    kept = {0, count - 1}
    buckets = (most - 2) // 2
    inner = count - 2
    for number in range(buckets):
        places = range(1 + number * inner // buckets, 1 + (number + 1) * inner // buckets)
        kept |= {min(places, key=values.__getitem__), max(places, key=values.__getitem__)}
    return sorted(kept)


def figures(conn: Conn, project: str, name: str) -> list[Figure]:
    """Every metric of a run, in short, by name."""
    found = conn.execute(
        "SELECT metric, COUNT(*) AS count, MAX(step) AS step, value FROM run_figures"
        " WHERE project = ? AND name = ? GROUP BY metric ORDER BY metric",
        (project, name),
    )
    return [
        Figure(
            name=row["metric"],
            last=row["value"],
            last_step=row["step"],
            count=row["count"],
            state=state_of(row["metric"], row["value"]),
        )
        for row in found
        if math.isfinite(row["value"])
    ]
