"""The best and the worst of a run's newest rollouts, and what their rewards go with."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

from art.store.rollout_lists import by_id
from art.store.sql import Conn, Row, loads
from art.types.policy import Purpose, RolloutStatus
from art.types.wire_views import Extremes, Points, RewardLink

LOOKED_AT = 2000
"""Newest rollouts with a reward."""
MOST_METRICS = 12
"""Of the program, those that the most rollouts have."""


def extremes(
    conn: Conn, project: str, model: str, *, purpose: Purpose = Purpose.TRAIN, limit: int = 20
) -> Extremes:
    """Of the newest LOOKED_AT rollouts that have a reward, `limit` on each end; newer ones first among equals."""
    found = newest(conn, project, model, purpose)
    points = points_of(found)
    links = links_of(points)
    told = list(_told_apart(found))
    best = sorted(told, key=lambda row: -row["reward"])[:limit]  # stable: newest first
    worst = sorted(told, key=lambda row: row["reward"])[:limit]
    return Extremes(
        best=by_id(conn, [row["id"] for row in best]),
        worst=by_id(conn, [row["id"] for row in worst]),
        points=points,
        correlation_tokens=links[0].r,
        correlation_tool_errors=links[1].r,
        links=links,
    )


def newest(conn: Conn, project: str, model: str, purpose: Purpose) -> list[Row]:
    """The newest LOOKED_AT rollouts that have a reward, newest first."""
    return conn.execute(
        "SELECT f.id, f.rollout_id, f.step, f.reward, f.sampled_tokens, f.tool_errors, f.status, f.group_id, r.metrics"
        " FROM rollout_facts f JOIN rollouts r USING (rollout_id)"
        " WHERE f.project = ? AND f.model = ? AND f.purpose = ? AND f.reward IS NOT NULL"
        " ORDER BY f.created_at DESC, f.id DESC LIMIT ?",
        (project, model, purpose.value, LOOKED_AT),
    ).fetchall()


def points_of(found: Sequence[Row]) -> Points:
    """Rows of `newest` as columns, the oldest first."""
    rows = found[::-1]
    columns = {
        name: [row[name] for row in rows]
        for name in ("rollout_id", "step", "reward", "sampled_tokens", "tool_errors")
    }
    return Points(**columns, metrics=_metrics([loads(row["metrics"]) for row in rows]))


def links_of(points: Points) -> list[RewardLink]:
    """What the rewards go with: length, tool errors, and the program's metrics by name."""
    whole: dict[str, Sequence[float | None]] = {
        "sampled_tokens": points.sampled_tokens, "tool_errors": points.tool_errors,
    }  # fmt: skip
    whole |= {f"metrics.{name}": values for name, values in points.metrics.items()}
    return [_link(name, values, points) for name, values in whole.items()]


def _told_apart(found: Sequence[Row]) -> Iterator[Row]:
    """A group whose rewards are all equal is at one end as a whole, and would hide the others there: one stands for it."""
    seen = set[str]()
    for row in found:
        if row["status"] == RolloutStatus.ZERO_VARIANCE and row["group_id"] is not None:
            if row["group_id"] in seen:
                continue
            seen.add(row["group_id"])
        yield row


def _metrics(rows: Sequence[dict[str, float]]) -> dict[str, list[float | None]]:
    """The metrics that vary, as columns by name."""
    counts: dict[str, int] = defaultdict(int)
    for metrics in rows:
        for name in metrics:
            counts[name] += 1
    columns = {}
    for name in sorted(counts, key=lambda name: (-counts[name], name)):
        values = [float(metrics[name]) if name in metrics else None for metrics in rows]
        if len({value for value in values if value is not None and math.isfinite(value)}) > 1:
            columns[name] = [value if value is None or math.isfinite(value) else None for value in values]
        if len(columns) == MOST_METRICS:
            break
    return dict(sorted(columns.items()))


def _link(name: str, values: Sequence[float | None], points: Points) -> RewardLink:
    known = [
        (step, value, reward)
        for step, value, reward in zip(points.step, values, points.reward, strict=True)
        if value is not None
    ]
    steps, xs, ys = ([one[place] for one in known] for place in range(3))
    return RewardLink(
        name=name,
        rollouts=len(known),
        r=correlation(xs, ys),
        within=within_steps([int(step) for step in steps], xs, ys),
    )


def within_steps(steps: Sequence[int], first: Sequence[float], second: Sequence[float]) -> float | None:
    """Pearson's r of what is left when each step's own means are taken off."""
    by_step: dict[int, list[int]] = defaultdict(list)
    for place, step in enumerate(steps):
        by_step[step].append(place)
    one, other = list[float](), list[float]()
    for places in by_step.values():
        if len(places) > 1:
            one += _less_mean([first[place] for place in places])
            other += _less_mean([second[place] for place in places])
    return correlation(one, other)


def correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Pearson's r, between -1 and 1; None where one of them does not vary, or there are fewer than three."""
    if len(first) < 3:
        return None
    one, other = _centred(first), _centred(second)
    spread = math.sqrt(math.fsum(x * x for x in one)) * math.sqrt(math.fsum(y * y for y in other))
    if not spread or not math.isfinite(spread):
        return None
    return max(-1.0, min(1.0, math.fsum(x * y for x, y in zip(one, other, strict=True)) / spread))


def _less_mean(values: Sequence[float]) -> list[float]:
    largest = max(abs(value) for value in values) or 1.0
    return [value * largest for value in _centred(values)]


def _centred(values: Sequence[float]) -> list[float]:
    """Less their mean, in units of the largest, so that no square overflows; zeros where they are all the same."""
    if max(values) == min(values):
        return [0.0] * len(values)
    largest = max(abs(value) for value in values)
    scaled = [value / largest for value in values]
    mean = math.fsum(scaled) / len(scaled)
    return [value - mean for value in scaled]
