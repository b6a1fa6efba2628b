"""A call as an OpenAI response object: what it repeats of the request, its output items, and how it ended."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from art.server.calls import CallPlan
from art.server.capture import Choice
from art.server.dialects.chat_answer import token_row
from art.server.dialects.responses_items import item_id
from art.server.dialects.responses_request import ENCRYPTED, LOGPROBS
from art.server.runs import Run
from art.store.records import CallText
from art.tokens.graph import node_name
from art.tokens.tokenizer import Tokenizer
from art.types.messages import Piece, Thought, ToolCall
from art.types.policy import SamplingParams
from art.types.tokens import ArtField, CallRecord

Row = dict[str, Any]
"""A token's log-probability as OpenAI writes it."""


def response_id(call_id: str) -> str:
    """The id under which clients know the answer of a call."""
    return f"resp_{call_id}"


@dataclass(frozen=True, slots=True)
class Head:
    """What is known of a response before its first token."""

    call_id: str
    version: str
    created: float
    sampling: SamplingParams
    """As used."""
    tools: Sequence[Mapping[str, Any]]
    instructions: str | None
    kept: Mapping[str, Any]
    """What the request's parser left for its answer."""

    @classmethod
    def planned(cls, plan: CallPlan, created: float) -> Head:
        request = plan.request
        return cls(
            call_id=plan.call_id,
            version=plan.version,
            created=created,
            sampling=plan.sampling.params,
            tools=[tool.to_template() for tool in request.tools],
            instructions=request.messages[0].text if request.kept["instructions"] else None,
            kept=request.kept,
        )

    @classmethod
    def recorded(cls, call: CallRecord, text: CallText, instructions: str | None) -> Head:
        return cls(
            call_id=call.call_id,
            version=call.version,
            created=call.started_at,
            sampling=call.sampling_used,
            tools=text.tools or [],
            instructions=instructions,
            kept=text.kept,
        )

    def body(self, status: str) -> dict[str, Any]:
        """The response object without an answer."""
        return {
            "id": response_id(self.call_id),
            "object": "response",
            "created_at": self.created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": self.instructions,
            "model": self.version,
            "output": [],
            "store": self.kept["store"],
            "temperature": self.sampling.temperature,
            "tools": [_flat(tool) for tool in self.tools],
            "top_p": self.sampling.top_p,
            "usage": None,
            **self.kept["echo"],
            "art": ArtField(call_id=self.call_id, choice=0, version=self.version).model_dump(),
        }


