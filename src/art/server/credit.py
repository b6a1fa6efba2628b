"""Whose reward a choice is compared by, and with what. Pure functions.

A choice with a reward of its own is compared with the same call of the group's other rollouts: the same agent's, the
same in number. One whose agent has a reward is compared with that agent's choices there. All others are compared by
the rollout's reward. Each comparison is a group of its own for the algorithm, so a rollout takes part in several;
its parts weigh what their tokens weigh in it, and together 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from art.types.jobs import ChoiceRef
from art.types.tokens import CallRecord, ChoiceRecord

WHOLE = ""
"""The part that the rollout's reward decides."""


@dataclass(frozen=True, slots=True)
class Credit:
    """The reward of one choice and what it is compared with."""

    part: str
    """"" for the rollout's, `agent:<label>`, or `call:<label>:<number>`."""
    reward: float


def credit_of(
    call: CallRecord,
    choice: ChoiceRecord,
    *,
    calls: Sequence[CallRecord],
    agents: Mapping[str, float],
    reward: float,
) -> Credit:
    """The credit of a choice of `call`, one of its rollout's `calls`. `agents` and `reward` are the rollout's."""
    if choice.reward is not None:
        label = call.agent or ""
        same = [other for other in calls if (other.agent or "") == label and not other.auxiliary]
        number = sum(other.number < call.number for other in same)
        return Credit(f"call:{label}:{number}", choice.reward)
    if call.agent is not None and call.agent in agents:
        return Credit(f"agent:{call.agent}", agents[call.agent])
    return Credit(WHOLE, reward)


@dataclass(frozen=True, slots=True)
class Part:
    """The choices of one rollout that are compared together."""

    name: str
    reward: float
    choices: list[ChoiceRef]
    weight: float


def parts_of(credited: Sequence[tuple[ChoiceRef, Credit, int]], *, by_tokens: bool) -> list[Part]:
    """A rollout's choices, each with its credit and its number of tokens, as parts in order of their first choice.

    Weights: with `by_tokens` (the loss is a mean over each rollout's tokens) a part's share of the rollout's weighted
    tokens, so that a token weighs what it would weigh without the parts, and the sum is 1; else 1 each, because there
    every token of the batch weighs the same. Choices of one call with different rewards are parts of the same name.
    """
    found: dict[Credit, list[tuple[ChoiceRef, int]]] = {}
    for ref, credit, tokens in credited:
        found.setdefault(credit, []).append((ref, tokens))
    mass = {credit: sum(ref.weight * tokens for ref, tokens in items) for credit, items in found.items()}
    total = sum(mass.values())
    return [
        Part(
            name=credit.part,
            reward=credit.reward,
            choices=[ref for ref, _ in items],
            weight=(mass[credit] / total if total > 0 else 1 / len(found)) if by_tokens else 1.0,
        )
        for credit, items in found.items()
    ]
