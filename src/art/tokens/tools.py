"""Tools for templates that have no section for them, and a completion's pieces as a message.

The tools are described in the system message, and earlier calls are written as the model is asked to write
them: `<tool_call>{json}</tool_call>`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from art.tokens.parsers.hermes import CLOSE, OPEN
from art.types.messages import Message, Piece, Thought, Tool, ToolCall

RESULT_OPEN, RESULT_CLOSE = "<tool_response>", "</tool_response>"
"""Around a result where it stands in a user's message."""


@dataclass(frozen=True, slots=True)
class Roles:
    """Which roles a template writes."""

    system: bool = True
    tool: bool = True


def call_text(name: str, arguments: Any) -> str:
    """One call as the model is asked to write it."""
    return f"{OPEN}{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}{CLOSE}"


def description(tools: Sequence[Tool], *, roles: Roles = Roles()) -> str:
    """What the model is told about the tools where the template says nothing."""
    lines = "\n".join(json.dumps(tool.to_template(), ensure_ascii=False) for tool in tools)
    form = f'{OPEN}{{"name": <function name>, "arguments": <arguments as a JSON object>}}{CLOSE}'
    place = "in a message of role tool" if roles.tool else f"between {RESULT_OPEN} and {RESULT_CLOSE}"
    return (
        f"You may call these functions:\n<tools>\n{lines}\n</tools>\n"
        f"To call one, answer with\n{form}\nThe result comes back {place}."
    )


def without_section(
    messages: Sequence[Message], tools: Sequence[Tool], *, roles: Roles = Roles()
) -> list[Message]:
    """The messages for a template without a tools section: calls as text, and the tools in the system message.

    Where the template takes no system message the tools stand in front of the first user's words, and where it
    takes no tool role the results are a user's message.
    """
    out = [_calls_as_text(message) for message in messages]
    if not roles.tool:
        out = _results_as_user(out)
    if not tools:
        return out
    told = description(tools, roles=roles)
    first = "system" if roles.system else "user"
    if out and out[0].role == first:
        parts = (out[0].text, told) if roles.system else (told, out[0].text)
        return [out[0].model_copy(update={"content": "\n\n".join(part for part in parts if part)}), *out[1:]]
    return [Message(role="system", content=told), *out]


def _results_as_user(messages: Sequence[Message]) -> list[Message]:
    """Results, and what the user says behind them, as one message of the user: such templates want turns to alternate."""
    out: list[Message] = []
    results = False
    for message in messages:
        text = message.text
        if message.role == "tool":
            text = f"{RESULT_OPEN}\n{text}\n{RESULT_CLOSE}"
        if results and message.role in ("tool", "user"):
            out[-1] = Message(role="user", content=f"{out[-1].text}\n{text}")
        else:
            out.append(Message(role="user", content=text) if message.role == "tool" else message)
        results = message.role == "tool"
    return out


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
