"""The best and the worst of a run's newest rollouts, and what their rewards go with."""

from __future__ import annotations

import math
from collections.abc import Sequence

from art.store.rollout_lists import by_id
from art.store.sql import Conn
from art.types.policy import Purpose
from art.types.wire_views import Extremes, Points

LOOKED_AT = 2000
"""Newest rollouts with a reward."""


def extremes(
    conn: Conn, project: str, model: str, *, purpose: Purpose = Purpose.TRAIN, limit: int = 20
) -> Extremes:
    """Of the newest LOOKED_AT rollouts that have a reward, `limit` on each end; newer ones first among equals."""
    found = conn.execute(
        "SELECT id, rollout_id, step, reward, sampled_tokens, tool_errors FROM rollout_facts"
        " WHERE project = ? AND model = ? AND purpose = ? AND reward IS NOT NULL"
        " ORDER BY created_at DESC, id DESC LIMIT ?",
        (project, model, purpose.value, LOOKED_AT),
    ).fetchall()
    best = sorted(found, key=lambda row: -row["reward"])[:limit]  # stable: newest first
    worst = sorted(found, key=lambda row: row["reward"])[:limit]
    columns = {
        name: [row[name] for row in reversed(found)]
        for name in ("rollout_id", "step", "reward", "sampled_tokens", "tool_errors")
    }
    points = Points(**columns)
    return Extremes(
        best=by_id(conn, [row["id"] for row in best]),
        worst=by_id(conn, [row["id"] for row in worst]),
        points=points,
        correlation_tokens=correlation(points.reward, points.sampled_tokens),
        correlation_tool_errors=correlation(points.reward, points.tool_errors),
    )


def correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Pearson's r, between -1 and 1; None where one of them does not vary, or there are fewer than three."""
    if len(first) < 3:
        return None
    one, other = _centred(first), _centred(second)
    spread = math.sqrt(math.fsum(x * x for x in one)) * math.sqrt(math.fsum(y * y for y in other))
    if not spread or not math.isfinite(spread):
        return None
    return max(-1.0, min(1.0, math.fsum(x * y for x, y in zip(one, other, strict=True)) / spread))


def _centred(values: Sequence[float]) -> list[float]:
    """Less their mean, in units of the largest, so that no square overflows; zeros where they are all the same."""
    if max(values) == min(values):
        return [0.0] * len(values)
    largest = max(abs(value) for value in values)
    scaled = [value / largest for value in values]
    mean = math.fsum(scaled) / len(scaled)
    return [value - mean for value in scaled]
