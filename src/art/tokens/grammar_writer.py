"""Writes a grammar in llguidance's dialect of Lark, for one model's tokenizer.

Marks that are single tokens of the model (`<tool_call>`, `</think>`) are written as token ids: no text that only
looks like them is meant.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from art.tokens.grammar_schema import WHITESPACE, as_json, with_whitespace
from art.tokens.tokenizer import Tokenizer

FREE = r"/(.|\n)*/"
"""Any text, without the model's special tokens."""
GAP = r"[ \r\n]{1,4}"
"""Between reasoning, calls and their marks, where it is allowed at all."""


class Writer:
    """Rules of one grammar."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._added = tokenizer.added_tokens()
        names = sorted((re.escape(name) for name in self._added if name.strip()), key=len, reverse=True)
        self._mark = re.compile("|".join(names)) if names else None
        self._rules: list[str] = []
        self._until: dict[str, str] = {}

    def grammar(self, start: str) -> str:
        """The whole text."""
        return "\n".join(
            ["%llguidance {}", f"start: {start}", *self._rules, f"WS: /{WHITESPACE}/", f"GAP: /{GAP}/"]
        )

    def rule(self, name: str, body: str) -> str:
        """Add a rule; its name."""
        self._rules.append(f"{name}: {body}")
        return name

    def json(self, schema: Mapping[str, Any], name: str) -> str:
        """A rule for JSON of a schema, whose `$ref`s stay its own."""
        return self.rule(name, f"%json {as_json(with_whitespace(schema))}")

    def text(self, text: str) -> str:
        """A fixed text, its single tokens by id; white space at its ends may be there or not."""
        parts = [token for part in self._parts(text) if (token := _lark(part))]
        return " ".join(parts)

    def _parts(self, text: str) -> Iterator[str | int]:
        at = 0
        for found in self._mark.finditer(text) if self._mark else ():
            yield text[at : found.start()]
            yield self._added[found.group()]
            at = found.end()
        yield text[at:]

    def any_mark(self) -> str:
        """Any one of the model's added tokens."""
        return " | ".join(f"<[{token}]>" for token in sorted(self._added.values()))

    def until(self, mark: str) -> str:
        """Any text up to the first `mark`, and the mark."""
        name = self._until.get(mark)
        if name is None:
            name = self._until[mark] = f"until_{len(self._until)}"
            if mark in self._added:
                self.rule(name, f"{FREE} <[{self._added[mark]}]>")
            else:
                self.rule(f"{name}[stop={json.dumps(mark)}]", FREE)
        return name


def _lark(part: str | int) -> str:
    """A part of a fixed text in Lark."""
    if isinstance(part, int):
        return f"<[{part}]>"
    inner = part.strip()
    if not inner:
        return "GAP?" if part else ""
    before = "GAP? " if part[0].isspace() else ""
    after = " GAP?" if part[-1].isspace() else ""
    return f"{before}{json.dumps(inner)}{after}"
