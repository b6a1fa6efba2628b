"""The filter language: what it means, held against a direct evaluation, and what it says of what it cannot read."""

from __future__ import annotations

import contextlib
import json
import random
import re
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art.errors import InvalidInput
from art.store import rollout_facts
from art.store.filter_parse import FIELDS, OTHER_NAMES, Names, parse
from art.store.filter_sql import Where, terms
from art.store.schema import migrate
from art.types.policy import RolloutStatus

NOW = 10_000.0
WORDS = ("refund", "kettle", "late", "Größe", "out", "of", "stock")
CITIES = ("Paris", "new york", "O'Hare", 'the "Hague"', "")
NUMBERS = (
    "reward",
    "advantage",
    "step",
    "batch",
    "calls",
    "sampled_tokens",
    "tool_errors",
    "seconds",
    "created_at",
)


@dataclass
class Rollouts:
    """The same rollouts in a database and as dictionaries."""

    conn: sqlite3.Connection
    rows: list[dict[str, Any]]

    def found(self, text: str) -> list[int]:
        where = Where()
        where.filter(parse(text), now=NOW)
        query = (
            f"SELECT f.id FROM rollout_facts f JOIN rollouts r USING (rollout_id) WHERE {where} ORDER BY f.id"
        )
        return [row[0] for row in self.conn.execute(query, where.values)]


@pytest.fixture(scope="module")
def rollouts() -> Rollouts:
    rng = random.Random(1)
    conn = sqlite3.connect(":memory:", isolation_level=None)
    migrate(conn)
    rows = []

    def maybe(value: Any) -> Any:
        return None if rng.random() < 0.25 else value

    for number in range(1, 61):
        row: dict[str, Any] = {
            "id": number,
            "reward": maybe(rng.choice((-1.0, 0.0, 0.25, 1.0, 1e9))),
            "status": rng.choice(list(RolloutStatus)).value,
            "reason": rng.choice(("", "Timeout after 30 s", "all rewards are EQUAL")),
            "scenario_id": maybe(rng.choice(CITIES)),
            "created_at": float(rng.randrange(10_000)),
            "step": rng.randrange(4),
            "metrics": {"turns": rng.randrange(5)}
            | ({"ok": rng.random() < 0.5} if rng.random() < 0.5 else {}),
            "metadata": {
                name: rng.choice((*CITIES, 0, 1, 2.5, True, False, None))
                for name in ("city", "home city")
                if rng.random() < 0.7
            },
            "advantage": maybe(rng.uniform(-2, 2)),
            "batch": maybe(rng.randrange(4)),
            "calls": rng.randrange(3),
            "sampled_tokens": rng.randrange(3) * 1000,
            "tool_errors": rng.randrange(3),
            "seconds": maybe(float(rng.randrange(100))),
            "flag": maybe(rng.choice(("good", "bad"))),
            "words": set(rng.sample(WORDS, rng.randrange(len(WORDS)))),
        }
        rows.append(row)
        insert(conn, row)
    return Rollouts(conn, rows)


def insert(conn: sqlite3.Connection, row: dict[str, Any]) -> None:
    ended = None if row["seconds"] is None else row["created_at"] + row["seconds"]
    conn.execute(
        "INSERT INTO rollouts (rollout_id, project, model, step, purpose, sampling, status, reason, implicit, reward,"
        " scenario_id, member, run_seed, limits, metrics, metadata, created_at, ended_at)"
        " VALUES (?, 'p', 'm', ?, 'train', 'training', ?, ?, 0, ?, ?, 0, 0, '{}', ?, ?, ?, ?)",
        (
            *(f"r{row['id']}", row["step"], row["status"], row["reason"], row["reward"], row["scenario_id"]),
            *(json.dumps(row[name], ensure_ascii=False) for name in ("metrics", "metadata")),
            *(row["created_at"], ended),
        ),
    )
    conn.execute(
        "UPDATE rollout_facts SET advantage = :advantage, batch = :batch, calls = :calls,"
        " sampled_tokens = :sampled_tokens, tool_errors = :tool_errors, flag = :flag WHERE id = :id",
        {name: value for name, value in row.items() if not isinstance(value, dict | set)},
    )
    for place, word in enumerate(sorted(row["words"])):  # each in a call of its own
        rowid = row["id"] << rollout_facts.CALL_BITS | place
        conn.execute("INSERT INTO rollout_words (rowid, text) VALUES (?, ?)", (rowid, word))


