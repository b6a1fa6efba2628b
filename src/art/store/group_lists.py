"""Groups and scenarios of a run in lists: rollouts summed up by what they share."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

from art.errors import NotFound
from art.store.filter_sql import Where
from art.store.pages import cursor_of, key_of
from art.store.rollout_lists import COLUMNS, TABLES, line_of
from art.store.sql import Conn, Row, finite, loads
from art.types.scenario_names import label
from art.types.wire_views import (
    GroupLine,
    GroupList,
    GroupMember,
    RolloutLine,
    ScenarioDetail,
    ScenarioLine,
    ScenarioList,
    ScenarioStep,
)

MOST_MEMBERS = 64
"""That a group in a list names."""
MOST_OF_SCENARIO = 2000
"""Rollouts of one scenario, the newest."""
SQUARED = 1e150
"""Past it a square may be no number any more. A reward may be any number that is one."""
ScenarioSort = Literal["change", "reward_last", "rollouts"]


def groups(
    conn: Conn,
    project: str,
    model: str,
    *,
    step: int | None = None,
    batch: int | None = None,
    scenario: str | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> GroupList:
    """Newest first. `step` served one of a group's rollouts, `batch` is the newest train call that took one."""
    where = Where()
    where.add("f.project = ? AND f.model = ? AND f.group_id IS NOT NULL", project, model)
    for column, value in (("step", step), ("batch", batch), ("scenario_id", scenario)):
        if value is not None:
            where.add(f"f.{column} = ?", value)
    having = ""
    if cursor is not None:
        having, (first,) = "HAVING first < ?", key_of("groups", cursor, parts=1)
        where.values.append(first)
    found = conn.execute(
        f"SELECT f.group_id, MIN(f.id) AS first FROM rollout_facts f WHERE {where} GROUP BY f.group_id {having}"
        " ORDER BY first DESC LIMIT ?",
        [*where.values, limit + 1],
    ).fetchall()
    lines = _group_lines(conn, project, model, [row["group_id"] for row in found[:limit]])
    following = cursor_of("groups", found[limit - 1]["first"]) if len(found) > limit else None
    return GroupList(groups=lines, next=following)


def group_line(conn: Conn, project: str, model: str, group_id: str) -> GroupLine:
    """One group; NotFound where the run has none of this name."""
    found = _group_lines(conn, project, model, [group_id])
    if not found:
        raise NotFound(f"{project}/{model} has no group {group_id[:200]!r}")
    return found[0]


def _group_lines(conn: Conn, project: str, model: str, names: Sequence[str]) -> list[GroupLine]:
    rows: dict[str, list[Row]] = {name: [] for name in names}
    found = conn.execute(
        "SELECT f.id, f.group_id, f.rollout_id, f.scenario_id, f.step, f.batch, f.status, f.reward, f.created_at"
        " FROM rollout_facts f WHERE f.project = ? AND f.model = ? AND f.group_id IN (SELECT value FROM json_each(?))"
        " ORDER BY f.id",
        (project, model, json.dumps(list(names))),
    )
    for row in found:
        rows[row["group_id"]].append(row)
    return [_group_line(conn, name, members) for name, members in rows.items() if members]


def _group_line(conn: Conn, name: str, rows: Sequence[Row]) -> GroupLine:
    first = rows[0]
    rewards = [row["reward"] for row in rows if row["reward"] is not None]
    mean, deviation = mean_and_deviation(rewards)
    statuses: dict[str, int] = defaultdict(int)
    for row in rows:
        statuses[row["status"]] += 1
    ordered = sorted(rows, key=lambda row: (row["reward"] is None, -(row["reward"] or 0.0), row["id"]))
    asked = _asked(conn, first["id"])
    return GroupLine(
        group_id=name,
        scenario_id=first["scenario_id"],
        scenario_label=label(first["scenario_id"], asked),
        step=first["step"],
        batch=max((row["batch"] for row in rows if row["batch"] is not None), default=None),
        size=len(rows),
        reward_mean=mean,
        reward_std_dev=deviation,
        reward_min=min(rewards, default=None),
        reward_max=max(rewards, default=None),
        statuses=statuses,
        created_at=first["created_at"],
        members=[
            GroupMember(rollout_id=row["rollout_id"], reward=row["reward"], status=row["status"])
            for row in ordered[:MOST_MEMBERS]
        ],
        preview=asked,
    )


def _asked(conn: Conn, fact: int) -> str:
    """The beginning of what a rollout was asked, by its number in `rollout_facts`."""
    found = conn.execute("SELECT asked FROM rollout_previews WHERE id = ?", (fact,)).fetchone()
    return "" if found is None else str(found["asked"])