def _flat(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool of chat completions in the flat form of Responses, with the fields that it always has."""
    return {"type": "function", "parameters": None, "strict": None, **tool["function"]}


@dataclass(frozen=True, slots=True)
class Answer:
    """What was sampled."""

    runs: Sequence[Run]
    finish_reason: str
    prompt_token_ids: Sequence[int]
    token_ids: Sequence[int]
    rows: Sequence[Row]
    """Per token; none where log-probabilities were not asked for."""
    cached_tokens: int
    finished: float | None

    @classmethod
    def of(cls, plan: CallPlan, choice: Choice, include: frozenset[str]) -> Answer:
        """Of a call that has just ended."""
        return cls(
            runs=choice.runs,
            finish_reason=choice.finish_reason or "cancelled",
            prompt_token_ids=plan.prompt.token_ids,
            token_ids=choice.token_ids,
            rows=choice_rows(plan, choice, 0, len(choice.token_ids)) if LOGPROBS in include else [],
            cached_tokens=choice.cached_tokens,
            finished=time.time(),
        )

    @property
    def status(self) -> str:
        """OpenAI's word for how it ended."""
        known = {"stop": "completed", "tool_calls": "completed", "error": "failed", "cancelled": "cancelled"}
        return known.get(self.finish_reason, "incomplete")

    def usage(self) -> dict[str, Any]:
        """Token counts. Writing to the cache is never charged."""
        prompt, sampled = len(self.prompt_token_ids), len(self.token_ids)
        thought = sum(run.end - run.start for run in self.runs if isinstance(run.piece, Thought))
        return {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": self.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": sampled,
            "output_tokens_details": {"reasoning_tokens": thought},
            "total_tokens": prompt + sampled,
        }


def response(head: Head, answer: Answer, include: frozenset[str]) -> dict[str, Any]:
    """The whole response object, with vLLM's token fields and ours."""
    status = answer.status
    body = head.body(status)
    if status == "incomplete":
        body["incomplete_details"] = {"reason": "max_output_tokens"}
    elif status == "completed":
        body["completed_at"] = answer.finished
    elif status == "failed":
        body["error"] = {"code": "server_error", "message": "the call failed before its answer was whole"}
    return {
        **body,
        "output": output_items(head.call_id, answer, include),
        "usage": answer.usage(),
        "token_ids": list(answer.token_ids),
        "prompt_token_ids": list(answer.prompt_token_ids),
    }


def output_items(call_id: str, answer: Answer, include: frozenset[str]) -> list[dict[str, Any]]:
    """The output: reasoning, messages and function calls in the order they were said.

    An answer without a word is an empty message, so that a client that sends items back sends the turn.
    """
    items = []
    runs = answer.runs or [Run("", 0, 0)]
    for index, run in enumerate(runs):
        whole = index < len(runs) - 1 or answer.status == "completed"
        status = "completed" if whole else "incomplete"
        rows = of_text(answer.rows[run.start : run.end], run.piece)
        items.append(output_item(call_id, index, run, status=status, rows=rows, include=include))
    return items


def output_item(
    call_id: str,
    index: int,
    run: Run,
    *,
    status: str,
    rows: Sequence[Row] = (),
    include: frozenset[str] = frozenset(),
) -> dict[str, Any]:
    """One item of the output."""
    piece = run.piece
    if isinstance(piece, ToolCall):
        return {
            "type": "function_call",
            "id": item_id("fc", call_id, index),
            "call_id": piece.id,
            "name": piece.function.name,
            "arguments": piece.function.arguments,
            "status": "completed",  # a call that was cut off is text
        }
    if isinstance(piece, Thought):
        item = {
            "type": "reasoning",
            "id": item_id("rs", call_id, index),
            "summary": [],
            "content": [{"type": "reasoning_text", "text": piece.text}],
            "status": status,
        }
        return {**item, "encrypted_content": node_name(call_id, 0)} if ENCRYPTED in include else item
    return {
        "type": "message",
        "id": item_id("msg", call_id, index),
        "role": "assistant",
        "status": status,
        "content": [text_part(piece, rows)],
    }


def text_part(text: str, rows: Sequence[Row]) -> dict[str, Any]:
    """A message's text."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(rows)}


def choice_rows(plan: CallPlan, choice: Choice, start: int, end: int) -> list[Row]:
    """The log-probabilities of tokens [start, end) of a running or ended choice."""
    tokenizer = plan.entry.renderer.tokenizer
    tops = choice.top_logprobs[start:end]
    rows = token_rows(tokenizer, choice.token_ids[start:end], choice.logprobs[start:end])
    for row, top in zip(rows, tops, strict=True):
        row["top_logprobs"] = [token_row(tokenizer, token, logprob) for token, logprob in top]
    return rows


def of_text(rows: Sequence[Row], piece: Piece) -> list[Row]:
    """The rows of a text's own tokens: those before it were the end of a call or of reasoning, and marks of theirs."""
    if not isinstance(piece, str):
        return []
    over = sum(len(row["bytes"]) for row in rows) - len(piece.encode())
    at = 0
    while at < len(rows) and over >= max(1, len(rows[at]["bytes"])):
        over -= len(rows[at]["bytes"])
        at += 1
    return list(rows[at:])


def token_rows(tokenizer: Tokenizer, token_ids: Sequence[int], logprobs: Sequence[float]) -> list[Row]:
    """The log-probabilities of recorded tokens; the alternatives to them are not recorded."""
    pairs = zip(token_ids, logprobs, strict=True)
    return [{**token_row(tokenizer, token, value), "top_logprobs": []} for token, value in pairs]