# -- a direct evaluation: a condition is its text and a function of the row

Condition = tuple[str, Callable[[dict[str, Any]], bool]]
_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def lower(text: str) -> str:
    """As SQLite: A to Z alone."""
    return re.sub("[A-Z]", lambda found: found[0].lower(), text)


def turned(text: str, holds: Callable[[dict[str, Any]], bool]) -> Condition:
    return text, lambda row: not holds(row)


@st.composite
def number_conditions(draw: st.DrawFn) -> Condition:
    name = draw(st.sampled_from(NUMBERS))
    shown, value = draw(
        st.sampled_from(
            [
                *(("-1", -1.0), ("0", 0.0), ("0.25", 0.25), (".25", 0.25), ("1e0", 1.0), ("1k", 1000.0)),
                *(("2", 2.0), ("1m", 60.0), ("50s", 50.0), ("2h", 7200.0)),
            ]
        )
    )
    if name == "created_at":
        shown, value = "5000", 5000.0
    operator = draw(st.sampled_from([*_ORDER, "!=", "in", "none", "not none"]))
    if operator == "in":
        return f"{name} in ({shown}, 1)", lambda row: row[name] in (value, 1) and row[name] is not None
    if operator in ("none", "not none"):
        if operator == "none":
            return f"{name} = none", lambda row: row[name] is None
        return f"{name} != null", lambda row: row[name] is not None
    if operator == "!=":
        return turned(f"{name}!={shown}", lambda row: row[name] is not None and row[name] == value)
    return (
        f"{name} {operator} {shown}",
        lambda row: row[name] is not None and _ORDER[operator](row[name], value),
    )


@st.composite
def text_conditions(draw: st.DrawFn) -> Condition:
    name = draw(st.sampled_from(["scenario_id", "reason", "status"]))
    word = draw(st.sampled_from(["Paris", "york", "EQUAL", "timeout", "", 'the "hague"', "trained", "stale"]))
    operator = draw(st.sampled_from(["=", "!=", "~", "!~"]))
    if name == "status" and operator in ("=", "!="):
        word = draw(st.sampled_from(["trained", "stale"]))
    shown = word if re.fullmatch(r"\w+", word) and draw(st.booleans()) else quoted(word)

    def holds(row: dict[str, Any]) -> bool:
        if row[name] is None:
            return False
        return lower(word) in lower(row[name]) if "~" in operator else bool(row[name] == word)

    text = f"{name} {operator} {shown}"
    return turned(text, holds) if operator.startswith("!") else (text, holds)


@st.composite
def data_conditions(draw: st.DrawFn) -> Condition:
    if draw(st.booleans()):
        name, operator = draw(st.sampled_from(["turns", "ok"])), draw(st.sampled_from(list(_ORDER)))
        value = draw(st.sampled_from([0, 1, 3]))
        return (
            f"metrics.{name} {operator} {value}",
            lambda row: name in row["metrics"] and _ORDER[operator](row["metrics"][name], value),
        )
    name = draw(st.sampled_from(["city", "home city", "nothing"]))
    shown = f"metadata.{name}" if name != "home city" else 'metadata."home city"'
    value: Any = draw(st.sampled_from([*CITIES, 0, 1, 2.5, True, False, None]))
    said = "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    said = quoted(value) if isinstance(value, str) else said

    def holds(row: dict[str, Any]) -> bool:
        found = row["metadata"].get(name)
        if value is None:
            return found is None
        kinds = (bool,) if isinstance(value, bool) else (str,) if isinstance(value, str) else (int, float)
        same = isinstance(found, kinds) and (isinstance(value, bool) or not isinstance(found, bool))
        return same and bool(found == value)

    return f"{shown} = {said}", holds


