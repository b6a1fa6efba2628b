"""Lists of rollouts: filtered, searched, sorted, a page at a time."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from art.store import filter_parse
from art.store.damage import reads
from art.store.filter_parse import Names
from art.store.filter_sql import Where, terms
from art.store.pages import Key, cursor_of, key_of
from art.store.rollout_facts import CALL_BITS
from art.store.sql import Conn, Row, finite, loads
from art.types.scenario_names import label
from art.types.wire_views import RolloutLine, RolloutList

COUNTED = 10_000
"""Rollouts that match are counted up to here."""
NAMED, MOST_NAMES = 500, 200
"""The newest rollouts whose metrics and metadata say what there is to filter by, and how many names are told."""
Sort = Literal["created_at", "reward", "sampled_tokens", "tool_errors", "seconds"]
MARKS = ("\x02", "\x03")
HIT_TOKENS = 18
"""Of the words around a hit."""

COLUMNS = (
    "f.id, f.rollout_id, f.project, f.model, f.step, f.group_id, f.scenario_id, f.member, f.purpose, f.status,"
    " r.reason, f.reward, f.advantage, f.batch, f.calls, f.prompt_tokens, f.sampled_tokens, f.tool_calls, f.tool_errors,"
    " f.created_at, f.seconds, f.flag, r.metrics, p.asked, p.answered"
)
TABLES = "rollout_facts f JOIN rollouts r USING (rollout_id) LEFT JOIN rollout_previews p ON p.id = f.id"
_JSON = {"metrics"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Which rollouts of a run, in which order."""

    filter: str = ""
    search: str = ""
    step: int | None = None
    batch: int | None = None
    group: str | None = None
    scenario: str | None = None
    status: str | None = None
    sort: Sort = "created_at"
    descending: bool = True
    limit: int = 50
    cursor: str | None = None


def page(conn: Conn, project: str, model: str, asked: Asked) -> RolloutList:
    """A page of a run's rollouts. InvalidInput for a filter, a search or a cursor that cannot be read."""
    names = logged_names(conn, project, model)
    where = _where(project, model, asked, names)
    source = "rollout_facts f" + (" JOIN rollouts r USING (rollout_id)" if where.joins else "")
    counting = (
        f"SELECT COUNT(*), AVG(reward) FROM (SELECT f.reward FROM {source} WHERE {where} LIMIT {COUNTED + 1})",
        list(where.values),
    )
    kind = f"rollouts {asked.sort} {asked.descending}"
    total, mean = None, None
    if asked.cursor is not None:
        value, last, total, mean = key_of(kind, asked.cursor, parts=4)
        _behind(where, asked, (value, last))
    way = "DESC" if asked.descending else "ASC"
    order = f"f.{asked.sort} {way}, f.id {way}"
    if asked.sort in ("reward", "seconds"):  # what has none comes last
        order = f"f.{asked.sort} IS NULL, {order}"
    found = conn.execute(
        f"SELECT f.id FROM {source} WHERE {where} ORDER BY {order} LIMIT ?", [*where.values, asked.limit + 1]
    ).fetchall()
    more = len(found) > asked.limit
    if not isinstance(total, int):  # the first page
        total, mean = conn.execute(*counting).fetchone()
    shown = [int(row["id"]) for row in found[: asked.limit]]
    lines = by_id(conn, shown)
    if asked.search:
        _mark_hits(conn, shown, lines, asked.search)
    following = None
    if more:
        last_row = f"SELECT {asked.sort}, id FROM rollout_facts WHERE id = ?"
        following = cursor_of(kind, *conn.execute(last_row, (shown[-1],)).fetchone(), total, mean)
    return RolloutList(
        rollouts=lines,
        next=following,
        total=min(total, COUNTED),
        more=total > COUNTED,
        reward_mean=finite(mean) if total <= COUNTED and isinstance(mean, float) else None,
        metrics=sorted(names.metrics),
    )


def logged_names(conn: Conn, project: str, model: str) -> Names:
    """What the run's newest rollouts were logged with."""
    found: dict[str, frozenset[str]] = {}
    for column in ("metrics", "metadata"):
        newest = (
            f"SELECT {column} AS pairs FROM rollouts WHERE project = ? AND model = ?"
            f" ORDER BY created_at DESC LIMIT {NAMED}"
        )
        query = f"SELECT DISTINCT key FROM ({newest}), json_each(pairs) LIMIT {MOST_NAMES}"
        found[column] = frozenset(row[0] for row in conn.execute(query, (project, model)))
    return Names(metrics=found["metrics"], metadata=found["metadata"])


