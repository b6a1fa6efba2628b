"""The train calls of a run."""

from __future__ import annotations

from art.store import figure_rows
from art.store.damage import reads
from art.store.pages import cursor_of, key_of
from art.store.sql import Conn, Row, loads
from art.types.metrics import state_of
from art.types.policy import RolloutStatus
from art.types.wire_views import StepLine, StepList

_COUNT = "data/step_num_"
"""Begins the figures that count a step's rollouts by status."""


def steps(
    conn: Conn,
    project: str,
    name: str,
    *,
    batch: int | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> StepList:
    """Newest first; that of `batch` alone, or all."""
    behind = None if cursor is None else key_of("steps", cursor, parts=1)[0]
    found = conn.execute(
        "SELECT batches.batch, batches.step, batches.parent_step, published, reason, time, metrics, jobs.started_at, jobs.ended_at"
        " FROM batches LEFT JOIN jobs USING (job_id) WHERE batches.project = ? AND batches.name = ?"
        " AND (? IS NULL OR batches.batch = ?) AND (? IS NULL OR batches.batch < ?) ORDER BY batches.batch DESC LIMIT ?",
        (project, name, batch, batch, behind, behind, limit + 1),
    ).fetchall()
    shown = found[:limit]
    # What the program around the trainer logged with a step; one that was not published has no step of its own.
    logged = figure_rows.of_steps(conn, project, name, (row["step"] for row in shown if row["published"]))
    lines = [_line(row, logged.get(row["step"], {}) if row["published"] else {}) for row in shown]
    following = cursor_of("steps", found[limit - 1]["batch"]) if len(found) > limit else None
    return StepList(steps=lines, next=following)


@reads("the batch {batch} of the run")
def _line(row: Row, logged: dict[str, float]) -> StepLine:
    metrics: dict[str, float] = {**loads(row["metrics"]), **logged}
    ran = row["started_at"] is not None and row["ended_at"] is not None
    counts = {status.value: int(metrics.get(f"{_COUNT}{status.value}", 0)) for status in RolloutStatus}
    return StepLine(
        batch=row["batch"],
        step=row["step"],
        parent_step=row["parent_step"],
        published=bool(row["published"]),
        reason=row["reason"],
        time=row["time"],
        seconds=row["ended_at"] - row["started_at"] if ran else None,
        groups=int(metrics.get(f"{_COUNT}groups_submitted", 0)),
        rollouts=int(metrics.get(f"{_COUNT}trajectories", 0)),
        reward=metrics.get("train/reward"),
        reward_std_dev=metrics.get("train/reward_std_dev"),
        statuses={status: count for status, count in counts.items() if count},
        warnings=[metric for metric, value in metrics.items() if state_of(metric, value) == "warning"],
        metrics=metrics,
    )
