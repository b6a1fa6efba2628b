"""Mistral: `[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]`, since 2025 `[TOOL_CALLS]name[ARGS]{...}`.

Some versions write `[CALL_ID]id` behind the name; the id is not kept, every call gets one of ours.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from art.tokens.parsers import jsontext
from art.tokens.parsers.base import Offered, Taken

TAG, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_HEAD = re.compile(r"\s*([^\s\[\]{}]+)\s*(?:\[CALL_ID\]\s*[^\s\[\]{}]*\s*)?(?:\[ARGS\])?\s*(?=\{)")


@dataclass(frozen=True, slots=True)
class Mistral:
    """The form, both ways of writing."""

    opens: tuple[str, ...] = (TAG,)
    closes: tuple[str, ...] = ("}", "]")

    def leads(self, text: str) -> bool | None:
        return False

    def read(self, text: str, offered: Offered, *, final: bool) -> Taken | None:
        refused = Taken(len(TAG))
        rest = text[len(TAG) :].lstrip()
        if not rest:
            return refused if final else None
        start, name = len(TAG), None
        if rest[0] not in "[{":
            head = _HEAD.match(text, start)
            if head is None:
                return refused if final or "{" in rest else None
            start, name = head.end(), head[1]
        try:
            data, end = jsontext.value_at(text, start, final=final)
        except jsontext.Unfinished:
            return None
        except jsontext.NoJson:
            return refused
        if name is not None:
            call = offered.call(name, data)
            return Taken(end, [call]) if call is not None else refused
        calls = jsontext.calls_of(data, offered)
        return Taken(end, calls) if calls else refused
