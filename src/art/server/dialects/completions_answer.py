"""A recorded call as an OpenAI text completion, whole or in chunks, with vLLM's token fields and ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from art.errors import ArtError
from art.server.calls import CallPlan
from art.server.capture import Choice, Completed
from art.server.dialects.chat_answer import art_field, finish_reason, token_row, usage
from art.server.generation import Delta
from art.server.responses import error_body
from art.server.streaming import DONE, sse


def text_completion(done: Completed, *, with_logprobs: bool) -> dict[str, Any]:
    """The whole answer."""
    plan = done.plan
    choices = [
        {
            "index": choice.index,
            "text": choice.message.text,
            "finish_reason": finish_reason(choice),
            "logprobs": logprobs(plan, choice, 0, 0) if with_logprobs else None,
            "token_ids": choice.token_ids,
            "art": art_field(plan, choice),
        }
        for choice in done.choices
    ]
    return {
        **_head(plan, done.created),
        "choices": choices,
        "usage": usage(plan, done.choices),
        "prompt_token_ids": plan.prompt.token_ids,
    }


def _head(plan: CallPlan, created: float) -> dict[str, Any]:
    return {
        "id": f"cmpl-{plan.call_id}",
        "object": "text_completion",
        "created": int(created),
        "model": plan.version,
        "system_fingerprint": plan.version,
    }


def logprobs(plan: CallPlan, choice: Choice, start: int, offset: int) -> dict[str, Any]:
    """The tokens from `start` on, in the four lists of OpenAI's older form.

    `offset`: characters of the tokens before them. The alternatives always have the sampled token among them.
    """
    tokenizer = plan.entry.renderer.tokenizer
    out: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    rows = zip(choice.token_ids[start:], choice.logprobs[start:], choice.top_logprobs[start:], strict=True)
    for token, logprob, top in rows:
        alternatives = [token_row(tokenizer, *pair) for pair in [*top, (token, logprob)]]
        text, value = alternatives[-1]["token"], alternatives[-1]["logprob"]
        out["tokens"].append(text)
        out["token_logprobs"].append(value)
        out["top_logprobs"].append({row["token"]: row["logprob"] for row in alternatives})
        out["text_offset"].append(offset)
        offset += len(text)
    return out


class TextWriter:
    """Deltas -> chunks. Every token stands in exactly one chunk, at the latest in its choice's last."""

    def __init__(
        self,
        plan: CallPlan,
        choices: Sequence[Choice],
        created: float,
        *,
        include_usage: bool,
        with_logprobs: bool,
    ) -> None:
        self._plan = plan
        self._choices = choices
        self._created = created
        self._include_usage = include_usage
        self._with_logprobs = with_logprobs
        self._sent = [0] * len(choices)
        self._offsets = [0] * len(choices)

    def opening(self) -> list[bytes]:
        """An empty chunk with the prompt's tokens."""
        chunk = self._chunk(self._choices[0], "", tokens=False)
        chunk["prompt_token_ids"] = self._plan.prompt.token_ids
        return [sse(chunk)]

    def delta(self, delta: Delta) -> list[bytes]:
        """Text; nothing in it is a call or a thought."""
        text = "".join(piece for piece in delta.pieces if isinstance(piece, str))
        return [sse(self._chunk(self._choices[delta.choice], text))] if text else []

    def closing(self, done: Completed) -> list[bytes]:
        """The last chunk of every choice, usage if it was asked for, and the end."""
        out = []
        for choice in self._choices:
            chunk = self._chunk(choice, "")
            chunk["choices"][0] |= {
                "finish_reason": finish_reason(choice),
                "art": art_field(self._plan, choice),
            }
            out.append(sse(chunk))
        if self._include_usage:
            total = usage(self._plan, self._choices)
            out.append(sse({**_head(self._plan, self._created), "choices": [], "usage": total}))
        return [*out, DONE]

    def failed(self, error: ArtError) -> list[bytes]:
        """OpenAI's SDK raises what stands under `error` of a chunk."""
        return [sse(error_body(error, "openai"))]

    def _chunk(self, choice: Choice, text: str, *, tokens: bool = True) -> dict[str, Any]:
        body: dict[str, Any] = {"index": choice.index, "text": text, "finish_reason": None, "logprobs": None}
        start = self._sent[choice.index]
        if tokens and start < len(choice.token_ids):
            body["token_ids"] = choice.token_ids[start:]
            self._sent[choice.index] = len(choice.token_ids)
            if self._with_logprobs:
                body["logprobs"] = logprobs(self._plan, choice, start, self._offsets[choice.index])
                self._offsets[choice.index] += sum(len(text) for text in body["logprobs"]["tokens"])
        return {**_head(self._plan, self._created), "choices": [body]}
