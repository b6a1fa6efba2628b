"""DeepSeek V3 and R1: blocks of calls with the arguments in a fenced block, or bare behind the name (V3.1).

<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>name
```json
{...}
```<｜tool▁call▁end｜><｜tool▁calls▁end｜>
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from art.tokens.parsers import jsontext
from art.tokens.parsers.base import Offered, Taken
from art.types.messages import ToolCall

BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _SEP, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
MARKS = (BEGIN, END, _CALL, _SEP, _CALL_END)
# Each run of white space has one quantifier (and keeps what it took, `*+`): text of nothing else costs its length.
_HEAD = re.compile(rf"\s*+{_CALL}([^\n<`{{]*+){_SEP}([^\n<`{{]*+)\s*+(?:```(?:json)?\s*+)?(?={{)")
_NAME = re.compile(rf"\s*+{_CALL}([^\n<`{{]*+){_SEP}\s*+(?={{)")
_FOOT = re.compile(rf"\s*+(?:```\s*+)?{_CALL_END}")


@dataclass(frozen=True, slots=True)
class DeepSeek:
    """The form: one block of any number of calls."""

    opens: tuple[str, ...] = (BEGIN,)
    closes: tuple[str, ...] = (END,)

    def leads(self, text: str) -> bool | None:
        return False

    def read(self, text: str, offered: Offered, *, final: bool) -> Taken | None:
        refused = Taken(len(BEGIN))
        calls: list[ToolCall] = []
        at = len(BEGIN)
        while head := _NAME.match(text, at) or _HEAD.match(text, at):
            try:
                data, end = jsontext.value_at(text, head.end(), final=final)
            except jsontext.Unfinished:
                return None
            except jsontext.NoJson:
                return refused
            foot = _FOOT.match(text, end)
            if foot is None:
                return refused if final or END in text[end:] else None
            name = head[1] if head.re is _NAME else head[2]
            call = offered.call(name.strip(), data)
            if call is None:
                return refused
            calls.append(call)
            at = foot.end()
        rest = text[at:].lstrip()
        if rest.startswith(END):
            return Taken(len(text) - len(rest) + len(END), calls) if calls else refused
        if not final and END not in rest:
            return None
        return Taken(len(text), calls) if calls and not rest else refused
