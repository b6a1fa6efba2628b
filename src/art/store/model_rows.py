"""Models, their checkpoints and their history in SQL."""

from __future__ import annotations

import hashlib
import time
from typing import Any

from art.errors import Conflict, NotFound
from art.store import figure_rows, rollout_facts, total_rows
from art.store.damage import reads
from art.store.records import CheckpointRow, LoggedTrajectory, ModelRow
from art.store.sql import Conn, Row, dumps, insert, loads, one, rows
from art.types.jobs import CheckpointInfo


@reads("the model {project}/{name}")
def _model(row: Row) -> ModelRow:
    return ModelRow.model_validate(
        {
            **dict(row),
            "config": loads(row["config"]),
            "base": loads(row["base"]),
            "notes": loads(row["notes"]),
        }
    )


def put_model(conn: Conn, model: ModelRow) -> ModelRow:
    """Insert a model; one that exists is returned as it stands.

    Checkpoints beside its step are those of registrations of the name that did not end: they are forgotten.
    """
    existing = get_model(conn, model.project, model.name)
    if existing is not None:
        return existing
    conn.execute(
        "DELETE FROM checkpoints WHERE project = ? AND name = ? AND step != ?",
        (model.project, model.name, model.step),
    )
    values = model.model_dump(mode="json")
    for name in ("config", "base", "notes"):
        values[name] = dumps(values[name])
    insert(conn, "models", values)
    return model


def get_model(conn: Conn, project: str, name: str) -> ModelRow | None:
    row = one(conn, "SELECT * FROM models WHERE project = ? AND name = ?", project, name)
    return None if row is None else _model(row)


def list_models(conn: Conn) -> list[ModelRow]:
    return [_model(row) for row in rows(conn, "SELECT * FROM models ORDER BY created_at, project, name")]


def put_checkpoint(conn: Conn, info: CheckpointInfo, metrics: dict[str, float], job_id: str | None) -> int:
    """Record a published step and make it the latest; returns the latest. Repeating it changes nothing."""
    known = one(
        conn,
        "SELECT info FROM checkpoints WHERE project = ? AND name = ? AND step = ? AND deleted_at IS NULL",
        info.project,
        info.name,
        info.step,
    )
    if known is not None and CheckpointInfo.model_validate_json(known["info"]) == info:
        return _latest(conn, info)
    values = {
        "project": info.project,
        "name": info.name,
        "step": info.step,
        "info": info.model_dump_json(),
        "metrics": dumps(metrics),
        "job_id": job_id,
        "created_at": info.created_at or time.time(),
        "deleted_at": None,
    }
    insert(conn, "checkpoints", values, replace=("project", "name", "step"))
    conn.execute(
        "UPDATE models SET step = MAX(step, ?) WHERE project = ? AND name = ?",
        (info.step, info.project, info.name),
    )
    return _latest(conn, info)


def _latest(conn: Conn, info: CheckpointInfo) -> int:
    """The latest step of the checkpoint's model; the checkpoint's own where the model is being registered."""
    row = one(conn, "SELECT step FROM models WHERE project = ? AND name = ?", info.project, info.name)
    return info.step if row is None else int(row["step"])


def list_checkpoints(conn: Conn, project: str, name: str) -> list[CheckpointRow]:
    """Oldest first, without deleted ones."""
    found = rows(
        conn,
        "SELECT info, metrics, job_id, (SELECT parent_step FROM jobs WHERE jobs.job_id = checkpoints.job_id)"
        " AS parent_step FROM checkpoints WHERE project = ? AND name = ? AND deleted_at IS NULL ORDER BY step",
        project,
        name,
    )
    return [
        CheckpointRow(
            info=CheckpointInfo.model_validate_json(row["info"]),
            metrics=loads(row["metrics"]),
            job_id=row["job_id"],
            parent_step=row["parent_step"],
        )
        for row in found
    ]


def remove_checkpoint(conn: Conn, project: str, name: str, step: int) -> bool:
    """Mark a step deleted; False when there was none. The row stays: steps are never reused.

    Conflict when it is the latest.
    """
    latest = one(conn, "SELECT step FROM models WHERE project = ? AND name = ?", project, name)
    if latest is not None and latest["step"] == step:
        raise Conflict(f"{project}/{name}@{step} is in use", cause="it is the latest step")
    done = conn.execute(
        "UPDATE checkpoints SET deleted_at = ?"
        " WHERE project = ? AND name = ? AND step = ? AND deleted_at IS NULL",
        (time.time(), project, name, step),
    )
    return done.rowcount > 0


