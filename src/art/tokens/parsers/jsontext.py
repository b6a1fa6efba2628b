"""JSON inside a model's text: values with text behind them, and values that are not finished yet."""

from __future__ import annotations

import json
from typing import Any

from art.tokens.parsers.base import Offered
from art.types.messages import ToolCall

_NEAR = 6
"""An error this close to the end may be one of text that is not there yet; the longest is `\\uXXXX`."""


class Unfinished(Exception):
    """The JSON value goes on behind the end of the text."""


class NoJson(ValueError):
    """No JSON value, whatever follows."""


def _no_constant(name: str) -> Any:
    raise NoJson(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)


def value_at(text: str, start: int, *, final: bool) -> tuple[Any, int]:
    """The JSON value behind the white space at `start`, and where it ends. Unfinished, or NoJson."""
    at = start + len(text[start:]) - len(text[start:].lstrip())
    try:
        value, end = _DECODER.raw_decode(text, at)
    except json.JSONDecodeError as error:
        open_end = error.pos >= len(text) - _NEAR or error.msg.startswith("Unterminated string")
        if open_end and not final:
            raise Unfinished from error
        raise NoJson(error.msg) from error
    except (
        ValueError,
        RecursionError,
    ) as error:  # a number of thousands of digits, nesting that nobody reads
        raise NoJson(str(error)) from error
    return value, end


def calls_of(data: object, offered: Offered) -> list[ToolCall]:
    """The calls in a JSON value: an object, or a list of objects. Empty unless all of them are calls."""
    items = data if isinstance(data, list) else [data]
    calls = [call for item in items if (call := call_of(item, offered)) is not None]
    return calls if len(calls) == len(items) else []


def call_of(data: object, offered: Offered) -> ToolCall | None:
    """A call written as `{"name": ..., "arguments": ...}`; `parameters` is another word for it.

    Some models wrap it as OpenAI does: `{"type": "function", "function": {...}}`, or with the name as `function`.
    """
    if not isinstance(data, dict):
        return None
    inner = data.get("function")
    if isinstance(inner, dict):
        return call_of(inner, offered)
    name = data.get("name", inner)
    arguments = data.get("arguments", data.get("parameters", {}))
    if isinstance(arguments, str):
        try:
            arguments = _DECODER.decode(arguments)
        except (ValueError, RecursionError):
            return None
    return offered.call(name, arguments)


def leads(text: str) -> bool | None:
    """Whether `text` begins as a JSON object or a list of objects does."""
    inner = text[1:].lstrip()
    if text[:1] == "{":
        return None if not inner else inner[0] in '"}'
    if text[:1] == "[":
        return None if not inner else inner[0] == "{"
    return False if text else None
