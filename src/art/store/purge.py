"""Deleting what was recorded: rollouts with their calls, texts and token files, for good.

Token files go first and rows after them, a batch at a time: a purge that is killed leaves rows whose tokens are gone, and
the next purge deletes those. Deleted rows are overwritten with zeros (SQLite's secure_delete).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from art.store import rollout_facts
from art.store.job_rows import open_jobs
from art.store.sql import Conn, rows
from art.types.tokens import BlobRef
from art.types.wire_purge import Purged

BATCH = 200
"""Rollouts of one transaction, so that recording goes on between two."""
STRAY = {"upstream_calls": "started_at", "logged_trajectories": "created_at"}
"""Tables whose rows may belong to no rollout, and what tells their age."""
WHOLE = ("saved_views", "run_configs")
"""Tables of what people wrote about a project, which goes with the project as a whole alone."""


@dataclass(frozen=True, slots=True)
class PurgeFilter:
    """Which data; all that is not None must hold."""

    project: str | None = None
    rollout_ids: Sequence[str] | None = None
    before: float | None = None
    """Unix time: ended before."""

    def where(self, *, time: str, ids: bool) -> tuple[str, list[Any]]:
        """Conditions on a table whose column `time` tells the age."""
        conditions, values = ["1"], list[Any]()
        if self.project is not None:
            conditions.append("project = ?")
            values.append(self.project)
        if self.before is not None:
            conditions.append(f"{time} < ?")
            values.append(self.before)
        if ids and self.rollout_ids is not None:
            conditions.append("rollout_id IN (SELECT value FROM json_each(?))")
            values.append(json.dumps(list(self.rollout_ids)))
        return " AND ".join(conditions), values


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a purge deletes."""

    rollouts: list[tuple[str, str]]
    """(id, project)."""
    token_files: list[str]
    """Of supervised training, relative to the blob folder; the rollouts' own have their names."""
    counts: Purged

    def batches(self) -> list[list[tuple[str, str]]]:
        """The rollouts in batches; one at least, for what belongs to no rollout."""
        return [self.rollouts[start : start + BATCH] for start in range(0, len(self.rollouts), BATCH)] or [[]]


def choose(conn: Conn, wanted: PurgeFilter) -> Chosen:
    """Everything that the filter names and that nothing needs any more."""
    where, values = wanted.where(time="COALESCE(ended_at, created_at)", ids=True)
    found = rows(conn, f"SELECT rollout_id, project, status FROM rollouts WHERE {where}", *values)
    held = {
        trajectory.rollout_id
        for job in open_jobs(conn)
        for group in job.spec.groups
        for trajectory in group.trajectories
    }
    ended = [row for row in found if row["status"] != "running"]
    free = [(row["rollout_id"], row["project"]) for row in ended if row["rollout_id"] not in held]
    counts = Purged(
        rollouts=len(free), kept_running=len(found) - len(ended), kept_in_jobs=len(ended) - len(free)
    )
    for start in range(0, len(free), BATCH):
        _count(conn, [name for name, _ in free[start : start + BATCH]], counts)
    files = []
    if wanted.rollout_ids is None:
        files = _sft_files(conn, wanted)
        for table, column in STRAY.items():
            where, values = _stray(wanted, column)
            (count,) = conn.execute(f"SELECT COUNT(*) FROM {table} WHERE {where}", values).fetchone()
            setattr(counts, table, getattr(counts, table) + count)
    return Chosen(free, files, counts)


