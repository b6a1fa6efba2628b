"""Qwen3-Coder, Qwen3.5 and later, Nemotron 3: calls as nested tags, values as bare text.

    <tool_call>
    <function=get_weather>
    <parameter=city>
    Paris
    </parameter>
    </function>
    </tool_call>

A value goes up to the closing tag behind which the next parameter or the function's end stands, so that it may
hold the tag itself. One line break at each end of a value belongs to the format.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from art.tokens.parsers.base import Offered, Taken
from art.tokens.parsers.typed import typed

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION, _END = "<function=", "</function>"
_HEAD = re.compile(r"(<tool_call>)?\s*<function=([^>\n]+)>")
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>")
_VALUE_END = re.compile(r"</parameter>(?=\s*(?:<parameter=[^>\n]+>|</function>))")


@dataclass(frozen=True, slots=True)
class Qwen3Coder:
    """The form. The outer tags may be missing, as they are in many of these models' answers."""

    opens: tuple[str, ...] = (OPEN, _FUNCTION)
    closes: tuple[str, ...] = (CLOSE, _END)

    def leads(self, text: str) -> bool | None:
        return False

    def read(self, text: str, offered: Offered, *, final: bool) -> Taken | None:
        refused = Taken(len(OPEN if text.startswith(OPEN) else _FUNCTION))
        head = _HEAD.match(text)
        if head is None:
            return refused
        name = head[2].strip()
        arguments: dict[str, Any] = {}
        at = head.end()
        while parameter := _PARAMETER.match(text, at):
            end = _VALUE_END.search(text, parameter.end())
            if end is None:
                return refused if final else None
            key = parameter[1].strip()
            value = _unwrapped(text[parameter.end() : end.start()])
            arguments[key] = typed(value, offered.schema(name, key))
            at = end.end()
        tags = (_END, CLOSE) if head[1] else (_END,)
        closed = closing(text, at, tags, final=final)
        if closed is None:
            return None
        call = offered.call(name, arguments) if closed >= 0 else None
        return Taken(closed, [call]) if call is not None else refused


def closing(text: str, at: int, tags: tuple[str, ...], *, final: bool) -> int | None:
    """Where the closing tags at `at` end; -1 where something else stands there, None where more text is needed.

    At the completion's end the last tag may be missing: the end of turn can take its place.
    """
    for number, tag in enumerate(tags):
        rest = text[at:].lstrip()
        if rest.startswith(tag):
            at = len(text) - len(rest) + len(tag)
        elif not final and (tag.startswith(rest) or "<parameter=".startswith(rest)):
            return None
        elif final and not rest and number == len(tags) - 1:
            return len(text)
        else:
            return -1
    return at


def _unwrapped(value: str) -> str:
    return value.removeprefix("\n").removesuffix("\n")