def deleted_steps(conn: Conn, project: str, name: str) -> set[int]:
    """Steps that were deleted: their files are of no use any more."""
    found = rows(
        conn,
        "SELECT step FROM checkpoints WHERE project = ? AND name = ? AND deleted_at IS NOT NULL",
        project,
        name,
    )
    return {row["step"] for row in found}


def require_idle(conn: Conn, project: str, name: str) -> None:
    """Conflict while a job of the model is open: it would publish on top of the step it began with."""
    found = rows(
        conn,
        "SELECT job_id FROM jobs WHERE project = ? AND name = ? AND status IN ('queued', 'running')",
        project,
        name,
    )
    if found:
        raise Conflict(
            f"{project}/{name} is being trained",
            cause=f"open jobs: {', '.join(row['job_id'] for row in found)}",
            hint="wait, or cancel them",
        )


def set_latest(conn: Conn, project: str, name: str, step: int) -> None:
    """Make a step that is there the model's latest, whatever was published after it.

    Conflict while a job of the model is open, NotFound where the step was deleted meanwhile.
    """
    require_idle(conn, project, name)
    there = one(
        conn,
        "SELECT 1 FROM checkpoints WHERE project = ? AND name = ? AND step = ? AND deleted_at IS NULL",
        project,
        name,
        step,
    )
    if there is None:
        raise NotFound(f"{project}/{name} has no step {step}", cause="it was deleted")
    conn.execute("UPDATE models SET step = ? WHERE project = ? AND name = ?", (step, project, name))


def last_step(conn: Conn, project: str, name: str) -> int:
    """The highest step ever published, deleted ones included: their numbers are not used again."""
    row = one(conn, "SELECT MAX(step) AS step FROM checkpoints WHERE project = ? AND name = ?", project, name)
    return 0 if row is None or row["step"] is None else int(row["step"])


def add_history(
    conn: Conn,
    data: dict[str, Any],
    *,
    project: str,
    name: str,
    step: int,
    recorded_at: str,
    trajectories: list[LoggedTrajectory],
) -> tuple[dict[str, Any], bool]:
    """Append one history row with its trajectories and its sums over the run.

    (the row as it is kept, True), or False with the one that is there when the same was added before.
    """
    digest = hashlib.sha256(dumps(data).encode()).hexdigest()
    known = one(
        conn,
        "SELECT data FROM history WHERE project = ? AND name = ? AND digest = ?",
        project,
        name,
        digest,
    )
    if known is not None:
        return loads(known["data"]), False
    data = {**data, **total_rows.add(conn, project, name, data)}
    done = conn.execute(
        "INSERT INTO history (project, name, step, recorded_at, digest, data) VALUES (?, ?, ?, ?, ?, ?)",
        (project, name, step, recorded_at, digest, dumps(data)),
    )
    history_id = done.lastrowid
    figure_rows.add_logged(conn, project, name, step=step, recorded_at=recorded_at, data=data)
    for item in trajectories:
        insert(
            conn,
            "logged_trajectories",
            {
                "history_id": history_id,
                "project": item.project,
                "name": item.name,
                "split": item.split,
                "step": item.step,
                "group_index": item.group,
                "trajectory_index": item.index,
                "rollout_id": item.rollout_id,
                "reward": item.reward,
                "body": dumps(item.body),
                "created_at": item.created_at,
            },
        )
        if item.rollout_id is not None:
            rollout_facts.explained(conn, item.rollout_id, item.project, item.body)
    return data, True


def list_history(conn: Conn, project: str, name: str) -> list[dict[str, Any]]:
    """History rows in the order they were recorded."""
    found = rows(conn, "SELECT data FROM history WHERE project = ? AND name = ? ORDER BY id", project, name)
    return [loads(row["data"]) for row in found]


def list_logged(conn: Conn, project: str, name: str, step: int) -> list[LoggedTrajectory]:
    """Trajectories logged at `step`, in their order."""
    found = rows(
        conn,
        "SELECT * FROM logged_trajectories WHERE project = ? AND name = ? AND step = ?"
        " ORDER BY history_id, group_index, trajectory_index",
        project,
        name,
        step,
    )
    return [
        LoggedTrajectory(
            project=row["project"],
            name=row["name"],
            split=row["split"],
            step=row["step"],
            group=row["group_index"],
            index=row["trajectory_index"],
            rollout_id=row["rollout_id"],
            reward=row["reward"],
            body=loads(row["body"]),
            created_at=row["created_at"],
        )
        for row in found
    ]