def delete(conn: Conn, rollouts: Sequence[tuple[str, str]], wanted: PurgeFilter) -> None:
    """Rows of rollouts and all that belongs to them; then what belongs to no rollout that is there: calls that were
    passed on outside of one, logged trajectories made by hand."""
    ids = json.dumps([name for name, _ in rollouts])
    these = "(SELECT value FROM json_each(:ids))"
    calls = f"(SELECT call_id FROM calls WHERE rollout_id IN {these})"
    if rollouts:
        rollout_facts.remember_to_tidy(conn)
    for statement in (
        f"DELETE FROM trained_choices WHERE call_id IN {calls}",
        f"DELETE FROM notes WHERE rollout_id IN {these}",
        f"DELETE FROM choices WHERE call_id IN {calls}",
        f"DELETE FROM calls WHERE rollout_id IN {these}",
        *(f"DELETE FROM {table} WHERE {_theirs(table)}" for table in STRAY),
        f"DELETE FROM keys WHERE rollout_id IN {these}",
        f"DELETE FROM rollouts WHERE rollout_id IN {these}",
    ):
        conn.execute(statement, {"ids": ids})

    if wanted.rollout_ids is not None:
        return
    for table, column in STRAY.items():
        where, values = _stray(wanted, column)
        conn.execute(f"DELETE FROM {table} WHERE {where}", values)
    if (
        wanted.project is not None and wanted.before is None
    ):  # the whole project: what people wrote about it goes too
        for table in WHOLE:
            conn.execute(f"DELETE FROM {table} WHERE project = ?", (wanted.project,))


def _theirs(table: str) -> str:
    """Rows of `table` that belong to the rollouts `:ids`. A rollout's id is chosen by its client, so that another
    project may have sent the same one."""
    return (
        f"rollout_id IN (SELECT value FROM json_each(:ids))"
        f" AND EXISTS (SELECT 1 FROM rollouts AS owner WHERE owner.rollout_id = {table}.rollout_id"
        f" AND ({table}.project IS NULL OR {table}.project = owner.project))"
    )


def _stray(wanted: PurgeFilter, column: str) -> tuple[str, list[Any]]:
    where, values = wanted.where(time=column, ids=False)
    return f"{where} AND (rollout_id IS NULL OR rollout_id NOT IN (SELECT rollout_id FROM rollouts))", values


def _count(conn: Conn, ids: list[str], counts: Purged) -> None:
    these = "rollout_id IN (SELECT value FROM json_each(:ids))"
    conditions = {"calls": these, **{table: _theirs(table) for table in STRAY}}
    for table, condition in conditions.items():
        query = f"SELECT COUNT(*) FROM {table} WHERE {condition}"
        (count,) = conn.execute(query, {"ids": json.dumps(ids)}).fetchone()
        setattr(counts, table, getattr(counts, table) + count)


def _sft_files(conn: Conn, wanted: PurgeFilter) -> list[str]:
    """Token files that ended jobs of supervised training brought with them."""
    where, values = wanted.where(time="ended_at", ids=False)
    found = rows(
        conn, f"SELECT spec FROM jobs WHERE kind = 'sft' AND ended_at IS NOT NULL AND {where}", *values
    )
    return [json.loads(row["spec"])["sft"]["blob"]["path"] for row in found]


def settled(conn: Conn, *, limit: int) -> list[tuple[str, BlobRef]]:
    """Calls whose tokens are sealed and will not be read any more: their rollout has ended, of every choice is decided
    what becomes of it, and no job is about to train one."""
    found = rows(
        conn,
        "SELECT call_id, calls.blob FROM calls JOIN rollouts USING (rollout_id)"
        " WHERE json_extract(calls.blob, '$.sealed') AND rollouts.status != 'running' AND NOT EXISTS"
        " (SELECT 1 FROM choices WHERE choices.call_id = calls.call_id AND fate = 'pending')",
    )
    if not found:
        return []
    held = {
        choice.call_id
        for job in open_jobs(conn)
        for group in job.spec.groups
        for trajectory in group.trajectories
        for choice in trajectory.choices
    }
    free = [row for row in found if row["call_id"] not in held]
    return [(row["call_id"], BlobRef.model_validate_json(row["blob"])) for row in free[:limit]]


def forget_blobs(conn: Conn, call_ids: Sequence[str]) -> None:
    """The calls have no tokens any more."""
    conn.execute(
        "UPDATE calls SET blob = NULL WHERE call_id IN (SELECT value FROM json_each(?))",
        (json.dumps(call_ids),),
    )


def settled_files(conn: Conn) -> list[str]:
    """Sealed files of examples whose job of supervised training has ended."""
    found = rows(
        conn,
        "SELECT json_extract(spec, '$.sft.blob.path') AS path FROM jobs"
        " WHERE kind = 'sft' AND ended_at IS NOT NULL AND json_extract(spec, '$.sft.blob.sealed')",
    )
    return [row["path"] for row in found]
