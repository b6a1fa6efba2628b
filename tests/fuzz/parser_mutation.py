"""Changes to a JSON request that leave it one: a value replaced, moved, dropped, doubled, wrapped or renamed."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

DEEPEST = 12
ODD: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        0.5,
        2**31,
        2**63,
        10**30,
        1e308,
        "",
        " ",
        "\x00",
        "a",
        "é",
        "🙂",
        "\u2028",
    ),
    *(
        [],
        {},
        [[]],
        [{}],
        {"type": "text"},
        {"type": "text", "text": "a"},
        {"type": "function"},
        ["a"],
        [None],
    ),
    *(
        "auto",
        "none",
        "required",
        "text",
        "json_object",
        "json_schema",
        "function",
        "tool",
        "assistant",
        "user",
    ),
    *(
        "system",
        "developer",
        "tool_result",
        "tool_use",
        "thinking",
        "image",
        "input_text",
        "reasoning",
        "message",
    ),
    *("art:call-0:0", "call_1", "{}", '{"a": "\\ud800"}', "[1", "keep", "enabled", "continue"),
)
NAMES = (
    *("type", "text", "content", "role", "name", "id", "call_id", "arguments", "input", "function", "tools"),
    *("tool_calls", "tool_call_id", "tool_choice", "format", "schema", "parameters", "summary", "signature"),
    *("thinking", "reasoning_content", "output", "stream_options", "metadata", "recorded", "function_call"),
)


def changed(data: bytes, most: int, seed: int, *, otherwise: Callable[[bytes, int], bytes]) -> bytes:
    """The request with one to three changes, at most `most` bytes. Now and then, and where it is no JSON, `otherwise` changes its bytes."""
    draw = random.Random(seed)
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return otherwise(data, most)
    if draw.random() < 0.2:
        return otherwise(data, most)
    for _ in range(draw.randint(1, 3)):
        value = _one_change(value, draw)
    made = json.dumps(value, ensure_ascii=draw.random() < 0.5).encode("utf-8", "surrogatepass")
    return made if len(made) <= most else otherwise(data, most)


def _places(value: Any, depth: int = 0) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) inside."""
    if depth < DEEPEST and isinstance(value, dict | list):
        keys = list(value) if isinstance(value, dict) else range(len(value))
        for key in keys:
            yield value, key
            yield from _places(value[key], depth + 1)


def _one_change(value: Any, draw: random.Random) -> Any:
    places = list(_places(value))
    if not places:
        return draw.choice(ODD)
    parent, key = draw.choice(places)
    act = draw.choice(("odd", "odd", "moved", "dropped", "doubled", "wrapped", "renamed", "added", "changed"))
    if act == "odd":
        parent[key] = copy.deepcopy(draw.choice(ODD))
    elif act == "moved":
        other, its_key = draw.choice(places)
        parent[key] = copy.deepcopy(other[its_key])
    elif act == "dropped":
        del parent[key]
    elif act == "wrapped":
        parent[key] = draw.choice(([parent[key]], {"type": "text", "text": parent[key]}))
    elif act == "changed" and isinstance(parent[key], str):
        parent[key] = _text(parent[key], draw)
    elif isinstance(parent, list):
        parent.insert(key, copy.deepcopy(parent[key]))
    elif act == "added":
        parent[draw.choice(NAMES)] = copy.deepcopy(draw.choice(ODD))
    else:
        parent[draw.choice(NAMES)] = parent.pop(key) if act == "renamed" else copy.deepcopy(parent[key])
    return value


def _text(text: str, draw: random.Random) -> str:
    at = draw.randrange(len(text) + 1)
    return text[:at] + draw.choice(("", "\x00", "é", "\\", '"', "{", "a" * 70)) + text[at + 1 :]
