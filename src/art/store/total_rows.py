"""What the figures of a run come to, in SQL: kept with the row or the batch that changes them, in one transaction."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from art.store import step_rows
from art.store.sql import Conn, dumps, insert, loads, one, rows
from art.types.cumulative import advance

SCENARIOS = "data/cum/num_unique_scenarios"
_UNTIL = "until"
"""Beside the sums: when the last call of the run's batches ended, in seconds since 1970."""


def add(conn: Conn, project: str, name: str, row: Mapping[str, Any]) -> dict[str, float]:
    """Count a row's figures; what the row gets: its sums, the sums of its costs, and the run's speeds."""
    totals, added = advance(get(conn, project, name), _figures(row))
    if added or totals:
        _put(conn, project, name, totals)
    return added


def add_batch(
    conn: Conn,
    project: str,
    name: str,
    metrics: Mapping[str, float],
    *,
    rollout_ids: Sequence[str],
    parent: int,
) -> dict[str, float]:
    """Count a batch's figures, with what its rollouts took; all of them, and what they come to."""
    totals = get(conn, project, name)
    found, until = step_rows.figures(
        conn, rollout_ids, parent_step=parent, since=totals.pop(_UNTIL, float("-inf"))
    )
    metrics = {**found, **metrics}
    totals, added = advance(totals, metrics)
    _put(conn, project, name, totals if until == float("-inf") else {**totals, _UNTIL: until})
    return {**metrics, **added}


def get(conn: Conn, project: str, name: str) -> dict[str, float]:
    """The run's sums. Those of a store that did not keep them yet are made from its batches."""
    kept = one(conn, "SELECT totals FROM run_totals WHERE project = ? AND name = ?", project, name)
    if kept is not None:
        return _figures(loads(kept["totals"]))
    totals: dict[str, float] = {}
    found = rows(
        conn, "SELECT metrics FROM batches WHERE project = ? AND name = ? ORDER BY batch", project, name
    )
    for batch in found:
        totals, _ = advance(totals, _figures(loads(batch["metrics"])))
    return totals


def _put(conn: Conn, project: str, name: str, totals: Mapping[str, float]) -> None:
    values = {"project": project, "name": name, "totals": dumps(dict(totals))}
    insert(conn, "run_totals", values, replace=("project", "name"))


def _figures(row: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in row.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def meet(
    conn: Conn, project: str, name: str, rollout_ids: Sequence[str], named: Iterable[str]
) -> dict[str, float]:
    """Note the scenarios of a batch: those its rollouts were opened for, and those it was handed over with.

    Kept are digests, 8 bytes each, so that a scenario is counted once also after its rollouts were deleted. The count, or
    nothing for a run whose scenarios have no ids.
    """
    found = rows(
        conn,
        "SELECT DISTINCT scenario_id FROM rollouts WHERE scenario_id IS NOT NULL"
        " AND rollout_id IN (SELECT value FROM json_each(?))",
        dumps(list(rollout_ids)),
    )
    digests = {*(digest(row["scenario_id"]) for row in found), *named}
    conn.executemany(
        "INSERT INTO run_scenarios (project, name, digest) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
        [(project, name, known) for known in sorted(digests)],
    )
    count = one(
        conn, "SELECT COUNT(*) AS count FROM run_scenarios WHERE project = ? AND name = ?", project, name
    )
    return {SCENARIOS: float(count["count"])} if count is not None and count["count"] else {}


def digest(scenario_id: str) -> str:
    """By which a scenario is known again."""
    return hashlib.blake2b(scenario_id.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
