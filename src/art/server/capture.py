"""What a call sampled, and how it is written down: the exact tokens, before the answer is complete."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from art.engine.protocol import Sampled
from art.server.calls import CallPlan
from art.server.runs import Run, outline, runs_of
from art.server.structured import asked_form
from art.store.records import CallText
from art.store.store import Store
from art.tokens.graph import Node, given_turns, next_digest
from art.tokens.tools import assistant_message
from art.types.messages import Message, Piece
from art.types.policy import Fate, Purpose
from art.types.tokens import CallRecord, ChoiceRecord, VersionSpan

GREEDY = "sampled greedily (temperature 0), which carries no probability to train"
FORCED = "all its tokens were forced by a grammar"
FAILED = "its call failed before the answer was whole"


@dataclass(slots=True)
class Choice:
    """One choice while it is sampled and after."""

    index: int
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[list[tuple[int, float]]] = field(default_factory=list)
    forced: list[bool] = field(default_factory=list)
    """True for a token that the grammar put in place of the model's own draw."""
    pieces: list[Piece] = field(default_factory=list)
    """Text, reasoning and tool calls as the client gets them."""
    ends: list[int] = field(default_factory=list)
    """Per piece, how many tokens were sampled when it was said."""
    finish_reason: str | None = None
    stop_sequence: str | None = None
    """The stop string that ended it."""
    cached_tokens: int = 0

    def add(self, event: Sampled, at: int) -> None:
        """Take over token `at` of an event."""
        self.token_ids.append(event.token_ids[at])
        self.logprobs.append(event.logprobs[at])
        self.top_logprobs.append(event.top_logprobs[at] if at < len(event.top_logprobs) else [])
        self.forced.append(bool(event.forced) and event.forced[at])

    def say(self, pieces: Sequence[Piece]) -> None:
        """Take over what has become certain."""
        self.pieces += pieces
        self.ends += [len(self.token_ids)] * len(pieces)

    @property
    def runs(self) -> list[Run]:
        """What it said, with the tokens behind it."""
        return runs_of(self.pieces, self.ends)

    @property
    def message(self) -> Message:
        """The assistant's message."""
        return assistant_message(self.pieces)


@dataclass(frozen=True, slots=True)
class Completed:
    """A recorded call."""

    plan: CallPlan
    choices: list[Choice]
    created: float
    """Unix time at which the call began."""


@dataclass(slots=True)
class Times:
    """Unix times of one call."""

    started: float
    first_token: float | None = None
    finished: float | None = None


async def record(
    store: Store, plan: CallPlan, choices: Sequence[Choice], times: Times, *, delivered: bool = True
) -> CallRecord:
    """Write a call into the store. Returns once it is committed. `delivered`: a client waits for the answer."""
    call = CallRecord(
        call_id=plan.call_id,
        rollout_id=plan.session.id,
        parent_call_id=plan.parent_call_id,
        branch=plan.branch,
        number=plan.number,
        agent=plan.agent,
        auxiliary_asked=plan.auxiliary,
        tool_count=len(plan.request.tools),
        system_number=plan.place.system,
        opening_number=plan.place.opening,
        dialect=plan.request.dialect,
        version=plan.version,
        purpose=plan.session.row.purpose.value,
        sampling_asked={
            "model": plan.request.model,
            **plan.request.asked,
            **asked_form(plan.request.tool_choice, plan.request.response_schema),
        },
        sampling_used=plan.sampling.params.model_copy(update={"max_tokens": plan.max_tokens}),
        prompt_token_count=len(plan.prompt.token_ids),
        reused_token_count=plan.prompt.reused,
        started_at=times.started,
        first_token_at=times.first_token,
        finished_at=times.finished,
        choices=[_choice_record(plan, choice, delivered=delivered) for choice in choices],
    )
    arrays: dict[str, np.ndarray] = {"prompt_token_ids": np.asarray(plan.prompt.token_ids, dtype=np.int32)}
    for choice in choices:
        arrays[f"c{choice.index}.token_ids"] = np.asarray(choice.token_ids, dtype=np.int32)
        arrays[f"c{choice.index}.logprobs"] = np.asarray(choice.logprobs, dtype=np.float32)
        if any(choice.forced):
            arrays[f"c{choice.index}.trainable"] = ~np.asarray(choice.forced, dtype=np.bool_)
    text = CallText(
        tail=[message.to_openai() for message in plan.new_messages],
        tools=[tool.to_template() for tool in plan.request.tools] or None,
        completions=[choice.message.to_openai() for choice in choices],
        cached_tokens=max((choice.cached_tokens for choice in choices), default=0),
        outlines=[outline(choice.runs) for choice in choices],
        parent_choice=plan.parent.choice if plan.parent is not None else 0,
        kept=plan.request.kept,
    )
    return await store.add_call(call, arrays=arrays, text=text, project=plan.session.row.project)


def recorded_end(choice: Choice, *, delivered: bool) -> str:
    """How a choice ended for its client: one that nobody got whole is `cancelled`, however far it was sampled."""
    if choice.finish_reason == "error":
        return "error"
    return (choice.finish_reason or "cancelled") if delivered else "cancelled"


def _choice_record(plan: CallPlan, choice: Choice, *, delivered: bool) -> ChoiceRecord:
    fate, reason = Fate.PENDING, ""
    if plan.session.row.purpose is Purpose.EVALUATE:
        fate, reason = Fate.EVALUATION, "sampled in an evaluation session"
    elif plan.sampling.params.temperature == 0:
        fate, reason = Fate.FILTERED, GREEDY
    elif choice.forced and all(choice.forced):
        fate, reason = Fate.FILTERED, FORCED
    elif choice.finish_reason == "error":
        fate, reason = Fate.FILTERED, FAILED
    return ChoiceRecord(
        index=choice.index,
        finish_reason=recorded_end(choice, delivered=delivered),
        token_count=len(choice.token_ids),
        spans=[VersionSpan(start=0, end=len(choice.token_ids), version=plan.version)],
        fate=fate,
        reason=reason,
    )


def node_of(plan: CallPlan, choice: Choice) -> Node:
    """The choice as a place in the session's token memory."""
    prompt = plan.prompt
    tail = [*prompt.token_ids[prompt.reused :], *choice.token_ids]
    message = choice.message
    return Node(
        digest=next_digest(prompt.digest, message),
        parent=prompt.node,
        depth=len(plan.request.messages) + 1,
        message=message,
        shared=prompt.reused,
        tail=np.asarray(tail, dtype=np.int32),
        call_id=plan.call_id,
        choice=choice.index,
        branch=plan.branch,
        turn=prompt.turn,
        given=given_turns(plan.request.messages, prompt.depth),
    )
