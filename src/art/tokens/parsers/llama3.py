"""Llama 3.1 and 3.2: the completion is `{"name": ..., "parameters": {...}}`, several separated by `;`.

`<|python_tag|>` may stand before it. Calls of the built-in tools (`brave_search.call(...)`) stay text.
"""

from __future__ import annotations

from dataclasses import dataclass

from art.tokens.parsers import jsontext
from art.tokens.parsers.base import Offered, Taken
from art.types.messages import ToolCall

TAG = "<|python_tag|>"


@dataclass(frozen=True, slots=True)
class Llama3:
    """The form. A call is certain at the completion's end only: what follows could make it text."""

    opens: tuple[str, ...] = (TAG,)
    closes: tuple[str, ...] = ("}",)

    def leads(self, text: str) -> bool | None:
        return jsontext.leads(text)

    def read(self, text: str, offered: Offered, *, final: bool) -> Taken | None:
        at = len(TAG) if text.startswith(TAG) else 0
        refused = Taken(at or 1)
        calls: list[ToolCall] = []
        while True:
            try:
                data, at = jsontext.value_at(text, at, final=final)
            except jsontext.Unfinished:
                return None
            except jsontext.NoJson:
                return refused
            found = jsontext.calls_of(data, offered)
            if not found:
                return refused
            calls += found
            rest = text[at:].lstrip()
            if not rest:
                return Taken(len(text), calls) if final else None
            if rest[0] != ";":
                return refused
            at = len(text) - len(rest) + 1
            if final and not text[at:].strip():
                return Taken(len(text), calls)
