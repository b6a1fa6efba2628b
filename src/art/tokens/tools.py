"""Tool calls in the model's text: `<tool_call>{json}</tool_call>` (Hermes) and plain JSON.

A call that is not well formed reaches the agent as the text it is. For templates without a tools section the
tools are described in the system message, and earlier calls are written as the model is asked to write them.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Sequence
from typing import Any

from art.types.messages import FunctionCall, Message, Piece, Thought, Tool, ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"


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


def new_call(name: str, arguments: Any) -> ToolCall:
    """A call with a fresh id."""
    text = json.dumps(arguments, ensure_ascii=False)
    return ToolCall(id=f"call_{uuid.uuid4().hex[:24]}", function=FunctionCall(name=name, arguments=text))


class ToolParser:
    """Text in; text and whole tool calls out, in order. The same text gives the same pieces however it is cut.

    Text that may still become a call is held back. White space around calls is dropped. `names` are the
    tools offered: plain JSON counts as a call only when it names one of them.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)
        self._pending = ""
        self._inside = False
        self._plain: bool | None = None
        # White space at the start or behind a call: dropped when a call follows, else part of the text.
        self._space = ""
        self._fresh = True
        self._calls = 0

    def feed(self, text: str) -> list[Piece]:
        """The pieces that have become certain."""
        self._pending += text
        if self._plain is None:
            start = self._pending.lstrip()
            if not start:
                return []
            self._plain = start[0] in "{["
        return [] if self._plain else self._tagged()

    def finish(self) -> list[Piece]:
        """What was held back, at the end of the completion."""
        out: list[Piece] = []
        if self._plain:
            calls = self._plain_calls(self._pending)
            if calls:
                self._pending = ""
                return [*calls]
            out += self._tagged()
        if self._inside:
            # The end-of-turn token can stand where the closing tag should.
            out += self._call(self._pending, raw=OPEN + self._pending)
        else:
            out += self._text(self._pending)
        self._pending = ""
        if self._space and not self._calls:
            out.append(self._space)
        self._space = ""
        return _merged(out)

    def _tagged(self) -> list[Piece]:
        out: list[Piece] = []
        while True:
            tag = CLOSE if self._inside else OPEN
            before, found, after = self._pending.partition(tag)
            if not found:
                break
            self._pending = after
            out += self._call(before, raw=f"{OPEN}{before}{CLOSE}") if self._inside else self._text(before)
            self._inside = not self._inside
        if not self._inside:
            held = _begun(self._pending, OPEN)
            out += self._text(self._pending[: len(self._pending) - held])
            self._pending = self._pending[len(self._pending) - held :]
        return _merged(out)

    def _text(self, text: str) -> list[Piece]:
        if not text:
            return []
        if self._fresh and not text.strip():
            self._space += text
            return []
        out, self._space, self._fresh = self._space + text, "", False
        return [out]

    def _call(self, body: str, *, raw: str) -> list[Piece]:
        call = parse_call(body)
        if call is None:
            return self._text(raw)
        self._space, self._fresh = "", True
        self._calls += 1
        return [call]

    def _plain_calls(self, text: str) -> list[ToolCall]:
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            return []
        calls = [_as_call(item) for item in (data if isinstance(data, list) else [data])]
        known = [call for call in calls if call is not None and call.function.name in self._names]
        return known if known and len(known) == len(calls) else []


def parse_call(body: str) -> ToolCall | None:
    """The call written as a JSON object, or None where it is not well formed."""
    try:
        return _as_call(json.loads(body))
    except (ValueError, RecursionError):
        return None


def _as_call(data: object) -> ToolCall | None:
    if not isinstance(data, dict):
        return None
    name, arguments = data.get("name"), data.get("arguments", data.get("parameters", {}))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return None
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    try:
        return new_call(name, arguments)
    except (ValueError, RecursionError):  # half characters, or nesting that nobody reads
        return None


def _begun(text: str, tag: str) -> int:
    """Length of the longest end of `text` that begins `tag`."""
    return next((n for n in range(min(len(tag) - 1, len(text)), 0, -1) if tag.startswith(text[-n:])), 0)


def _merged(pieces: list[Piece]) -> list[Piece]:
    """Neighbouring texts as one."""
    out: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, str) and out and isinstance(out[-1], str):
            out[-1] += piece
        else:
            out.append(piece)
    return out


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
