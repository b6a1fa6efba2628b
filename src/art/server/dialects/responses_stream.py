"""A response as a stream of events. Each item is opened by its first piece and closed by the next one of another kind."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from art.errors import ArtError, Overloaded
from art.server.calls import CallPlan
from art.server.capture import Choice, Completed
from art.server.dialects.responses_answer import (
    Answer,
    Head,
    Row,
    choice_rows,
    of_text,
    output_item,
    response,
    text_part,
)
from art.server.dialects.responses_request import LOGPROBS
from art.server.generation import Delta
from art.server.responses import error_body
from art.server.runs import Run
from art.server.streaming import named_event
from art.types.messages import FunctionCall, Piece, Thought, ToolCall


@dataclass(slots=True)
class _Open:
    """The item that is being said."""

    index: int
    empty: str | Thought
    """Text or reasoning, without a word."""
    texts: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    @property
    def kind(self) -> str:
        return "reasoning_text" if isinstance(self.empty, Thought) else "output_text"

    @property
    def piece(self) -> str | Thought:
        """What it has said so far."""
        text = "".join(self.texts)
        return Thought(text) if isinstance(self.empty, Thought) else text

    def part(self) -> dict[str, Any]:
        """Its content as it stands."""
        text = "".join(self.texts)
        if isinstance(self.empty, Thought):
            return {"type": "reasoning_text", "text": text}
        return text_part(text, self.rows)


class EventWriter:
    """Deltas -> events, numbered from 0. A response has one choice."""

    def __init__(self, plan: CallPlan, choice: Choice, created: float, include: frozenset[str]) -> None:
        self._plan = plan
        self._choice = choice
        self._include = include
        self._head = Head.planned(plan, created)
        self._number = 0
        self._items: list[dict[str, Any]] = []
        self._open: _Open | None = None
        self._pieces = 0

    def opening(self) -> list[bytes]:
        """The response as it stands before the first token."""
        return [self._state("created"), self._state("in_progress")]

    def delta(self, delta: Delta) -> list[bytes]:
        """Text, reasoning and whole calls."""
        out: list[bytes] = []
        for piece in delta.pieces:
            start = self._choice.ends[self._pieces - 1] if self._pieces else 0
            end = self._choice.ends[self._pieces]
            self._pieces += 1
            if isinstance(piece, ToolCall):
                out += [*self._close("completed"), *self._call(piece)]
            else:
                out += self._say(piece, start, end)
        return out

    def closing(self, done: Completed) -> list[bytes]:
        """The end of the last item, and the response."""
        answer = Answer.of(done.plan, done.choices[0], self._include)
        status = answer.status if answer.status in ("completed", "failed") else "incomplete"
        out = [] if self._open or self._items else self._begin("")
        out += self._close("completed" if status == "completed" else "incomplete")
        return [*out, self._event(f"response.{status}", response=response(self._head, answer, self._include))]

    def failed(self, error: ArtError) -> list[bytes]:
        """The failed response, then the error: OpenAI's SDK raises what stands under `error` of an event."""
        code = "invalid_prompt" if error.status < 500 else "server_error"
        code = "rate_limit_exceeded" if isinstance(error, Overloaded) else code
        body = self._head.body("failed") | {"error": {"code": code, "message": str(error)}}
        body["output"] = self._items
        told = error_body(error, "openai")["error"]
        plain = {"code": error.code, "message": str(error), "param": None}
        return [self._event("response.failed", response=body), self._event("error", **plain, error=told)]

    def _state(self, status: str) -> bytes:
        return self._event(f"response.{status}", response=self._head.body("in_progress"))

    def _event(self, kind: str, **content: Any) -> bytes:
        data = {"type": kind, "sequence_number": self._number, **content}
        self._number += 1
        return named_event(data)

    def _say(self, piece: str | Thought, start: int, end: int) -> list[bytes]:
        out: list[bytes] = []
        thought = isinstance(piece, Thought)
        if self._open is None or isinstance(self._open.empty, Thought) is not thought:
            out += [*self._close("completed"), *self._begin(Thought("") if thought else "")]
        item = self._open
        assert item is not None
        where = self._where(self._item(item.index, item.empty, "in_progress"), item.index)
        if isinstance(piece, Thought):
            item.texts.append(piece.text)
            return [*out, self._event("response.reasoning_text.delta", **where, delta=piece.text)]
        item.texts.append(piece)
        rows = choice_rows(self._plan, self._choice, start, end) if LOGPROBS in self._include else []
        rows = of_text(rows, piece)
        item.rows += rows
        return [*out, self._event("response.output_text.delta", **where, delta=piece, logprobs=rows)]

    def _begin(self, empty: str | Thought) -> list[bytes]:
        """Open an item, still without content."""
        self._open = item = _Open(len(self._items), empty)
        added = self._item(item.index, empty, "in_progress")
        added["content"] = []
        return [
            self._event("response.output_item.added", output_index=item.index, item=added),
            self._event("response.content_part.added", **self._where(added, item.index), part=item.part()),
        ]

    def _close(self, status: str) -> list[bytes]:
        """End the open item, if there is one."""
        item, self._open = self._open, None
        if item is None:
            return []
        done = self._item(item.index, item.piece, status, item.rows)
        self._items.append(done)
        where, part = self._where(done, item.index), item.part()
        rows = {} if isinstance(item.empty, Thought) else {"logprobs": item.rows}
        return [
            self._event(f"response.{item.kind}.done", **where, text=part["text"], **rows),
            self._event("response.content_part.done", **where, part=part),
            self._event("response.output_item.done", output_index=item.index, item=done),
        ]

    def _call(self, call: ToolCall) -> list[bytes]:
        """A call comes whole: whether it is one is known at its end."""
        index = len(self._items)
        done = self._item(index, call, "completed")
        blank = call.model_copy(update={"function": FunctionCall(name=call.function.name, arguments="")})
        added = self._item(index, blank, "completed") | {"status": "in_progress"}
        self._items.append(done)
        where = {"item_id": done["id"], "output_index": index}
        arguments = call.function.arguments
        return [
            self._event("response.output_item.added", output_index=index, item=added),
            self._event("response.function_call_arguments.delta", **where, delta=arguments),
            self._event(
                "response.function_call_arguments.done", **where, name=done["name"], arguments=arguments
            ),
            self._event("response.output_item.done", output_index=index, item=done),
        ]

    def _item(self, index: int, piece: Piece, status: str, rows: list[Row] | None = None) -> dict[str, Any]:
        run = Run(piece, 0, 0)
        return output_item(
            self._plan.call_id, index, run, status=status, rows=rows or [], include=self._include
        )

    def _where(self, item: dict[str, Any], index: int) -> dict[str, Any]:
        """The fields that name the place of a text event."""
        return {"item_id": item["id"], "output_index": index, "content_index": 0}
