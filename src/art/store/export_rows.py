"""Which rollouts and logged trajectories of a run are exported, in SQL, a page at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from art.store.damage import reads
from art.store.sql import Conn, Row, loads, rows
from art.types.wire_export import ExportedLog

PAGE = 100


@dataclass(frozen=True, slots=True)
class ExportFilter:
    """Which records; None does not restrict."""

    project: str
    name: str
    step: int | None = None
    """That served a rollout; that a trajectory was logged at."""
    split: str | None = None
    """`train`: rollouts that were opened for training, and what was logged as such. Another: what was logged as such,
    and the rollouts behind it."""
    status: str | None = None
    """Of rollouts; logged trajectories have none and are left out."""


def rollouts(conn: Conn, wanted: ExportFilter, after: int) -> list[tuple[int, str]]:
    """(place, rollout id) of the next page, in the order in which they were opened."""
    conditions = ["project = ?", "model = ?", "rowid > ?"]
    values: list[Any] = [wanted.project, wanted.name, after]
    if wanted.step is not None:
        conditions.append("step = ?")
        values.append(wanted.step)
    if wanted.status is not None:
        conditions.append("status = ?")
        values.append(wanted.status)
    if wanted.split == "train":
        conditions.append("purpose = 'train'")
    elif wanted.split is not None:
        conditions.append(
            "rollout_id IN (SELECT rollout_id FROM logged_trajectories WHERE project = ? AND name = ? AND split = ?)"
        )
        values += [wanted.project, wanted.name, wanted.split]
    found = rows(
        conn,
        f"SELECT rowid AS place, rollout_id FROM rollouts WHERE {' AND '.join(conditions)} ORDER BY rowid LIMIT {PAGE}",
        *values,
    )
    return [(row["place"], row["rollout_id"]) for row in found]


def logged(conn: Conn, wanted: ExportFilter, after: int) -> list[tuple[int, ExportedLog]]:
    """(place, record) of the next page, in the order in which they were logged."""
    if wanted.status is not None:
        return []
    conditions = ["project = ?", "name = ?", "id > ?"]
    values: list[Any] = [wanted.project, wanted.name, after]
    for column, value in (("step", wanted.step), ("split", wanted.split)):
        if value is not None:
            conditions.append(f"{column} = ?")
            values.append(value)
    found = rows(
        conn,
        f"SELECT * FROM logged_trajectories WHERE {' AND '.join(conditions)} ORDER BY id LIMIT {PAGE}",
        *values,
    )
    return [(row["id"], _log(row)) for row in found]


@reads("what was logged of the rollout {rollout_id}")
def _log(row: Row) -> ExportedLog:
    return ExportedLog(
        project=row["project"],
        model=row["name"],
        rollout_id=row["rollout_id"],
        split=row["split"],
        step=row["step"],
        group=row["group_index"],
        index=row["trajectory_index"],
        reward=row["reward"],
        body=loads(row["body"]),
        created_at=row["created_at"],
    )
