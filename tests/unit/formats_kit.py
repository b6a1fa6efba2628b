"""Formats for tests: texts cut at any place, and pieces as something that can be compared."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from art.tokens.parsers.base import CallParser, Form, Offered, OutputParser, merged
from art.types.messages import Piece, Thought, Tool, ToolCall

TOOLS = [
    Tool.model_validate(
        {
            "type": "function",
            "function": {
                "name": name,
                "description": "Does something.",
                "parameters": {"type": "object", "properties": properties},
            },
        }
    )
    for name, properties in {
        "get_weather": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "exact": {"type": "boolean"},
            "near": {"type": "array", "items": {"type": "string"}},
            "more": {"type": "object"},
            "ratio": {"type": "number"},
            "hint": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
        "look_up": {"key": {"type": "string"}},
    }.items()
]
OFFERED = Offered.of(TOOLS)

Shape = list[tuple[str, Any]]
"""("text", ...), ("thought", ...) and ("call", (name, arguments)), neighbours of a kind joined."""


def cut(text: str, places: list[int]) -> list[str]:
    """`text` in pieces."""
    at = sorted({place % (len(text) + 1) for place in places} | {0, len(text)})
    return [text[a:b] for a, b in pairwise(at)]


def run(parser: OutputParser, pieces: list[str]) -> list[Piece]:
    """Everything the parser makes of the pieces."""
    out = [item for piece in pieces for item in parser.feed(piece)]
    return merged(out + parser.finish())


def shape(items: list[Piece]) -> Shape:
    """Comparable, with neighbours joined."""
    out: Shape = []
    for item in items:
        if isinstance(item, ToolCall):
            out.append(("call", (item.function.name, json.loads(item.function.arguments))))
            continue
        kind, text = ("thought", item.text) if isinstance(item, Thought) else ("text", item)
        if out and out[-1][0] == kind:
            out[-1] = (kind, out[-1][1] + text)
        else:
            out.append((kind, text))
    return out


def calls(form: Form, pieces: list[str]) -> Shape:
    """What a form makes of a completion with the tools of this file."""
    return shape(run(CallParser(form, OFFERED), pieces))


def said(items: Shape) -> str:
    """The text of a shape."""
    return "".join(value for kind, value in items if kind == "text")
