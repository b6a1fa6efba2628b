"""Harmony, the format of GPT-OSS: messages in channels, calls addressed to `functions.<name>`.

    <|channel|>analysis<|message|>thinking<|end|>
    <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"x": 1}<|call|>
    <|start|>assistant<|channel|>final<|message|>answer<|return|>

The prompt ends with `<|start|>assistant`, so a completion begins inside a message's header. The analysis channel
is reasoning, the final channel and a commentary to nobody are text. What does not follow the format is text as
it was sampled, marks included.
Source: https://cookbook.openai.com/articles/openai-harmony
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from art.tokens.parsers import jsontext
from art.tokens.parsers.base import Offered, begun, first_of
from art.types.messages import Piece, Thought

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
END, CALL, RETURN, CONSTRAIN = "<|end|>", "<|call|>", "<|return|>", "<|constrain|>"
MARKS = (START, CHANNEL, MESSAGE, END, CALL, RETURN, CONSTRAIN)

_TURN = f"{START}assistant"
_ENDS = (END, CALL, RETURN, START)
_HEADER = re.compile(
    r"\s*(?:to=(?P<to>[^\s<]+)\s*)?"
    r"(?:<\|channel\|>(?P<channel>analysis|commentary|final)\s*(?:to=(?P<later>[^\s<]+)\s*)?)?"
    r"(?:<\|constrain\|>\s*)?(?:json|text)?\s*"
)
_LONGEST_HEADER = 200
"""Characters. A function's name has at most 64 with every client; a longer header is none."""
_FUNCTIONS = "functions."


@dataclass(slots=True)
class HarmonyParser:
    """Text, thoughts and calls of one completion."""

    offered: Offered
    _pending: str = ""
    _place: Literal["header", "body", "between", "loose"] = "header"
    _header: str = ""
    """The header of the message that is read, as it was sampled."""
    _kind: Literal["text", "thought", "call"] = "text"
    _name: str = ""
    _said: tuple[bool, bool] = (False, False)
    """Whether there has been text, and reasoning: a further message of the kind starts on a new line."""
    _seen: int = 0
    """Characters of an unfinished call in which there is no mark."""
    _opened: bool = False
    """Whether the current message has said something."""

    def feed(self, text: str) -> list[Piece]:
        """The pieces that have become certain."""
        self._pending += text
        return self._advance(final=False)

    def finish(self) -> list[Piece]:
        """What was held back."""
        out = self._advance(final=True)
        self._pending = ""
        return out

    def _advance(self, *, final: bool) -> list[Piece]:
        out: list[Piece] = []
        steps = {
            "header": self._read_header,
            "body": self._read_body,
            "between": self._read_between,
            "loose": self._read_loose,
        }
        while self._pending and steps[self._place](out, final=final):
            pass
        return out

    # Each step takes over some of `_pending` and returns whether there may be more to do.

    def _read_header(self, out: list[Piece], *, final: bool) -> bool:
        at = self._pending.find(MESSAGE)
        length = len(self._pending) - begun(self._pending, (MESSAGE,)) if at < 0 else at
        start = self._pending.lstrip()
        marks = ("to=", CHANNEL, MESSAGE)
        begins = any(start.startswith(mark) or mark.startswith(start) for mark in marks)
        match = _HEADER.fullmatch(self._pending, 0, length) if at >= 0 else None
        if not begins or length > _LONGEST_HEADER or (final and at < 0) or (at >= 0 and match is None):
            return self._loosen(out)
        if match is None:
            return False
        self._header = self._pending[: at + len(MESSAGE)]
        self._pending = self._pending[len(self._header) :]
        self._place, self._opened = "body", False
        to = match["later"] or match["to"] or ""
        self._name = to.removeprefix(_FUNCTIONS)
        self._kind = "thought" if match["channel"] == "analysis" else "text"
        if to:
            self._kind = "call"
        return True

    def _read_body(self, out: list[Piece], *, final: bool) -> bool:
        # What has been looked through already holds no mark, save the beginning of one.
        seen = max(0, self._seen - max(map(len, _ENDS)))
        at = first_of(self._pending[seen:], _ENDS)
        at += seen if at >= 0 else 0
        self._seen = 0
        if self._kind == "call":
            if at < 0 and not final:
                self._seen = len(self._pending)
                return False
            body = self._pending if at < 0 else self._pending[:at]
            mark = self._mark_at(len(body))
            self._call(out, body, mark)
        else:
            held = 0 if final else begun(self._pending, _ENDS)
            body = self._pending[: len(self._pending) - held] if at < 0 else self._pending[:at]
            self._say(out, body)
            if at < 0:
                self._pending = self._pending[len(body) :]
                return False
            mark = self._mark_at(at)
        self._pending = self._pending[len(body) + len(mark) :]
        self._place = "between"
        return True

    def _mark_at(self, at: int) -> str:
        """The mark that ends a message; the next message's start stays where it is."""
        return next((mark for mark in _ENDS[:3] if self._pending.startswith(mark, at)), "")

    def _call(self, out: list[Piece], body: str, mark: str) -> None:
        try:
            data, end = jsontext.value_at(body, 0, final=True)
        except jsontext.NoJson:
            data, end = None, 0
        call = self.offered.call(self._name, data) if not body[end:].strip() else None
        if call is not None and _FUNCTIONS in self._header:
            out.append(call)
        else:
            self._say(out, self._header + body + mark)

    def _read_between(self, out: list[Piece], *, final: bool) -> bool:
        text = self._pending.lstrip()
        if text.startswith(_TURN):
            self._pending, self._place = text[len(_TURN) :], "header"
            return True
        if not final and _TURN.startswith(text):
            return False
        return self._loosen(out)

    def _loosen(self, out: list[Piece]) -> bool:
        """Not the format: text from here to the next mark behind the first character."""
        self._place, self._kind = "loose", "text"
        self._say(out, self._pending[:1])
        self._pending = self._pending[1:]
        return True

    def _read_loose(self, out: list[Piece], *, final: bool) -> bool:
        marks = (_TURN, CHANNEL)
        at = first_of(self._pending, marks)
        if at >= 0:
            self._say(out, self._pending[:at])
            self._pending, self._place = self._pending[at:], "between"
            if self._pending.startswith(CHANNEL):
                self._place = "header"
            return True
        held = 0 if final else begun(self._pending, marks)
        self._say(out, self._pending[: len(self._pending) - held])
        self._pending = self._pending[len(self._pending) - held :]
        return False

    def _say(self, out: list[Piece], text: str) -> None:
        if not text:
            return
        thought = self._kind == "thought"
        if not self._opened and self._place == "body" and self._said[thought]:
            text = "\n" + text
        self._opened = True
        self._said = (True, self._said[1]) if not thought else (self._said[0], True)
        out.append(Thought(text) if thought else text)
