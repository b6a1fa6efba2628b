"""LFM2: calls as a list of Python calls, `<|tool_call_start|>[get_weather(city='Paris', days=3)]<|tool_call_end|>`.

A completion that is such a list as a whole counts too. Values are Python's or JSON's literals. The templates of
this format do not escape quotes inside strings, so a string ends at a quote behind which a value can end.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from art.tokens.parsers.base import Offered, Taken
from art.tokens.parsers.jsontext import NoJson, Unfinished
from art.types.messages import ToolCall

OPEN, CLOSE = "<|tool_call_start|>", "<|tool_call_end|>"
_WORD = re.compile(r"\S")
_NAME = re.compile(r"[A-Za-z_][\w.-]*")
_LEAD = re.compile(r"\[\s*[A-Za-z_][\w.-]*\(")
_LEAD_BEGUN = re.compile(r"\[\s*([A-Za-z_][\w.-]*)?")
_BARE = re.compile(r"[^\s,()\[\]{}:='\"]+")
_WORDS = {"True": True, "true": True, "False": False, "false": False, "None": None, "null": None}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "\\": "\\", "'": "'", '"': '"'}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|[ntrbf\\'\"])")


@dataclass(frozen=True, slots=True)
class Pythonic:
    """The form."""

    opens: tuple[str, ...] = (OPEN,)
    closes: tuple[str, ...] = (CLOSE,)

    def leads(self, text: str) -> bool | None:
        if not text.startswith("["):
            return False if text else None
        if _LEAD.match(text):
            return True
        return None if _LEAD_BEGUN.fullmatch(text) else False

    def read(self, text: str, offered: Offered, *, final: bool) -> Taken | None:
        marked = text.startswith(OPEN)
        refused = Taken(len(OPEN) if marked else 1)
        if not marked and not final:
            return None
        reader = _Reader(text, len(OPEN) if marked else 0, offered)
        try:
            calls = reader.calls()
        except Unfinished:
            return refused if final else None
        except (NoJson, RecursionError):
            return refused
        rest = text[reader.at :].lstrip()
        if marked and rest.startswith(CLOSE):
            return Taken(len(text) - len(rest) + len(CLOSE), calls) if calls else refused
        if not final and CLOSE.startswith(rest):
            return None
        return Taken(len(text), calls) if calls and final and not rest else refused


class _Reader:
    """Reads the list. Unfinished where the text ends too early, NoJson where it cannot be read."""

    def __init__(self, text: str, at: int, offered: Offered) -> None:
        self.text = text
        self.at = at
        self._offered = offered

    def calls(self) -> list[ToolCall]:
        """All calls; NoJson where one of them is none."""
        self._take("[")
        out: list[ToolCall] = []
        while True:
            call = self._call()
            if call is None:
                raise NoJson("a function that was not offered")
            out.append(call)
            if self._take(",]") == "]":
                return out

    def _call(self) -> ToolCall | None:
        name = self._name()
        self._take("(")
        arguments: dict[str, Any] = {}
        if self._peek() == ")":
            self.at += 1
            return self._offered.call(name, arguments)
        while True:
            key = self._name()
            self._take("=")
            arguments[key] = self._value()
            if self._take(",)") == ")":
                return self._offered.call(name, arguments)

    def _value(self) -> Any:
        start = self._peek()
        if start in "'\"":
            return self._string()
        if start == "[":
            return self._items("]")
        if start == "{":
            return dict(self._items("}"))
        match = _BARE.match(self.text, self.at)
        if match is None:
            raise NoJson(f"no value begins with {start!r}")
        self.at = match.end()
        if match[0] in _WORDS:
            return _WORDS[match[0]]
        try:
            return json.loads(match[0])
        except ValueError as error:
            raise NoJson(str(error)) from error

    def _items(self, end: str) -> list[Any]:
        """A list's values, or a dict's pairs."""
        self.at += 1
        out: list[Any] = []
        if self._peek() == end:
            self.at += 1
            return out
        while True:
            item = self._value()
            if end == "}":
                if not isinstance(item, str):
                    raise NoJson("a key is no text")
                self._take(":")
                item = (item, self._value())
            out.append(item)
            if self._take("," + end) == end:
                return out

    def _string(self) -> str:
        quote, start = self.text[self.at], self.at + 1
        at = start
        while (at := self.text.find(quote, at)) >= 0:
            back = at
            while back > start and self.text[back - 1] == "\\":
                back -= 1
            if (at - back) % 2 == 0:  # not escaped
                behind = _WORD.search(self.text, at + 1)
                if behind is None:
                    raise Unfinished
                if behind[0] in ",)]}:":
                    self.at = at + 1
                    return _ESCAPE.sub(_unescaped, self.text[start:at])
            at += 1
        raise Unfinished

    def _name(self) -> str:
        self._peek()
        match = _NAME.match(self.text, self.at)
        if match is None:
            raise NoJson("a name is missing")
        self.at = match.end()
        return match[0]

    def _peek(self) -> str:
        """The next character that is no white space."""
        found = _WORD.search(self.text, self.at)
        if found is None:
            raise Unfinished
        self.at = found.start()
        return found[0]

    def _take(self, allowed: str) -> str:
        found = self._peek()
        if found not in allowed:
            raise NoJson(f"{found!r} instead of one of {allowed!r}")
        self.at += 1
        return found


def _unescaped(match: re.Match[str]) -> str:
    code = match[1]
    return chr(int(code[1:], 16)) if code[0] == "u" else _ESCAPES[code]
