"""Gemma: `call:name{key:value,...}` between marks, strings between quote marks of their own.

FunctionGemma writes `<start_function_call>call:name{city:<escape>Paris<escape>}<end_function_call>`,
Gemma 4 `<|tool_call>call:name{city:<|"|>Paris<|"|>,days:3}<tool_call|>`. The values are numbers, booleans, null,
strings, and lists and objects of them; keys stand bare, inside lists and objects they may be quoted.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from art.tokens.parsers.base import Offered, Taken
from art.tokens.parsers.jsontext import NoJson, Unfinished
from art.tokens.parsers.typed import kinds_of, typed

_WORD = re.compile(r"\S")
_KEY_END, _VALUE_END = re.compile(":"), re.compile(r"[,}\]]")
_NAME = re.compile(r"\s*call:\s*([^\s{]+)\s*(?=\{)")


@dataclass(frozen=True, slots=True)
class Gemma:
    """The form, for one family's marks."""

    opening: str = "<|tool_call>"
    closing: str = "<tool_call|>"
    quote: str = '<|"|>'

    @property
    def opens(self) -> tuple[str, ...]:
        return (self.opening,)

    @property
    def closes(self) -> tuple[str, ...]:
        return (self.closing,)

    def leads(self, text: str) -> bool | None:
        return False

    def read(self, text: str, offered: Offered, *, final: bool) -> Taken | None:
        refused = Taken(len(self.opening))
        head = _NAME.match(text, len(self.opening))
        if head is None:
            return refused
        try:
            reader = _Reader(text, head.end(), self.quote)
            arguments = reader.object(lambda key: offered.schema(head[1], key))
        except Unfinished:
            return refused if final else None
        except (NoJson, RecursionError):
            return refused
        rest = text[reader.at :].lstrip()
        if rest.startswith(self.closing):
            length = len(text) - len(rest) + len(self.closing)
        elif final and not rest:
            length = len(text)
        else:
            return None if not final and self.closing.startswith(rest) else refused
        call = offered.call(head[1], arguments)
        return Taken(length, [call]) if call is not None else refused


class _Reader:
    """Reads the arguments. Unfinished where the text ends too early, NoJson where it cannot be read."""

    def __init__(self, text: str, at: int, quote: str) -> None:
        self.text = text
        self.at = at
        self._quote = quote

    def object(self, schema_of: Any = None) -> dict[str, Any]:
        """`{key:value,...}`; `schema_of` gives the schema of a key's value."""
        self._expect("{")
        out: dict[str, Any] = {}
        if self._peek() == "}":
            self.at += 1
            return out
        while True:
            key = self._string() if self._quoted() else self._until(_KEY_END).strip()
            self._expect(":")
            out[key] = self._value(schema_of(key) if schema_of is not None else {})
            if self._next(",}") == "}":
                return out

    def _list(self) -> list[Any]:
        self._expect("[")
        out: list[Any] = []
        if self._peek() == "]":
            self.at += 1
            return out
        while True:
            out.append(self._value({}))
            if self._next(",]") == "]":
                return out

    def _value(self, schema: Any) -> Any:
        if self._quoted():
            return self._string()
        start = self._peek()
        if start == "{":
            return self.object()
        if start == "[":
            return self._list()
        bare = self._until(_VALUE_END).strip()
        if not bare:
            raise NoJson("a value is missing")
        if kinds_of(schema):
            return typed(bare, schema)
        try:
            return json.loads(bare)
        except ValueError:
            return bare

    def _quoted(self) -> bool:
        self._peek()
        return self.text.startswith(self._quote, self.at)

    def _string(self) -> str:
        start = self.at + len(self._quote)
        end = self.text.find(self._quote, start)
        if end < 0:
            raise Unfinished
        self.at = end + len(self._quote)
        return self.text[start:end]

    def _until(self, ends: re.Pattern[str]) -> str:
        """The text up to one of the characters."""
        found = ends.search(self.text, self.at)
        if found is None:
            raise Unfinished
        start, self.at = self.at, found.start()
        return self.text[start : self.at]

    def _peek(self) -> str:
        """The next character that is no white space."""
        found = _WORD.search(self.text, self.at)
        if found is None:
            raise Unfinished
        self.at = found.start()
        return found[0]

    def _next(self, allowed: str) -> str:
        found = self._peek()
        if found not in allowed:
            raise NoJson(f"{found!r} instead of one of {allowed!r}")
        self.at += 1
        return found

    def _expect(self, character: str) -> None:
        self._next(character)
