"""GLM 4.5 and later: `<tool_call>name`, then `<arg_key>` and `<arg_value>` in turn, `</tool_call>`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from art.tokens.parsers.base import Offered, Taken
from art.tokens.parsers.typed import typed

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_HEAD = re.compile(r"<tool_call>\s*([^\s<]+)")
_KEY = re.compile(r"\s*<arg_key>([^<]*)</arg_key>\s*<arg_value>")
_VALUE_END = re.compile(r"</arg_value>(?=\s*(?:<arg_key>|</tool_call>))")


@dataclass(frozen=True, slots=True)
class Glm:
    """The form."""

    opens: tuple[str, ...] = (OPEN,)
    closes: tuple[str, ...] = (CLOSE,)

    def leads(self, text: str) -> bool | None:
        return False

    def read(self, text: str, offered: Offered, *, final: bool) -> Taken | None:
        refused = Taken(len(OPEN))
        head = _HEAD.match(text)
        if head is None:
            return refused
        name = head[1]
        arguments: dict[str, Any] = {}
        at = head.end()
        while key := _KEY.match(text, at):
            end = _VALUE_END.search(text, key.end())
            if end is None:
                return refused if final else None
            arguments[key[1].strip()] = typed(
                text[key.end() : end.start()], offered.schema(name, key[1].strip())
            )
            at = end.end()
        rest = text[at:].lstrip()
        if rest.startswith(CLOSE):
            length = len(text) - len(rest) + len(CLOSE)
        elif final and not rest:
            length = len(text)
        else:
            return refused if final or CLOSE in rest else None
        call = offered.call(name, arguments)
        return Taken(length, [call]) if call is not None else refused