@st.composite
def other_conditions(draw: st.DrawFn) -> Condition:
    kind = draw(st.sampled_from(["words", "age", "flag"]))
    if kind == "age":
        return "age < 1h", lambda row: NOW - row["created_at"] < 3600
    if kind == "flag":
        return turned("flag != good", lambda row: bool(row["flag"] == "good"))
    words = draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=2))
    shown = " ".join(words).upper().replace("GRÖSSE", "GROßE")
    return f"text ~ {quoted(shown)}", lambda row: set(words) <= row["words"]


def conditions() -> st.SearchStrategy[Condition]:
    leaves = st.one_of(number_conditions(), text_conditions(), data_conditions(), other_conditions())
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.tuples(inner, inner).map(
                lambda two: (f"({two[0][0]} and {two[1][0]})", lambda row: two[0][1](row) and two[1][1](row))
            ),
            st.tuples(inner, inner).map(
                lambda two: (f"({two[0][0]} OR {two[1][0]})", lambda row: two[0][1](row) or two[1][1](row))
            ),
            inner.map(lambda one: turned(f"not ({one[0]})", one[1])),
        ),
        max_leaves=6,
    )


@given(condition=conditions())
@settings(max_examples=150, deadline=None)
def test_sql_finds_what_a_direct_evaluation_finds(rollouts: Rollouts, condition: Condition) -> None:
    text, holds = condition
    assert rollouts.found(text) == [row["id"] for row in rollouts.rows if holds(row)], text


PIECES = [
    "reward",
    "status",
    "metrics.a",
    'metadata."b c"',
    "text",
    "<",
    "=",
    "!=",
    "~",
    "in",
    "not",
    "and",
    "or",
    "(",
    ")",
]
PIECES += [
    ",",
    "1",
    "-2.5e3",
    "9k",
    "1e999",
    '"a',
    "'b'",
    "none",
    "true",
    "trained",
    "\\",
    "$",
    "é",
    "\x00",
    " ",
    "5m",
]


@given(text=st.one_of(st.text(max_size=60), st.lists(st.sampled_from(PIECES), max_size=12).map(" ".join)))
@settings(max_examples=120, deadline=None)
def test_nothing_but_invalid_input_is_raised(rollouts: Rollouts, text: str) -> None:
    with contextlib.suppress(InvalidInput):
        rollouts.found(text)


