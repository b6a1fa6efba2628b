"""What lists show of a call, read from its text: tool calls and errors, a preview, the words to search. Pure functions."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from art.store.records import CallText

PREVIEW_CHARACTERS = 240
"""Of what was asked and answered, in a list."""
INDEXED_CHARACTERS = 200_000
"""Of one call; a text behind that is not found by a search."""
_ERROR_CHARACTERS = 100_000
"""A JSON result longer than this is a result; reading it to be sure would cost more than the answer is worth."""
_SPACE = re.compile(r"\s+")
_BEGINS = re.compile(
    r"\s*(?:error\b|traceback \(most recent call last\)|exception:|[a-z_.]*(?:error|exception): )", re.I
)

Message = Mapping[str, Any]


def is_tool_error(message: Message) -> bool:
    """Whether a tool's result says that it is an error.

    It begins with `error`, an exception's name or a traceback, or is a JSON object that says so: a truthy `error`,
    `is_error` or `isError`; a false `ok` or `success`; the status `error` or `failed`.
    """
    if message.get("role") != "tool":
        return False
    text = text_of(message)
    if _BEGINS.match(text) is not None:
        return True
    if not text.lstrip().startswith("{") or len(text) > _ERROR_CHARACTERS:
        return False
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(said, dict) and (
        any(said.get(name) for name in ("error", "is_error", "isError"))
        or any(said.get(name) is False for name in ("ok", "success"))
        or said.get("status") in ("error", "failed")
    )


def tool_calls(text: CallText) -> int:
    """Tools that the answers call."""
    return sum(len(message.get("tool_calls") or ()) for message in text.completions)


def tool_errors(text: CallText) -> int:
    """New tool results that are errors: those behind the last thing the assistant said, since a history that was
    rewritten comes whole again."""
    count = 0
    for message in reversed(text.tail):
        if message.get("role") == "assistant":
            break
        count += is_tool_error(message)
    return count


def asked(text: CallText) -> str:
    """The beginning of what the call was asked: its first user message, else its last message."""
    users = [message for message in text.tail if message.get("role") == "user"]
    found = users[:1] or list(text.tail)[-1:]
    return preview(text_of(found[0])) if found else ""


def answered(text: CallText) -> str:
    """The beginning of its first answer: what it says, else the tool it calls, else what it thought."""
    message: Message = text.completions[0] if text.completions else {}
    calls = [_call_text(call) for call in message.get("tool_calls") or ()]
    return preview(text_of(message) or ", ".join(calls) or reasoning_of(message))


def searched(text: CallText) -> str:
    """The words of a call, for the search: what is new in it, but for the system prompt, and all its answers."""
    parts: list[str] = []
    for message in (*text.tail, *text.completions):
        if message.get("role") == "system":  # the same in every rollout
            continue
        parts += [reasoning_of(message), text_of(message)]
        parts += [_call_text(call) for call in message.get("tool_calls") or ()]
    return "\n".join(part for part in parts if part)[:INDEXED_CHARACTERS]


def text_of(message: Message) -> str:
    """The content of a message in OpenAI's form, text parts joined; "" where there is none."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        return ""
    return "".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))


def reasoning_of(message: Message) -> str:
    """What the model thought, where that is kept."""
    found = message.get("reasoning_content")
    return found if isinstance(found, str) else ""


def preview(text: str) -> str:
    """The beginning of a text as one line."""
    line = _SPACE.sub(" ", text[: 2 * PREVIEW_CHARACTERS]).strip()
    return line if len(line) <= PREVIEW_CHARACTERS else f"{line[: PREVIEW_CHARACTERS - 1]}…"


def _call_text(call: Any) -> str:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return ""
    return f"{function.get('name', '')}({function.get('arguments', '')})"
