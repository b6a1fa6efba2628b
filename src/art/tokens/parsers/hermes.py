"""Hermes and Qwen: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, one block a call.

The closing mark may be missing at the completion's end, where the end of turn can take its place. A completion
that is one JSON value as a whole counts too: small models forget the marks.
"""

from __future__ import annotations

from dataclasses import dataclass

from art.tokens.parsers import jsontext
from art.tokens.parsers.base import Offered, Taken
from art.tokens.parsers.plain_json import whole

OPEN, CLOSE = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True)
class Hermes:
    """The form."""

    opens: tuple[str, ...] = (OPEN,)
    closes: tuple[str, ...] = (CLOSE,)

    def leads(self, text: str) -> bool | None:
        return jsontext.leads(text)

    def read(self, text: str, offered: Offered, *, final: bool) -> Taken | None:
        if not text.startswith(OPEN):
            # Certain at the end only: until then anything may follow the JSON.
            return whole(text, offered) if final else None
        return between(text, OPEN, CLOSE, offered, final=final)


def between(text: str, opening: str, closing: str, offered: Offered, *, final: bool) -> Taken | None:
    """One block `opening JSON closing`; a closing mark inside a JSON string is part of the string."""
    refused = Taken(len(opening))
    try:
        data, end = jsontext.value_at(text, len(opening), final=final)
    except jsontext.Unfinished:
        return None
    except jsontext.NoJson:
        return refused
    rest = text[end:].lstrip()
    if rest.startswith(closing):
        end = len(text) - len(rest) + len(closing)
    elif final and not rest:
        end = len(text)
    elif not final and closing.startswith(rest):
        return None
    else:
        return refused
    calls = jsontext.calls_of(data, offered)
    return Taken(end, calls) if calls else refused