@pytest.mark.parametrize(
    ("text", "at", "why", "hint"),
    [
        ("rewrad < 0", 1, "there is no 'rewrad'", "did you mean reward?"),
        ("reward < 0 and tool_eror > 0", 16, "there is no 'tool_eror'", "did you mean tool_errors?"),
        ("reward", 7, "expected a comparison behind reward, found its end", "comparisons are"),
        ("reward < ", 10, "expected a value, found its end", ""),
        ("reward ! 0", 8, "'!' means nothing here", "quotation marks"),
        ('scenario = "a', 12, "a quotation mark is missing", ""),
        ("reward < abc", 10, "reward is a number, 'abc' is none", ""),
        ("reward ~ 1", 10, "reward is a number", "use = "),
        ("status < trained", 10, "status is a text", "use = or ~"),
        ("status = traned", 10, "there is no status 'traned'", "did you mean trained?"),
        ("(reward < 0", 12, "expected ) for the ( at character 1, found its end", ""),
        ("reward < 0 reward > 1", 12, "'reward' is too much", "and, or"),
        ("reward < 9parsecs", 10, "has no unit that is known", "units are"),
        ("reward < 1e999", 10, "too large", ""),
        ('created_at > "soon"', 14, "is no date", "age < 2h"),
        ("reward in 1", 11, "expected ( and a list, found '1'", ""),
        ("text = kettle", 8, "text is searched for words", "text ~"),
        ("metrics. > 1", 8, "'.' means nothing here", ""),
    ],
)
def test_errors_say_where_and_what_was_meant(text: str, at: int, why: str, hint: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse(text)
    assert caught.value.message.startswith(f"filter, character {at}: "), caught.value.message
    assert why in caught.value.message
    assert hint in caught.value.hint


LOGGED = Names(metrics=frozenset({"right", "city", "reward", "Mixed"}), metadata=frozenset({"city", "town"}))


def test_a_bare_name_is_a_metric_of_the_run_where_it_can_be_nothing_else() -> None:
    assert parse("right = 0 and Mixed > 1", LOGGED) == parse("metrics.right = 0 and metrics.Mixed > 1")
    assert parse("reward > 1", LOGGED) == parse("reward > 1"), "a column comes first"


@pytest.mark.parametrize(
    ("text", "why", "hint"),
    [
        ("reward > 0 and righ = 0", "character 16: there is no 'righ'", "did you mean metrics.right?"),
        ("mixed = 0", "there is no 'mixed'", "did you mean metrics.Mixed?"),
        ("rewrad = 0", "there is no 'rewrad'", "did you mean reward?"),
        ("city = 1", "city is a metric and metadata", "write metrics.city or metadata.city"),
        ("town = Oslo", "town is metadata", "did you mean metadata.town?"),
    ],
)
def test_a_bare_name_that_is_no_metric_is_told(text: str, why: str, hint: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse(text, LOGGED)
    assert why in caught.value.message
    assert caught.value.hint == hint


def test_bounds() -> None:
    for text in (
        "(" * 60 + "reward < 0" + ")" * 60,
        "not " * 60 + "reward < 0",
        " or ".join(["reward<0"] * 101),
        "x" * 2001,
    ):
        with pytest.raises(InvalidInput):
            parse(text)
    assert parse("   ") is None
    assert parse(" or ".join(["reward<0"] * 100)) is not None


def test_dates(rollouts: Rollouts) -> None:
    early = [row["id"] for row in rollouts.rows if row["created_at"] < 3600]
    for date in ('"1970-01-01 01:00"', "1970-01-01T01:00:00Z", '"1970-01-01 02:00+01:00"', "3600"):
        assert rollouts.found(f"created_at < {date}") == early


def test_a_search_is_words_phrases_and_beginnings() -> None:
    assert terms('refund "out of stock" deliver* get_weather') == [
        '"refund"', '"out of stock"', '"deliver"*', '"get_weather"',
    ]  # fmt: skip
    assert terms('a AND NOT "b') == ['"a"', '"AND"', '"NOT"', '"b"'], "nothing is an operator of the index"
    for nothing in ("", "  ", '"', "***", "- ( )"):
        with pytest.raises(InvalidInput):
            terms(nothing)


def test_every_name_is_a_column(rollouts: Rollouts) -> None:
    for name, kind in FIELDS.items():
        value = {"number": "1", "time": "1", "text": '"x"', "words": "x"}[kind]
        operator = "~" if kind in ("text", "words") else "="
        rollouts.found(f"{name} {operator} {value}")


def test_the_page_about_it_is_true(rollouts: Rollouts) -> None:
    text = (
        (Path(__file__).resolve().parents[2] / "docs" / "dashboard.md").read_text().partition("## Filters")[2]
    )
    examples = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    assert len(examples) == 4
    for example in examples:
        rollouts.found(example)
    named = set(re.findall(r"`(\w+)`", text))
    shorter = {full: short for short, full in OTHER_NAMES.items()}
    for name in FIELDS:
        assert {name, shorter.get(name, name)} & named, name
