"""What people add to what was recorded, in SQL: flags and notes, saved views, the configuration of a run."""

from __future__ import annotations

import time

from art.errors import Conflict
from art.store.sql import Conn, dumps, insert, loads, one, rows
from art.types.wire_views import Note, RunConfig, SavedView

MOST_VIEWS = 200
"""Saved views of one project: a list for people."""


def get_note(conn: Conn, rollout_id: str) -> Note:
    """An empty one where nobody left any."""
    row = one(conn, "SELECT flag, note, key_id AS by, time FROM notes WHERE rollout_id = ?", rollout_id)
    return Note() if row is None else Note.model_validate(dict(row))


def put_note(conn: Conn, rollout_id: str, note: Note, key_id: str) -> Note:
    """Leave a flag and a note in place of what was there; nothing at all takes it away."""
    conn.execute("UPDATE rollout_facts SET flag = ? WHERE rollout_id = ?", (note.flag, rollout_id))
    if note.flag is None and not note.note:
        conn.execute("DELETE FROM notes WHERE rollout_id = ?", (rollout_id,))
        return Note()
    values = {
        "rollout_id": rollout_id,
        "flag": note.flag,
        "note": note.note,
        "key_id": key_id,
        "time": time.time(),
    }
    insert(conn, "notes", values, replace=("rollout_id",))
    return get_note(conn, rollout_id)


def list_saved(conn: Conn, project: str) -> list[SavedView]:
    """By name."""
    found = rows(conn, "SELECT name, location FROM saved_views WHERE project = ? ORDER BY name", project)
    return [SavedView.model_validate(dict(row)) for row in found]


def put_saved(conn: Conn, project: str, view: SavedView, key_id: str) -> None:
    """Keep a view under its name, in place of an earlier one. Conflict when there are too many."""
    others = one(
        conn,
        "SELECT COUNT(*) AS count FROM saved_views WHERE project = ? AND name != ?",
        project,
        view.name,
    )
    if others is not None and others["count"] >= MOST_VIEWS:
        raise Conflict(
            f"the project {project} has {others['count']} saved views already",
            hint="delete those that nobody needs",
        )
    values = {**view.model_dump(), "project": project, "key_id": key_id, "time": time.time()}
    insert(conn, "saved_views", values, replace=("project", "name"))


def delete_saved(conn: Conn, project: str, name: str) -> bool:
    """False when there was none."""
    done = conn.execute("DELETE FROM saved_views WHERE project = ? AND name = ?", (project, name))
    return done.rowcount > 0


def put_run_config(conn: Conn, project: str, name: str, config: RunConfig) -> None:
    """Of the newest run of a model."""
    values = {
        "project": project,
        "name": name,
        "config": dumps(config.config),
        "origin": dumps(config.origin),
        "time": time.time(),
    }
    insert(conn, "run_configs", values, replace=("project", "name"))


def get_run_config(conn: Conn, project: str, name: str) -> RunConfig | None:
    """None where nobody told any."""
    row = one(conn, "SELECT config, origin FROM run_configs WHERE project = ? AND name = ?", project, name)
    return None if row is None else RunConfig(config=loads(row["config"]), origin=loads(row["origin"]))
