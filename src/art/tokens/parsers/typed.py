"""Argument values of formats that write them as bare text, typed by the tool's JSON schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_PYTHON = {"True": True, "False": False}
"""Some templates write booleans as Python does, and models follow them."""


def typed(text: str, schema: Mapping[str, Any]) -> Any:
    """`text` as the schema's type: a string stays a string, an integer becomes one, what does not parse stays text.

    Where several types are allowed, null comes first and a string before all others. Without a type, only what
    begins as a JSON object or list is read as JSON.
    """
    kinds = kinds_of(schema)
    if not kinds:
        kinds = frozenset({"object", "array"})
    bare = text.strip()
    if "null" in kinds and bare in ("null", "None"):
        return None
    if "string" in kinds:
        return text
    if "boolean" in kinds and bare in _PYTHON:
        return _PYTHON[bare]
    try:
        value = json.loads(bare)
    except (ValueError, RecursionError):
        return text
    if "integer" in kinds and isinstance(value, float) and value.is_integer():
        return int(value)
    return value if _is(value, kinds) else text


def kinds_of(schema: Mapping[str, Any]) -> frozenset[str]:
    """The JSON types a schema allows, as far as it says so at its top; empty where it does not."""
    kind = schema.get("type")
    found = {kind} if isinstance(kind, str) else set()
    found |= {item for item in kind if isinstance(item, str)} if isinstance(kind, list) else set()
    for key in ("anyOf", "oneOf"):
        options = schema.get(key)
        for option in options if isinstance(options, list) else ():
            found |= kinds_of(option) if isinstance(option, dict) else set()
    if not found:
        values = schema.get("enum", [schema["const"]] if "const" in schema else [])
        found = {_kind(value) for value in values} if isinstance(values, list) else set()
    return frozenset(found)


def _kind(value: object) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "string", dict: "object", list: "array"}
    return names.get(type(value), "null")


def _is(value: object, kinds: frozenset[str]) -> bool:
    kind = _kind(value)
    return kind in kinds or (kind == "integer" and "number" in kinds)
