"""The filter language as SQL over `rollout_facts f` and `rollouts r`, with every value bound. Pure functions.

A comparison with something that is not there is false, and what `not` or `!=` makes of it is true: a rollout
without a reward is in `reward != 1` and in `not reward > 0`, as a reader of the words expects, and not in neither, as in SQL.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from art.errors import InvalidInput
from art.store.filter_parse import Both, Either, Node, Not, Test, Value
from art.store.rollout_facts import CALL_BITS

_JOINED = frozenset({"metric", "metadata"})
_OF_ROLLOUTS = frozenset({"reason"})
MOST_WORDS = 20
"""Words and phrases of one search."""
LONGEST_SEARCH = 1000
_TERM = re.compile(r'"(?P<phrase>[^"]*)"(?P<behind>\*?)|(?P<word>[^\s"]+)')


@dataclass(slots=True)
class Where:
    """Conditions and the values for their question marks, in order."""

    conditions: list[str] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    joins: bool = False
    """They ask for columns of `rollouts r`."""

    def add(self, condition: str, *values: Value) -> None:
        self.conditions.append(condition)
        self.values += values

    def filter(self, node: Node | None, *, now: float) -> None:
        """The rows for which the filter holds; `now` is what ages are counted from, Unix time."""
        if node is not None:
            self.conditions.append(self._sql(node, now))

    def search(self, text: str) -> None:
        """The rollouts in which all the words are, in whichever calls."""
        for term in terms(text):
            self.add(_FOUND, term)

    def __str__(self) -> str:
        return " AND ".join(self.conditions) or "1"

    def _sql(self, node: Node, now: float) -> str:
        if isinstance(node, Not):
            return f"NOT {self._sql(node.part, now)}"
        if isinstance(node, Both | Either):
            word = " AND " if isinstance(node, Both) else " OR "
            return f"({word.join(self._sql(part, now) for part in node.parts)})"
        self.joins |= node.kind in _JOINED or node.field in _OF_ROLLOUTS
        if node.operator in ("!=", "!~", "not in"):
            positive: dict[str, str] = {"!=": "=", "!~": "~", "not in": "in"}
            turned = Test(node.field, node.kind, positive[node.operator], node.values)  # type: ignore[arg-type]
            return f"NOT {self._test(turned, now)}"
        return self._test(node, now)

    def _test(self, test: Test, now: float) -> str:
        if test.operator == "in":
            parts = [self._test(Test(test.field, test.kind, "=", (value,)), now) for value in test.values]
            return f"({' OR '.join(parts)})"
        if test.kind == "words":
            found = terms(str(test.values[0]))
            self.values += found
            return f"({' AND '.join(_FOUND for _ in found)})"
        return _WAYS.get(test.kind, _plain)(self, test, now)


_FOUND = f"f.id IN (SELECT rowid >> {CALL_BITS} FROM rollout_words WHERE rollout_words MATCH ?)"


def _plain(where: Where, test: Test, now: float) -> str:
    column = f"r.{test.field}" if test.field in _OF_ROLLOUTS else f"f.{test.field}"
    if test.field == "age":
        where.values.append(now)
        column = "(? - f.created_at)"
    return _compared(where, column, test)


def _compared(where: Where, column: str, test: Test) -> str:
    (value,) = test.values
    if value is None:
        return f"({column} IS NULL)"
    where.values.append(value)
    if test.operator == "~":
        return f"COALESCE(instr(lower({column}), lower(?)) > 0, 0)"
    return f"COALESCE({column} {test.operator} ?, 0)"


def _metric(where: Where, test: Test, now: float) -> str:
    where.values.append(path_of(test.field))
    return _compared(where, "json_extract(r.metrics, ?)", test)


def _metadata(where: Where, test: Test, now: float) -> str:
    """Numbers are compared with numbers, texts with texts, true and false with themselves."""
    path, (value,) = path_of(test.field), test.values
    where.values.append(path)
    if value is None:
        return "(json_extract(r.metadata, ?) IS NULL)"
    if isinstance(value, bool):
        return f"COALESCE(json_type(r.metadata, ?) = '{'true' if value else 'false'}', 0)"
    types = "'text'" if isinstance(value, str) else "'integer', 'real'"
    where.values.append(path)
    return (
        f"(COALESCE(json_type(r.metadata, ?) IN ({types}), 0)"
        f" AND {_compared(where, 'json_extract(r.metadata, ?)', test)})"
    )


_WAYS: dict[str, Callable[[Where, Test, float], str]] = {"metric": _metric, "metadata": _metadata}


def path_of(name: str) -> str:
    """The JSON path of a member of an object. The parser lets no quotation mark and no backslash through."""
    return f'$."{name}"'


def terms(text: str) -> list[str]:
    """The words and phrases of a search, each as a query of the index: `order "out of stock" refund*`.

    A star at the end finds whatever begins so. Case and accents do not count. InvalidInput where nothing is left to look for.
    """
    if len(text) > LONGEST_SEARCH:
        raise InvalidInput(
            f"the search has {len(text)} characters", hint=f"at most {LONGEST_SEARCH} are read"
        )
    found: list[str] = []
    for match in _TERM.finditer(text):
        said = match["phrase"] if match["phrase"] is not None else match["word"]
        begins = bool(match["behind"]) or (match["phrase"] is None and said.endswith("*"))
        said = said.replace("\0", " ").rstrip("*")
        if any(letter.isalnum() for letter in said):  # the index knows letters and digits alone
            found.append(f'"{said}"{"*" if begins else ""}')
    if not found:
        raise InvalidInput("the search has no words", hint='for instance: refund "out of stock" deliver*')
    if len(found) > MOST_WORDS:
        raise InvalidInput(f"the search has {len(found)} words", hint=f"at most {MOST_WORDS} are looked for")
    return found
