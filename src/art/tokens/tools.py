"""Tools for templates that have no section for them, and a completion's pieces as a message.

The tools are described in the system message, and earlier calls are written as the model is asked to write
them: `<tool_call>{json}</tool_call>`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from art.tokens.parsers.hermes import CLOSE, OPEN
from art.types.messages import Message, Piece, Thought, Tool, ToolCall


def call_text(name: str, arguments: Any) -> str:
    """One call as the model is asked to write it."""
    return f"{OPEN}{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}{CLOSE}"


def description(tools: Sequence[Tool]) -> str:
    """What the system message says about the tools where the template says nothing."""
    lines = "\n".join(json.dumps(tool.to_template(), ensure_ascii=False) for tool in tools)
    form = f'{OPEN}{{"name": <function name>, "arguments": <arguments as a JSON object>}}{CLOSE}'
    return (
        f"You may call these functions:\n<tools>\n{lines}\n</tools>\n"
        f"To call one, answer with\n{form}\nThe result comes back in a message of role tool."
    )


def without_section(messages: Sequence[Message], tools: Sequence[Tool]) -> list[Message]:
    """The messages for a template without a tools section: tools in the system message, calls as text."""
    out = [_calls_as_text(message) for message in messages]
    if not tools:
        return out
    if out and out[0].role == "system":
        joined = f"{out[0].text}\n\n{description(tools)}" if out[0].text else description(tools)
        return [out[0].model_copy(update={"content": joined}), *out[1:]]
    return [Message(role="system", content=description(tools)), *out]


def _calls_as_text(message: Message) -> Message:
    if not message.tool_calls:
        return message
    parts = [message.text] if message.text else []
    parts += [call_text(call.function.name, call.function.parsed()) for call in message.tool_calls]
    return message.model_copy(update={"content": "\n".join(parts), "tool_calls": ()})


def assistant_message(pieces: Sequence[Piece]) -> Message:
    """The pieces of one completion as a message."""
    text = "".join(piece for piece in pieces if isinstance(piece, str))
    thoughts = [piece.text for piece in pieces if isinstance(piece, Thought)]
    calls = tuple(piece for piece in pieces if isinstance(piece, ToolCall))
    return Message(
        role="assistant",
        content=text if text or not calls else None,
        reasoning="".join(thoughts) if thoughts else None,
        tool_calls=calls,
    )
