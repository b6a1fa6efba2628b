"""Plain JSON: the whole completion is `{"name": ..., "arguments": {...}}` or a list of such objects."""

from __future__ import annotations

from dataclasses import dataclass

from art.tokens.parsers import jsontext
from art.tokens.parsers.base import Offered, Taken


@dataclass(frozen=True, slots=True)
class PlainJson:
    """The form."""

    opens: tuple[str, ...] = ()
    closes: tuple[str, ...] = ("}", "]")

    def leads(self, text: str) -> bool | None:
        return jsontext.leads(text)

    def read(self, text: str, offered: Offered, *, final: bool) -> Taken | None:
        if final:
            return whole(text, offered)
        return _or_text(text)


def whole(text: str, offered: Offered) -> Taken:
    """The completion as one JSON value; its first character is text where it is none, so that marks behind it count."""
    try:
        data, end = jsontext.value_at(text, 0, final=True)
    except jsontext.NoJson:
        return Taken(1)
    calls = jsontext.calls_of(data, offered) if not text[end:].strip() else []
    return Taken(len(text), calls) if calls else Taken(1)


def _or_text(text: str) -> Taken | None:
    """Text as soon as more than white space stands behind the JSON, or where it is none."""
    try:
        _, end = jsontext.value_at(text, 0, final=False)
    except jsontext.Unfinished:
        return None
    except jsontext.NoJson:
        return Taken(1)
    return Taken(1) if text[end:].strip() else None
