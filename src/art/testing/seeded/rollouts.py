"""One rollout of a seeded store: its row, its calls with their texts, and their tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from art.store import call_rows, rollout_rows, trained_rows
from art.store.blobs import BlobStore, blob_path
from art.store.records import CallText, RolloutRow
from art.store.sql import Conn
from art.store.traces import ChoiceTrace, FloatArray
from art.testing.seeded.figures import Member
from art.testing.seeded.task import ANSWERS, MORE, PADDING, SYSTEM, TOOLS, Scenario, Turn
from art.testing.seeded.tokens import Tokens
from art.types.policy import Fate, FinishReason, Purpose, RolloutStatus
from art.types.tokens import CallRecord, ChoiceRecord, VersionSpan

TOKENS_PER_SECOND = 40.0
"""Of the engine that is said to have sampled."""


@dataclass(slots=True)
class Said:
    """A call of a rollout, before it is recorded."""

    turn: Turn
    parent: int | None = None
    """Number of the call it goes on from."""
    branch: int = 0
    auxiliary: str = ""
    agent: str | None = None
    sibling: Turn | None = None
    """A second choice, which nothing goes on from."""
    later: str = ""
    """The version that sampled its second half, where it is another one."""


@dataclass(slots=True)
class Choice:
    """A choice that a train call may take."""

    call_id: str
    index: int
    tokens: int
    trainable: bool


class Recorder:
    """Writes rollouts. The same rollouts in the same order give the same bytes."""

    def __init__(self, conn: Conn, blobs: BlobStore, tokens: Tokens, *, seed: int) -> None:
        self._conn = conn
        self._blobs = blobs
        self._tokens = tokens
        self._noise = np.random.Generator(np.random.PCG64(seed))
        self._sampled: dict[tuple[str, int], FloatArray] = {}
        """Log-probabilities of choices, until a step has trained them."""

    def record(self, rollout: RolloutRow, said: Sequence[Said], *, entropy: float) -> list[Choice]:
        """The rollout ends when its last call does; `entropy` is the mean surprise of its tokens, in nats."""
        sampled = [self._tokens.completion(item.turn) for item in said]
        times = [0.2 + len(ids) / TOKENS_PER_SECOND for ids, _ in sampled]
        if rollout.ended_at is None:
            rollout.ended_at = rollout.created_at + sum(times) + 0.1
        rollout_rows.open_rollout(self._conn, rollout)
        prompts: list[list[int]] = []
        choices: list[Choice] = []
        started = rollout.created_at
        for number, item in enumerate(said):
            before: list[int] = []
            if item.parent is not None:
                before = prompts[item.parent] + sampled[item.parent][0] + self._tokens.ids("\n")
            prompt = before + self._tokens.prompt(item.turn.tail, opening=item.parent is None)
            prompts.append(prompt)
            call = self._call(rollout, item, number=number, reused=len(before), prompt=prompt)
            call.started_at, call.first_token_at = started, started + 0.2
            call.finished_at = started = started + times[number]
            choices += self._write(rollout, item, call, prompt, entropy=entropy)
        return choices

    def add_traces(self, members: Sequence[Member], step: int) -> None:
        """What the trainer found of the choices that it trained: nearly what the engine had, the less the likelier a token."""
        found = []
        for member in members:
            for call, index, _ in member.choices if member.status is RolloutStatus.TRAINED else ():
                served = self._sampled[call, index]
                gap = self._noise.standard_normal(len(served)) * (0.004 + 0.03 * np.abs(served))
                trained = np.minimum(served + gap, 0.0).astype(np.float32)
                found.append(ChoiceTrace(call, index, member.advantage, trained))
        trained_rows.add_trained(self._conn, self._blobs, found, step)

    def forget(self) -> None:
        """What was sampled up to now is trained by no step to come."""
        self._sampled.clear()

    def long_turn(self, scenario: Scenario, tokens: int) -> Turn:
        """An answer of exactly `tokens` tokens, the end of its turn included, in lines of some sentences."""
        rng, parts, count = Random(tokens), list[str](), 0
        while count < tokens - 60:  # no sentence has more tokens
            between = rng.choice((" ", " ", "\n")) if parts else ""
            part = between + scenario.fill(rng.choice((*ANSWERS, *MORE, *PADDING)))
            parts.append(part)
            count += len(self._tokens.ids(part))
        text = "".join(parts)
        text += "." * (tokens - 1 - len(self._tokens.ids(text)))
        return Turn(
            [{"role": "system", "content": SYSTEM}, {"role": "user", "content": scenario.question}],
            [("text", text)],
            {"role": "assistant", "content": text},
        )

    def _call(
        self, rollout: RolloutRow, item: Said, *, number: int, reused: int, prompt: list[int]
    ) -> CallRecord:
        parent = None if item.parent is None else call_id(rollout.rollout_id, item.parent)
        return CallRecord(
            call_id=call_id(rollout.rollout_id, number),
            rollout_id=rollout.rollout_id,
            parent_call_id=parent,
            branch=item.branch,
            number=number,
            agent=item.agent,
            version=f"{rollout.project}/{rollout.model}@{rollout.step}",
            purpose=rollout.purpose.value,
            auxiliary=bool(item.auxiliary),
            auxiliary_reason=item.auxiliary,
            tool_count=0 if item.auxiliary else len(TOOLS),
            system_number=int(bool(item.auxiliary)),
            opening_number=item.branch,
            sampling_asked={"model": rollout.model, "temperature": 1.0},
            prompt_token_count=len(prompt),
            reused_token_count=reused,
        )

    def _write(
        self, rollout: RolloutRow, item: Said, call: CallRecord, prompt: list[int], *, entropy: float
    ) -> list[Choice]:
        arrays = {"prompt_token_ids": np.asarray(prompt, dtype=np.int32)}
        text = CallText(
            tail=item.turn.tail,
            tools=None if item.auxiliary else TOOLS,
            cached_tokens=call.reused_token_count,
        )
        fate, reason = Fate.PENDING, ""
        if rollout.purpose is Purpose.EVALUATE:
            fate, reason = Fate.EVALUATION, "sampled in an evaluation session"
        elif item.auxiliary:
            fate, reason = Fate.AUXILIARY, item.auxiliary
        turns = [item.turn] if item.sibling is None else [item.turn, item.sibling]
        for index, turn in enumerate(turns):
            ids, outline = self._tokens.completion(turn)
            logprobs = -self._noise.exponential(entropy, len(ids))
            arrays[f"c{index}.token_ids"] = np.asarray(ids, dtype=np.int32)
            self._sampled[call.call_id, index] = logprobs.astype(np.float32)
            arrays[f"c{index}.logprobs"] = logprobs.astype(np.float32)
            text.completions.append(turn.message)
            text.outlines.append(outline)
            aside = index > 0 and fate is Fate.PENDING
            finish: FinishReason = "tool_calls" if turn.message.get("tool_calls") else "stop"
            call.choices.append(
                ChoiceRecord(
                    index=index,
                    finish_reason=finish,
                    token_count=len(ids),
                    spans=spans(len(ids), call.version, item.later),
                    fate=Fate.FILTERED if aside else fate,
                    reason="not continued" if aside else reason,
                )
            )
        call.blob = self._blobs.append(blob_path(rollout.project, rollout.rollout_id), arrays)
        call_rows.add_call(self._conn, call, text)
        return [
            Choice(call.call_id, choice.index, choice.token_count, choice.fate is Fate.PENDING)
            for choice in call.choices
        ]


def spans(tokens: int, version: str, later: str) -> list[VersionSpan]:
    """All of one version, or the second half of a later one."""
    if not later:
        return [VersionSpan(start=0, end=tokens, version=version)]
    half = tokens // 2
    return [
        VersionSpan(start=0, end=half, version=version),
        VersionSpan(start=half, end=tokens, version=later),
    ]


def call_id(rollout_id: str, number: int) -> str:
    """The id of a rollout's call."""
    return f"call-{hashlib.md5(f'{rollout_id}/{number}'.encode(), usedforsecurity=False).hexdigest()}"
