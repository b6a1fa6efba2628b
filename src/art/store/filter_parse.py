"""The filter language, read: `reward < 0 and (tool_errors > 0 or status = agent_error)` as a tree. Pure functions.

    filter     = any ;
    any        = all , { "or" , all } ;
    all        = not , { "and" , not } ;
    not        = "not" , not | "(" , any , ")" | comparison ;
    comparison = name , ( "=" | "!=" | "<" | "<=" | ">" | ">=" | "~" | "!~" ) , value
               | name , [ "not" ] , "in" , "(" , value , { "," , value } , ")" ;
    value      = number | text in quotes | word | "true" | "false" | "none" ;

Positions in errors count characters from 1.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, NoReturn

from art.errors import InvalidInput
from art.types.policy import Purpose, RolloutStatus

LONGEST = 2000
"""Characters of a filter."""
MOST_CONDITIONS = 100
DEEPEST = 50
"""Parentheses and `not`s inside one another."""

Kind = Literal["number", "time", "text", "words", "metric", "metadata"]
Value = float | int | str | bool | None
Operator = Literal["=", "!=", "<", "<=", ">", ">=", "~", "!~", "in", "not in"]

FIELDS: dict[str, Kind] = {
    **dict.fromkeys(("reward", "advantage", "step", "batch", "member", "calls", "seconds", "age"), "number"),
    **dict.fromkeys(("prompt_tokens", "sampled_tokens", "tool_calls", "tool_errors"), "number"),
    "created_at": "time",
    **dict.fromkeys(("status", "purpose", "flag", "reason", "rollout_id", "scenario_id", "group_id"), "text"),
    "text": "words",
}
"""What can be asked for, besides `metrics.NAME` and `metadata.NAME`."""
OTHER_NAMES = {"scenario": "scenario_id", "group": "group_id", "id": "rollout_id", "tokens": "sampled_tokens"}
CHOICES: dict[str, tuple[str, ...]] = {
    "status": tuple(RolloutStatus),
    "purpose": tuple(Purpose),
    "flag": ("good", "bad", "check"),
}
"""Texts of which only these are possible."""
_UNITS = {"k": 1e3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
"""Behind a number: thousands, and lengths of time in seconds."""
_TOKEN = re.compile(
    r"""\s*(?:
        (?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)(?P<unit>[A-Za-z]*)(?![\w.:/@-])
      | (?P<quoted>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
      | (?P<word>[\w$](?:[\w$./:@#-]*[\w$])?(?:\."(?:[^"\\]|\\.)*")?)
      | (?P<sign><=|>=|!=|!~|==|=|<|>|~|\(|\)|,)
    )""",
    re.VERBOSE,
)
TokenKind = Literal["number", "quoted", "word", "sign", "end"]
_KINDS: tuple[TokenKind, ...] = ("number", "quoted", "word", "sign")
_OPERATORS: tuple[Operator, ...] = ("=", "!=", "<", "<=", ">", ">=", "~", "!~")
_WORDS_OF_LOGIC = ("and", "or", "not", "in")


@dataclass(frozen=True, slots=True)
class Test:
    """One comparison."""

    field: str
    """A name of FIELDS, or what follows `metrics.` or `metadata.`."""
    kind: Kind
    operator: Operator
    values: tuple[Value, ...]
    """One; of `in` at least one."""


@dataclass(frozen=True, slots=True)
class Not:
    part: Node


@dataclass(frozen=True, slots=True)
class Both:
    """All of the parts hold."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Either:
    """One of the parts holds."""

    parts: tuple[Node, ...]


Node = Test | Not | Both | Either


@dataclass(frozen=True, slots=True)
class _Token:
    kind: TokenKind
    text: str
    at: int
    """Position, from 1."""
    unit: str = ""

    @property
    def shown(self) -> str:
        return "its end" if self.kind == "end" else repr(f"{self.text}{self.unit}"[:40])


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What the program logs with its rollouts."""

    metrics: frozenset[str] = frozenset()
    metadata: frozenset[str] = frozenset()


def parse(text: str, names: Names = Names()) -> Node | None:
    """The filter's tree; None for one that says nothing. InvalidInput with the position of what cannot be read.

    A bare name that is none of FIELDS is a metric of `names`, if no metadata are called so too.
    """
    if len(text) > LONGEST:
        raise InvalidInput(f"the filter has {len(text)} characters", hint=f"at most {LONGEST} are read")
    tokens = _tokens(text)
    if tokens[0].kind == "end":
        return None
    return _Reader(tokens, names).read()


def _fail(at: int, why: str, hint: str = "") -> NoReturn:
    raise InvalidInput(
        f"filter, character {at}: {why}", hint=hint or "for instance: reward < 0 and tool_errors > 0"
    )


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    at = 0
    end = len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            place = at + len(text[at:]) - len(text[at:].lstrip())
            quoted = text[place] in "\"'"
            _fail(
                place + 1,
                "a quotation mark is missing" if quoted else f"{text[place]!r} means nothing here",
                "put texts with blanks or signs in quotation marks",
            )
        kind: TokenKind = next(name for name in _KINDS if match[name] is not None)
        found.append(_Token(kind, match[kind], match.start(kind) + 1, match["unit"] or ""))
        at = match.end()
    return [*found, _Token("end", "", len(text) + 1)]


class _Reader:
    """Recursive descent over the tokens."""

    def __init__(self, tokens: Sequence[_Token], names: Names) -> None:
        self._tokens = tokens
        self._names = names
        self._at = 0
        self._conditions = 0

    def read(self) -> Node:
        node = self._any(0)
        if self._next.kind != "end":
            _fail(self._next.at, f"{self._next.shown} is too much", "join conditions with and, or")
        return node

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _take(self) -> _Token:
        token = self._next
        if token.kind != "end":
            self._at += 1
        return token

    def _word(self, *words: str) -> bool:
        """Take one of these words of logic, if it is next."""
        if self._next.kind == "word" and self._next.text.lower() in words:
            self._at += 1
            return True
        return False

    def _sign(self, sign: str) -> bool:
        if self._next.kind == "sign" and self._next.text == sign:
            self._at += 1
            return True
        return False

    def _any(self, depth: int) -> Node:
        parts = [self._all(depth)]
        while self._word("or"):
            parts.append(self._all(depth))
        return parts[0] if len(parts) == 1 else Either(tuple(parts))

    def _all(self, depth: int) -> Node:
        parts = [self._one(depth)]
        while self._word("and"):
            parts.append(self._one(depth))
        return parts[0] if len(parts) == 1 else Both(tuple(parts))

    def _one(self, depth: int) -> Node:
        if depth > DEEPEST:
            _fail(self._next.at, f"more than {DEEPEST} parentheses inside one another")
        if self._word("not"):
            return Not(self._one(depth + 1))
        if self._sign("("):
            opened = self._tokens[self._at - 1].at
            node = self._any(depth + 1)
            if not self._sign(")"):
                _fail(self._next.at, f"expected ) for the ( at character {opened}, found {self._next.shown}")
            return node
        return self._comparison()

    def _comparison(self) -> Test:
        name = self._take()
        if name.kind != "word":
            _fail(name.at, f"expected a name, found {name.shown}", f"names are: {', '.join(FIELDS)}")
        field, kind = _field(name, self._names)
        self._conditions += 1
        if self._conditions > MOST_CONDITIONS:
            _fail(name.at, f"more than {MOST_CONDITIONS} conditions")
        sign = self._take()
        if sign.kind == "word" and sign.text.lower() == "not" and self._word("in"):
            return self._list(field, kind, "not in", name)
        if sign.kind == "word" and sign.text.lower() == "in":
            return self._list(field, kind, "in", name)
        operator = _operator(sign, name)
        value = _value(self._take(), field, kind, operator)
        return Test(field, kind, operator, (value,))

    def _list(self, field: str, kind: Kind, operator: Operator, name: _Token) -> Test:
        if kind == "words":
            _fail(name.at, "text is searched for words", 'for instance: text ~ "out of stock"')
        if not self._sign("("):
            _fail(self._next.at, f"expected ( and a list, found {self._next.shown}")
        values = [_value(self._take(), field, kind, "=")]
        while self._sign(","):
            values.append(_value(self._take(), field, kind, "="))
        if not self._sign(")"):
            _fail(self._next.at, f"expected , or ), found {self._next.shown}")
        return Test(field, kind, operator, tuple(values))


def _field(name: _Token, logged: Names) -> tuple[str, Kind]:
    text = name.text
    for prefix, kind in (("metrics.", "metric"), ("metadata.", "metadata")):
        if text.startswith(prefix):
            rest = text.removeprefix(prefix)
            if rest.startswith('"'):
                rest = _unquoted(rest)
            if not rest or any(letter in '"\\' or ord(letter) < 32 for letter in rest):
                _fail(name.at, f"{text!r} names nothing", 'for instance: metrics.turns, metadata."home city"')
            return rest, "metric" if kind == "metric" else "metadata"
    known = OTHER_NAMES.get(text.lower(), text.lower())
    if known in FIELDS:
        return known, FIELDS[known]
    if text in logged.metrics and text in logged.metadata:
        _fail(name.at, f"{text} is a metric and metadata", f"write metrics.{text} or metadata.{text}")
    if text in logged.metrics:
        return text, "metric"
    if text in logged.metadata:
        _fail(name.at, f"{text} is metadata", f"did you mean metadata.{text}?")
    full = {metric.lower(): f"metrics.{metric}" for metric in logged.metrics}
    full |= {other: other for other in (*FIELDS, *OTHER_NAMES)}
    close = difflib.get_close_matches(text.lower(), full, n=1)
    hint = f"did you mean {full[close[0]]}?" if close else f"names are: {_names()}"
    _fail(name.at, f"there is no {text!r}", hint)


def _names() -> str:
    return ", ".join((*FIELDS, "metrics.NAME", "metadata.NAME"))


def _meant(text: str, options: Iterable[str], otherwise: str) -> str:
    close = difflib.get_close_matches(text.lower(), list(options), n=1)
    return f"did you mean {close[0]}?" if close else otherwise


def _operator(sign: _Token, name: _Token) -> Operator:
    text = "=" if sign.text == "==" else sign.text
    for operator in _OPERATORS:
        if sign.kind == "sign" and text == operator:
            return operator
    _fail(
        sign.at,
        f"expected a comparison behind {name.text}, found {sign.shown}",
        "comparisons are: = != < <= > >= ~ !~ in; ~ is for a part of a text",
    )


def _value(token: _Token, field: str, kind: Kind, operator: Operator) -> Value:
    if token.kind not in ("number", "quoted", "word") or (
        token.kind == "word" and token.text.lower() in _WORDS_OF_LOGIC
    ):
        _fail(token.at, f"expected a value, found {token.shown}")
    orders, finds = operator in ("<", "<=", ">", ">="), operator in ("~", "!~")
    if token.kind == "word" and token.text.lower() in ("none", "null"):
        if orders or finds or kind == "words":
            _fail(token.at, f"{operator} compares with no none", "use = none or != none")
        return None
    if kind in ("number", "metric", "time"):
        if finds:
            _fail(token.at, f"{field} is a number", "~ is for texts; use = != < <= > >=")
        return _time(token) if kind == "time" else _number(token, field)
    if kind == "metadata" and not finds:
        return _datum(token, orders=orders)
    if orders:
        _fail(token.at, f"{field} is a text", "use = or ~")
    if kind == "words" and not finds:
        _fail(token.at, "text is searched for words", 'for instance: text ~ "out of stock"')
    text = _text(token)
    if field in CHOICES and not finds and text not in CHOICES[field]:
        options = CHOICES[field]
        _fail(
            token.at, f"there is no {field} {text!r}", _meant(text, options, f"one of: {', '.join(options)}")
        )
    return text


def _datum(token: _Token, *, orders: bool) -> Value:
    """A value of metadata, of which only what is written here tells the type."""
    if token.kind == "number":
        return _number(token, "metadata")
    if orders:
        _fail(token.at, f"{token.shown} is no number", "< and > compare numbers")
    if token.kind == "word" and token.text.lower() in ("true", "false"):
        return token.text.lower() == "true"
    return _text(token)


def _number(token: _Token, field: str) -> float | int:
    if token.kind == "word" and token.text.lower() in ("true", "false"):
        return int(token.text.lower() == "true")
    if token.kind != "number":
        _fail(token.at, f"{field} is a number, {token.shown} is none")
    unit = _UNITS.get(token.unit.lower()) if token.unit else None
    if token.unit and unit is None:
        _fail(token.at, f"{token.shown} has no unit that is known", f"units are: {', '.join(_UNITS)}")
    if unit is None and re.fullmatch(r"[-+]?\d{1,18}", token.text):
        return int(token.text)
    number = float(token.text) * (unit or 1.0)
    if not math.isfinite(number):
        _fail(token.at, f"{token.shown} is too large")
    return number


def _time(token: _Token) -> float:
    """A date in ISO 8601, in UTC unless it says otherwise, or seconds since 1970."""
    if token.kind == "number" and not token.unit:
        return float(_number(token, "created_at"))
    try:
        found = datetime.fromisoformat(_text(token))
        return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        _fail(
            token.at,
            f"{token.shown} is no date",
            'for instance: created_at > "2026-11-30 14:00" (in UTC), or age < 2h',
        )


def _text(token: _Token) -> str:
    text = f"{token.text}{token.unit}" if token.kind == "number" else token.text
    return _unquoted(text) if token.kind == "quoted" else text


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1], flags=re.DOTALL)