def mean_and_deviation(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Mean and population standard deviation, as the trainer takes them; None for none. Both are finite."""
    if not values:
        return None, None
    largest = max(map(abs, values))
    unit = largest if largest > SQUARED else 1.0
    scaled = [value / unit for value in values]
    mean = math.fsum(scaled) / len(scaled)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in scaled) / len(scaled))
    return mean * unit, deviation * unit


# -- scenarios

_BY_SCENARIO = """
WITH steps AS (
    SELECT scenario_id, purpose, step, COUNT(*) AS rollouts, AVG(reward) AS mean, COUNT(reward) AS judged, MIN(id) AS id
    FROM rollout_facts WHERE project = ? AND model = ? AND scenario_id IS NOT NULL GROUP BY scenario_id, step, purpose
), purposes AS (
    SELECT scenario_id, purpose, SUM(judged > 0) AS known, MIN(step) AS first_step, MAX(step) AS last_step
    FROM steps GROUP BY scenario_id, purpose
), compared AS (
    SELECT scenario_id, MAX(2 * known + (purpose = 'train')), purpose, first_step, last_step
    FROM purposes GROUP BY scenario_id
), firsts AS (
    SELECT scenario_id, purpose, MIN(step), mean, judged FROM steps WHERE judged GROUP BY scenario_id, purpose
), lasts AS (
    SELECT scenario_id, purpose, MAX(step), mean, judged FROM steps WHERE judged GROUP BY scenario_id, purpose
)
SELECT steps.scenario_id, SUM(rollouts) AS rollouts, compared.purpose, compared.first_step, compared.last_step,
    firsts.mean AS reward_first, lasts.mean AS reward_last, COALESCE(firsts.judged, 0) AS rollouts_first,
    COALESCE(lasts.judged, 0) AS rollouts_last, MIN(steps.id) AS id
FROM steps JOIN compared USING (scenario_id)
LEFT JOIN firsts ON firsts.scenario_id = compared.scenario_id AND firsts.purpose = compared.purpose
LEFT JOIN lasts ON lasts.scenario_id = compared.scenario_id AND lasts.purpose = compared.purpose
GROUP BY steps.scenario_id
"""
# With MIN or MAX, SQLite takes the other columns from the row that has it (sqlite.org/lang_select.html#bareagg).
_SORTS: dict[str, str] = {
    "change": "reward_first IS NULL, ABS(reward_last - reward_first) DESC, reward_last",
    "reward_last": "reward_last IS NULL, reward_last",
    "rollouts": "rollouts DESC",
}


def scenarios(
    conn: Conn,
    project: str,
    model: str,
    *,
    sort: ScenarioSort = "change",
    limit: int = 50,
    cursor: str | None = None,
) -> ScenarioList:
    """By `change`: those first whose reward changed most. By `reward_last`: the worst first. By `rollouts`: the most first."""
    kind = f"scenarios {sort}"
    skip = 0
    if cursor is not None:
        (given,) = key_of(kind, cursor, parts=1)
        skip = given if isinstance(given, int) and 0 <= given < 1 << 40 else 0
    found = conn.execute(
        f"{_BY_SCENARIO} ORDER BY {_SORTS[sort]}, steps.scenario_id LIMIT ? OFFSET ?",
        (project, model, limit + 1, skip),
    ).fetchall()
    lines = []
    for row in found[:limit]:
        asked = _asked(conn, row["id"])
        values = {name: row[name] for name in row.keys() if name != "id"}  # noqa: SIM118 - a Row is no mapping
        values |= {name: finite(values[name]) for name in ("reward_first", "reward_last")}
        line = ScenarioLine(**values, scenario_label=label(row["scenario_id"], asked), preview=asked)
        line.metrics_first = _metrics_at(conn, project, model, line, line.first_step)
        line.metrics_last = _metrics_at(conn, project, model, line, line.last_step)
        lines.append(line)
    following = cursor_of(kind, skip + limit) if len(found) > limit else None
    return ScenarioList(scenarios=lines, next=following)


def _metrics_at(conn: Conn, project: str, model: str, line: ScenarioLine, step: int) -> dict[str, float]:
    """Means of the program's metrics over the compared rollouts of one step."""
    found = conn.execute(
        "SELECT r.metrics FROM rollout_facts f JOIN rollouts r USING (rollout_id) WHERE f.project = ? AND f.model = ?"
        " AND f.scenario_id = ? AND f.step = ? AND f.purpose = ?",
        (project, model, line.scenario_id, step, line.purpose.value),
    )
    values: dict[str, list[float]] = defaultdict(list)
    for (metrics,) in found:
        for name, value in loads(metrics).items():
            values[name].append(float(value))
    return {name: math.fsum(known) / len(known) for name, known in sorted(values.items())}


def scenario(conn: Conn, project: str, model: str, scenario_id: str) -> ScenarioDetail:
    """One scenario across the steps of a run, with its newest MOST_OF_SCENARIO rollouts; NotFound where it has none."""
    found = conn.execute(
        f"SELECT {COLUMNS} FROM {TABLES} WHERE f.project = ? AND f.model = ? AND f.scenario_id = ?"
        " ORDER BY f.id DESC LIMIT ?",
        (project, model, scenario_id, MOST_OF_SCENARIO),
    )
    steps: dict[tuple[int, str], list[RolloutLine]] = defaultdict(list)
    for row in found:
        line = line_of(row)
        steps[line.step, line.purpose.value].insert(0, line)
    if not steps:
        raise NotFound(f"{project}/{model} has no scenario {scenario_id[:200]!r}")
    labels = (line.scenario_label for lines in steps.values() for line in lines if line.scenario_label)
    return ScenarioDetail(
        scenario_id=scenario_id,
        scenario_label=next(labels, ""),
        steps=[
            ScenarioStep(
                step=step,
                purpose=lines[0].purpose,
                reward_mean=mean_and_deviation([line.reward for line in lines if line.reward is not None])[0],
                rollouts=lines,
            )
            for (step, _), lines in sorted(steps.items())
        ],
    )
