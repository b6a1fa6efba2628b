"""The figures of a run's steps, one row a figure and step: what charts read without opening every log line."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from art.store.sql import Conn

TABLES = (
    """CREATE TABLE run_figures (
        project TEXT NOT NULL, name TEXT NOT NULL, metric TEXT NOT NULL, step INTEGER NOT NULL,
        time REAL NOT NULL, value REAL NOT NULL,
        PRIMARY KEY (project, name, metric, step)
    ) STRICT, WITHOUT ROWID""",
    "CREATE INDEX run_figures_by_step ON run_figures (project, name, step, metric, value)",
)
NAMELESS = frozenset({"training_step", "step", "recorded_at"})
"""What a history row says of itself."""
UPDATES = "data/step_num_gradient_steps"


def add_logged(
    conn: Conn, project: str, name: str, *, step: int, recorded_at: str, data: Mapping[str, Any]
) -> None:
    """The figures of a history row. What is logged of a step last is what counts, but for a train call that trained
    nothing: its row has the step of the call before it, whose figures stay."""
    figures = ((key, value) for key, value in data.items() if key not in NAMELESS)
    way = (
        "DO NOTHING"
        if data.get(UPDATES) == 0
        else "DO UPDATE SET time = excluded.time, value = excluded.value"
    )
    conn.executemany(
        f"INSERT INTO run_figures VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT {way}",
        _rows(figures, project, name, step, _seconds(recorded_at)),
    )


def add_batch(
    conn: Conn, project: str, name: str, *, step: int, at: float, metrics: Mapping[str, float]
) -> None:
    """The figures of a train call; where the program logs them itself, its own stand."""
    conn.executemany(
        "INSERT INTO run_figures VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        _rows(metrics.items(), project, name, step, at),
    )


def _rows(
    figures: Iterable[tuple[str, Any]], project: str, name: str, step: int, at: float
) -> list[tuple[str, str, str, int, float, float]]:
    return [
        (project, name, metric, step, at, float(value))
        for metric, value in figures
        if isinstance(value, int | float) and math.isfinite(value)
    ]


def _seconds(recorded_at: str) -> float:
    """Unix time of an ISO date; now for what is none."""
    try:
        return datetime.fromisoformat(recorded_at).timestamp()
    except (ValueError, OverflowError, OSError):
        return time.time()


def fill(conn: Conn) -> None:
    """From a store that was written before there was the table; a part of the migration."""
    reading = conn.cursor()
    reading.execute("SELECT project, name, step, time, metrics FROM batches ORDER BY batch")
    for project, name, step, at, metrics in reading:
        add_batch(conn, project, name, step=step, at=at, metrics=json.loads(metrics))
    reading.execute("SELECT project, name, step, recorded_at, data FROM history ORDER BY id")
    for project, name, step, recorded_at, data in reading:
        add_logged(conn, project, name, step=step, recorded_at=recorded_at, data=json.loads(data))


def of_steps(conn: Conn, project: str, name: str, steps: Iterable[int]) -> dict[int, dict[str, float]]:
    """Figures by step."""
    wanted = sorted(set(steps))
    marks = ", ".join("?" for _ in wanted)
    reading = conn.execute(
        f"SELECT step, metric, value FROM run_figures WHERE project = ? AND name = ? AND step IN ({marks})",
        (project, name, *wanted),
    )
    found: dict[int, dict[str, float]] = {step: {} for step in wanted}
    for step, metric, value in reading:
        found[step][metric] = value
    return found
