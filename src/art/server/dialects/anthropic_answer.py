"""A recorded call as an Anthropic message, whole or in events, with our token fields beside Anthropic's own."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

from art.errors import ArtError
from art.server.calls import CallPlan
from art.server.capture import Choice, Completed
from art.server.generation import Delta
from art.server.responses import error_body
from art.server.streaming import PING, named_event
from art.tokens.graph import node_name
from art.types.messages import Piece, Thought, ToolCall
from art.types.tokens import ArtField


def message(done: Completed, *, show_thinking: bool) -> dict[str, Any]:
    """The whole answer."""
    plan, choice = done.plan, done.choices[0]
    return {
        **_head(plan, choice),
        "content": blocks(choice.pieces, signature(plan, choice), show_thinking=show_thinking),
        **_end(choice),
        "token_ids": choice.token_ids,
    }


def signature(plan: CallPlan, choice: Choice) -> str:
    """What names the recorded choice when its thinking comes back."""
    return node_name(plan.call_id, choice.index)


def blocks(pieces: Iterable[Piece], signature: str, *, show_thinking: bool = True) -> list[dict[str, Any]]:
    """Content blocks in the order in which they were sampled; neighbouring texts are one block."""
    out: list[dict[str, Any]] = []
    for piece in pieces:
        if isinstance(piece, ToolCall):
            out.append(_tool_use(piece))
            continue
        kind, text = _text_of(piece)
        if not text:
            continue
        if not out or out[-1]["type"] != kind:
            out.append(_opened(kind, signature))
        if kind == "text" or show_thinking:
            out[-1][kind] += text
    return out


def _text_of(piece: str | Thought) -> tuple[str, str]:
    return ("thinking", piece.text) if isinstance(piece, Thought) else ("text", piece)


def _opened(kind: str, signature: str) -> dict[str, Any]:
    block: dict[str, Any] = {"type": kind, kind: ""}
    if kind == "thinking":
        block["signature"] = signature
    return block


def _tool_use(call: ToolCall) -> dict[str, Any]:
    given = _finite(call.function.parsed())
    # Anthropic's form has no place for arguments that are no object.
    given = given if isinstance(given, dict) else {"arguments": given}
    return {"type": "tool_use", "id": call.id, "name": call.function.name, "input": given}


def _finite(value: Any) -> Any:
    """JSON has no infinity and no NaN, though a model may write them; null, as JavaScript writes them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else value


def stop_reason(choice: Choice) -> str:
    """A call comes first: the agent must run it, whatever ended the answer. One that was cut off is `max_tokens`."""
    if choice.finish_reason == "tool_calls" or (choice.stop_sequence and choice.message.tool_calls):
        return "tool_use"
    if choice.stop_sequence is not None:
        return "stop_sequence"
    return "end_turn" if choice.finish_reason == "stop" else "max_tokens"


def usage(plan: CallPlan, choice: Choice) -> dict[str, int]:
    """Token counts. As Anthropic counts them, `input_tokens` are those that were not read from a cache."""
    prompt = len(plan.prompt.token_ids)
    cached = min(choice.cached_tokens, prompt)
    return {
        "input_tokens": prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": len(choice.token_ids),
    }


def _head(plan: CallPlan, choice: Choice) -> dict[str, Any]:
    art = ArtField(call_id=plan.call_id, choice=choice.index, version=plan.version)
    return {
        "id": f"msg_{plan.call_id}",
        "type": "message",
        "role": "assistant",
        "model": plan.version,
        "usage": usage(plan, choice),
        "art": art.model_dump(),
        "prompt_token_ids": plan.prompt.token_ids,
    }


def _end(choice: Choice) -> dict[str, Any]:
    reason = stop_reason(choice)
    return {
        "stop_reason": reason,
        "stop_sequence": choice.stop_sequence if reason == "stop_sequence" else None,
    }


class EventWriter:
    """Deltas -> events. One block is open at a time; a tool call is a block that comes whole."""

    def __init__(self, plan: CallPlan, choice: Choice, *, show_thinking: bool) -> None:
        self._plan = plan
        self._choice = choice
        self._show_thinking = show_thinking
        self._index = 0
        self._open: str | None = None
        """Type of the open block."""

    def opening(self) -> list[bytes]:
        """The message without content: its tokens of the prompt, and which recorded choice it is."""
        empty: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
        started = {"type": "message_start", "message": {**_head(self._plan, self._choice), **empty}}
        return [named_event(started), PING]

    def delta(self, delta: Delta) -> list[bytes]:
        """Text, thinking and whole tool calls."""
        out: list[bytes] = []
        for piece in delta.pieces:
            if isinstance(piece, ToolCall):
                out += self._close() + self._call(piece)
                continue
            kind, text = _text_of(piece)
            if not text:
                continue
            if self._open != kind:
                out += [*self._close(), self._start(_opened(kind, ""))]
                self._open = kind
            if kind == "text" or self._show_thinking:
                out.append(self._delta({"type": f"{kind}_delta", kind: text}))
        return out

    def closing(self, done: Completed) -> list[bytes]:
        """The end of the last block, why the answer ended, and the sampled tokens in the last event."""
        head = _head(self._plan, self._choice)
        ended = {"type": "message_delta", "delta": _end(self._choice), "usage": head["usage"]}
        stopped = {
            "type": "message_stop",
            "art": head["art"],
            "prompt_token_ids": head["prompt_token_ids"],
            "token_ids": self._choice.token_ids,
        }
        return [*self._close(), named_event(ended), named_event(stopped)]

    def failed(self, error: ArtError) -> list[bytes]:
        """The SDK raises what an event `error` says."""
        return [named_event(error_body(error, "anthropic"))]

    def _call(self, call: ToolCall) -> list[bytes]:
        block = _tool_use(call)
        text = json.dumps(block["input"], ensure_ascii=False)
        return [
            self._start({**block, "input": {}}),
            self._delta({"type": "input_json_delta", "partial_json": text}),
            self._stop(),
        ]

    def _close(self) -> list[bytes]:
        if self._open is None:
            return []
        out = []
        if self._open == "thinking":
            name = signature(self._plan, self._choice)
            out.append(self._delta({"type": "signature_delta", "signature": name}))
        self._open = None
        return [*out, self._stop()]

    def _start(self, block: dict[str, Any]) -> bytes:
        return named_event({"type": "content_block_start", "index": self._index, "content_block": block})

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return named_event({"type": "content_block_delta", "index": self._index, "delta": delta})

    def _stop(self) -> bytes:
        event = named_event({"type": "content_block_stop", "index": self._index})
        self._index += 1
        return event