def _where(project: str, model: str, asked: Asked, names: Names) -> Where:
    where = Where()
    where.add("f.project = ? AND f.model = ?", project, model)
    wanted = {"step": asked.step, "batch": asked.batch, "group_id": asked.group, "status": asked.status}
    wanted |= {"scenario_id": asked.scenario}
    for column, value in wanted.items():
        if value is not None:
            where.add(f"f.{column} = ?", value)
    where.filter(filter_parse.parse(asked.filter, names), now=time.time())
    if asked.search:
        where.search(asked.search)
    return where


def _behind(where: Where, asked: Asked, key: Key) -> None:
    """Only what comes after the row of a cursor."""
    value, last = key
    sign = "<" if asked.descending else ">"
    column = f"f.{asked.sort}"
    if value is None:
        where.add(f"{column} IS NULL AND f.id {sign} ?", last)
        return
    condition = f"{column} {sign} ? OR ({column} = ? AND f.id {sign} ?)"
    if asked.sort in ("reward", "seconds"):
        condition += f" OR {column} IS NULL"
    where.add(f"({condition})", value, value, last)


def by_id(conn: Conn, ids: Sequence[int]) -> list[RolloutLine]:
    """The lines of rollouts by their number in `rollout_facts`, in this order; what is not there is left out."""
    marks = ", ".join("?" for _ in ids)
    found = conn.execute(f"SELECT {COLUMNS} FROM {TABLES} WHERE f.id IN ({marks})", ids)
    lines = {int(row["id"]): line_of(row) for row in found}
    return _with_answers(conn, [lines[number] for number in ids if number in lines])


def lines_of(conn: Conn, rollout_ids: Iterable[str]) -> list[RolloutLine]:
    """The lines of rollouts by their ids, in this order; what is not there is left out."""
    wanted = list(rollout_ids)
    marks = ", ".join("?" for _ in wanted)
    found = conn.execute(f"SELECT {COLUMNS} FROM {TABLES} WHERE f.rollout_id IN ({marks})", wanted)
    lines = {str(row["rollout_id"]): line_of(row) for row in found}
    return _with_answers(conn, [lines[name] for name in wanted if name in lines])


def _with_answers(conn: Conn, lines: list[RolloutLine]) -> list[RolloutLine]:
    """How long their last answers are."""
    marks = ", ".join("?" for _ in lines)
    found = conn.execute(
        "SELECT calls.rollout_id, choices.token_count FROM calls JOIN choices USING (call_id)"
        f" WHERE calls.rollout_id IN ({marks}) AND NOT calls.auxiliary AND choices.choice = 0 ORDER BY calls.number",
        [line.rollout_id for line in lines],
    )
    tokens = {str(rollout_id): int(count) for rollout_id, count in found}
    for line in lines:
        line.answer_tokens = tokens.get(line.rollout_id)
    return lines


@reads("the rollout {rollout_id}")
def line_of(row: Row) -> RolloutLine:
    """A row of COLUMNS as a line."""
    values = dict(row)
    values["metrics"] = {name: float(value) for name, value in loads(values["metrics"]).items()}
    values["scenario_label"] = label(values["scenario_id"], values.pop("asked"))
    values["preview"] = values.pop("answered") or ""
    del values["id"]
    return RolloutLine.model_validate(values)


def _mark_hits(conn: Conn, ids: Sequence[int], lines: Sequence[RolloutLine], search: str) -> None:
    """Say of each line where the search found it: in the first of its calls that has one of the words."""
    query = " OR ".join(terms(search))
    for number, line in zip(ids, lines, strict=True):
        found = conn.execute(
            f"SELECT snippet(rollout_words, 0, ?, ?, '…', {HIT_TOKENS}) FROM rollout_words WHERE rollout_words MATCH ?"
            f" AND rowid BETWEEN ? AND ? LIMIT 1",
            (*MARKS, query, number << CALL_BITS, (number + 1 << CALL_BITS) - 1),
        ).fetchone()
        line.hit = found[0].replace("\n", " ") if found is not None else ""
