"""A recorded call as an OpenAI chat completion, whole or in chunks, with vLLM's token fields and ours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from art.errors import ArtError
from art.server.calls import CallPlan
from art.server.capture import Choice, Completed
from art.server.generation import Delta
from art.server.responses import error_body
from art.server.streaming import DONE, sse
from art.tokens.tokenizer import Tokenizer
from art.types.messages import Thought, ToolCall
from art.types.tokens import ArtField

LOWEST_LOGPROB = -9999.0
"""JSON has no infinity; OpenAI writes this for a token of probability zero."""


def completion(done: Completed) -> dict[str, Any]:
    """The whole answer."""
    plan = done.plan
    choices = []
    for choice in done.choices:
        message = choice.message
        content: dict[str, Any] = {"role": "assistant", "content": message.content, "refusal": None}
        if message.reasoning is not None:
            content["reasoning_content"] = message.reasoning
        if message.tool_calls:
            content["tool_calls"] = [call.model_dump() for call in message.tool_calls]
        choices.append(
            {
                "index": choice.index,
                "message": content,
                "finish_reason": finish_reason(choice),
                "logprobs": logprobs(plan, choice, 0),
                "token_ids": choice.token_ids,
                "art": art_field(plan, choice),
            }
        )
    return {
        **_head(plan, "chat.completion", done.created),
        "choices": choices,
        "usage": usage(plan, done.choices),
        "prompt_token_ids": plan.prompt.token_ids,
    }


def _head(plan: CallPlan, kind: str, created: float) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{plan.call_id}",
        "object": kind,
        "created": int(created),
        "model": plan.version,
        "system_fingerprint": plan.version,
    }


def art_field(plan: CallPlan, choice: Choice) -> dict[str, Any]:
    """Which recorded choice this is."""
    return ArtField(call_id=plan.call_id, choice=choice.index, version=plan.version).model_dump()


def finish_reason(choice: Choice) -> str:
    """OpenAI knows no cancelled answers; one that was cut off is of reason `length`."""
    known = ("stop", "length", "tool_calls")
    return choice.finish_reason if choice.finish_reason in known else "length"


def usage(plan: CallPlan, choices: Sequence[Choice]) -> dict[str, Any]:
    """Token counts; cached ones are prompt tokens that the engine did not compute again."""
    prompt = len(plan.prompt.token_ids)
    sampled = sum(len(choice.token_ids) for choice in choices)
    cached = max((choice.cached_tokens for choice in choices), default=0)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def logprobs(plan: CallPlan, choice: Choice, start: int) -> dict[str, Any]:
    """The tokens from `start` on with their log-probabilities."""
    tokenizer = plan.entry.renderer.tokenizer
    rows = zip(choice.token_ids[start:], choice.logprobs[start:], choice.top_logprobs[start:], strict=True)
    content = [
        {
            **token_row(tokenizer, token, logprob),
            "top_logprobs": [token_row(tokenizer, other, value) for other, value in top],
        }
        for token, logprob, top in rows
    ]
    return {"content": content, "refusal": None}


def token_row(tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, Any]:
    """A token as text and bytes, with its log-probability."""
    raw = tokenizer.token_bytes(token)
    value = float(logprob) if math.isfinite(logprob) else LOWEST_LOGPROB
    return {"token": raw.decode("utf-8", "replace"), "bytes": list(raw), "logprob": value}


class ChunkWriter:
    """Deltas -> chunks. Every token stands in exactly one chunk, at the latest in its choice's last."""

    def __init__(
        self, plan: CallPlan, choices: Sequence[Choice], created: float, *, include_usage: bool = False
    ) -> None:
        self._plan = plan
        self._include_usage = include_usage
        self._choices = choices
        self._head = _head(plan, "chat.completion.chunk", created)
        self._sent = [0] * len(choices)
        self._calls = [0] * len(choices)

    def opening(self) -> list[bytes]:
        """The role of every choice; the first chunk carries the prompt's tokens."""
        out = []
        for choice in self._choices:
            chunk = self._chunk(choice, {"role": "assistant", "content": ""})
            if choice.index == 0:
                chunk["prompt_token_ids"] = self._plan.prompt.token_ids
            out.append(sse(chunk))
        return out

    def delta(self, delta: Delta) -> list[bytes]:
        """Text, reasoning and whole tool calls."""
        choice = self._choices[delta.choice]
        out = []
        for piece in delta.pieces:
            if isinstance(piece, ToolCall):
                call = {"index": self._calls[choice.index], **piece.model_dump()}
                self._calls[choice.index] += 1
                out.append(sse(self._chunk(choice, {"tool_calls": [call]}, tokens=True)))
            elif isinstance(piece, Thought):
                out.append(sse(self._chunk(choice, {"reasoning_content": piece.text}, tokens=True)))
            else:
                out.append(sse(self._chunk(choice, {"content": piece}, tokens=True)))
        return out

    def closing(self, done: Completed) -> list[bytes]:
        """The last chunk of every choice, usage if it was asked for, and the end."""
        out = []
        for choice in self._choices:
            chunk = self._chunk(choice, {}, tokens=True)
            chunk["choices"][0]["finish_reason"] = finish_reason(choice)
            chunk["choices"][0]["art"] = art_field(self._plan, choice)
            out.append(sse(chunk))
        if self._include_usage:
            out.append(sse({**self._head, "choices": [], "usage": usage(self._plan, self._choices)}))
        return [*out, DONE]

    def failed(self, error: ArtError) -> list[bytes]:
        """OpenAI's SDK raises what stands under `error` of a chunk."""
        return [sse(error_body(error, "openai"))]

    def _chunk(self, choice: Choice, delta: dict[str, Any], *, tokens: bool = False) -> dict[str, Any]:
        body: dict[str, Any] = {"index": choice.index, "delta": delta, "finish_reason": None}
        start = self._sent[choice.index]
        if tokens and start < len(choice.token_ids):
            body["logprobs"] = logprobs(self._plan, choice, start)
            body["token_ids"] = choice.token_ids[start:]
            self._sent[choice.index] = len(choice.token_ids)
        return {**self._head, "choices": [body]}
