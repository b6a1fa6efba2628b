"""What every format shares: text in, pieces out, calls found between marks.

A format (`Form`) knows its marks and reads one call from a text that starts with one. Everything else is the
same for all of them and stands here: holding back what may still become a mark, the white space around calls,
and that a call which is not well formed, or calls a function nobody offered, is text exactly as it was sampled.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from art.types.messages import FunctionCall, Piece, Tool, ToolCall

_MANY_TRIES = 32
_GROWTH = 1.25
"""Behind this many ends that were none, a call is looked at again when it has grown by this factor: a text of
nothing but ends would take time that grows with its square."""


class OutputParser(Protocol):
    """A completion's text in; text, reasoning and whole tool calls out. However the text is cut, the pieces are the same."""

    def feed(self, text: str) -> list[Piece]:
        """The pieces that have become certain."""
        ...

    def finish(self) -> list[Piece]:
        """What was held back, at the end of the completion. A call that is not well formed is text."""
        ...


class PlainText:
    """Text as it is."""

    def feed(self, text: str) -> list[Piece]:
        return [text] if text else []

    def finish(self) -> list[Piece]:
        return []


@dataclass(frozen=True, slots=True)
class Offered:
    """The functions that may be called, and the JSON schema of their parameters."""

    parameters: Mapping[str, Mapping[str, Any]]

    @classmethod
    def of(cls, tools: Iterable[Tool]) -> Offered:
        """From a request's tools."""
        return cls({tool.function.name: tool.function.parameters or {} for tool in tools})

    def call(self, name: object, arguments: object) -> ToolCall | None:
        """A call with a fresh id; None for a name that was not offered and arguments that are no JSON object."""
        if not isinstance(name, str) or name not in self.parameters or not isinstance(arguments, dict):
            return None
        try:
            text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
            return ToolCall(
                id=f"call_{uuid.uuid4().hex[:24]}", function=FunctionCall(name=name, arguments=text)
            )
        except (ValueError, RecursionError):  # no finite number, half a character, nesting that nobody reads
            return None

    def schema(self, name: str, parameter: str) -> Mapping[str, Any]:
        """The schema of one parameter, {} where it has none."""
        properties = self.parameters.get(name, {}).get("properties")
        found = properties.get(parameter) if isinstance(properties, dict) else None
        return found if isinstance(found, dict) else {}


@dataclass(frozen=True, slots=True)
class Taken:
    """What a form made of the text's beginning."""

    length: int
    """Characters it covers."""
    calls: Sequence[ToolCall] = ()
    """Empty: these characters are text."""


class Form(Protocol):
    """How one format writes calls."""

    @property
    def opens(self) -> tuple[str, ...]:
        """Marks with which a call begins, anywhere in the text."""
        ...

    @property
    def closes(self) -> tuple[str, ...]:
        """Texts without which an unfinished call is not finished."""
        ...

    def leads(self, text: str) -> bool | None:
        """Whether a completion that starts with `text` may be a call without any mark; None: too short to tell."""
        ...

    def read(self, text: str, offered: Offered, *, final: bool) -> Taken | None:
        """The call at the beginning of `text`, which starts with a mark or leads. None: more text is needed.

        `final`: no more will come. The answer must not depend on how much text stands behind the call.
        """
        ...


@dataclass(slots=True)
class CallParser:
    """Text and whole tool calls, in order, for any form.

    Text that may still become a call is held back. White space before the first text and around calls is dropped
    when there are calls.
    """

    form: Form
    offered: Offered
    _pending: str = ""
    _seen: int = 0
    """Characters of `_pending` in which the form has looked for an end already."""
    _tries: int = 0
    """How often the form has looked at the beginning of `_pending` in vain."""
    _tried: int = 0
    """Characters of `_pending` when it last did."""
    _lead: bool | None = None
    """Whether the completion may be a call without a mark; None while that is open."""
    _space: str = ""
    """White space at the start or behind a call: dropped when a call follows, else part of the text."""
    _fresh: bool = True
    _calls: int = field(default=0)

    def feed(self, text: str) -> list[Piece]:
        """The pieces that have become certain."""
        self._pending += text
        return merged(self._advance(final=False))

    def finish(self) -> list[Piece]:
        """What was held back, at the end of the completion."""
        out = self._advance(final=True)
        if self._space and not self._calls:
            out.append(self._space)
        self._space = ""
        return merged(out)

    def _advance(self, *, final: bool) -> list[Piece]:
        out: list[Piece] = []
        if self._lead is None and not self._decide(out, final=final):
            return out
        while self._pending:
            if not self._lead:
                at = first_of(self._pending, self.form.opens)
                cut = at
                if at < 0:
                    cut = len(self._pending) - (0 if final else begun(self._pending, self.form.opens))
                out += self._text(self._pending[:cut])
                self._drop(cut)
                if at < 0:
                    break
            if not final and not self._may_end():
                break
            taken = self.form.read(self._pending, self.offered, final=final)
            if taken is None:
                break
            self._lead = False
            out += self._call(taken.calls) if taken.calls else self._text(self._pending[: taken.length])
            self._drop(taken.length)
        return out

    def _decide(self, out: list[Piece], *, final: bool) -> bool:
        """Whether a call without a mark may begin here has become known."""
        start = self._pending.lstrip()
        lead = self.form.leads(start) if start else None
        if lead is None and not final:
            return False
        self._lead = bool(lead)
        if self._lead:
            out += self._text(self._pending[: len(self._pending) - len(start)])
            self._drop(len(self._pending) - len(start))
        return True

    def _may_end(self) -> bool:
        """Whether anything with which a call ends has come since the form last looked."""
        longest = max((len(close) for close in self.form.closes), default=1)
        fresh = self._pending[max(0, self._seen - longest + 1) :]
        self._seen = len(self._pending)
        ended = not self.form.closes or any(close in fresh for close in self.form.closes)
        if not ended or (self._tries > _MANY_TRIES and len(self._pending) < _GROWTH * self._tried):
            return False
        self._tries += 1
        self._tried = len(self._pending)
        return True

    def _drop(self, length: int) -> None:
        self._pending = self._pending[length:]
        if length:
            self._seen = self._tries = 0

    def _text(self, text: str) -> list[Piece]:
        if not text:
            return []
        if self._fresh and not text.strip():
            self._space += text
            return []
        out, self._space, self._fresh = self._space + text, "", False
        return [out]

    def _call(self, calls: Sequence[ToolCall]) -> list[Piece]:
        self._space, self._fresh = "", True
        self._calls += len(calls)
        return list(calls)


def first_of(text: str, marks: Sequence[str]) -> int:
    """Where the first of the marks stands, -1 without any."""
    return min((at for mark in marks if (at := text.find(mark)) >= 0), default=-1)


def begun(text: str, marks: Sequence[str]) -> int:
    """Length of the longest end of `text` that begins one of the marks."""
    longest = max((len(mark) for mark in marks), default=0)
    for length in range(min(longest - 1, len(text)), 0, -1):
        if any(mark.startswith(text[-length:]) for mark in marks if len(mark) > length):
            return length
    return 0


def merged(pieces: Sequence[Piece]) -> list[Piece]:
    """Neighbouring texts as one."""
    out: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, str) and out and isinstance(out[-1], str):
            out[-1] += piece
        else:
            out.append(piece)
    return out
