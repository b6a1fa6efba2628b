"""What a demonstration task is made of."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from openai.types.chat.chat_completion import Choice

Turns: TypeAlias = list[Any]
"""A run of the agent: messages as dicts, the model's turns as openai Choices or as dicts."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Scenario:
    """One input of the agent, with what only the environment and the reward know."""

    id: str
    question: str
    hidden: str
    """Never shown to the model: the weather its tool will report, the free cells of a board."""


@dataclass(frozen=True, slots=True)
class Task:
    """A task: its scenarios, an agent that a user could have written, and the reward."""

    name: str
    title: str
    scenarios: Callable[[int, int, int], tuple[list[Scenario], list[Scenario]]]
    """(seed, training scenarios, held-out scenarios) -> both lists, with nothing in common."""
    agent: Callable[[AsyncOpenAI, str, Scenario], Awaitable[Turns]]
    """(client, model name, scenario) -> the run."""
    reward: Callable[[Scenario, Turns], float]
    """Between 0 and 1."""
    best_constant: Callable[[Sequence[Scenario]], float]
    """The mean reward of the best agent that gives every scenario the same answers."""
    groups_per_step: int
    rollouts_per_group: int
    steps: int
    budget_seconds: float
    """No step starts that would probably end later than this after the first one's start."""
    held_out: int = 128
    """Evaluation rollouts, one for each held-out scenario."""
    enough: float = 0.97
    """Training ends early once the mean training reward of two steps in a row is above this."""
    score: Callable[[Scenario, Turns], float] | None = None
    """What is measured on held-out scenarios, between 0 and 1; None: the reward."""


def sampled(turns: Turns) -> list[Choice]:
    """The model's own turns."""
    return [turn for turn in turns if not isinstance(turn, dict)]


def cut_off(turns: Turns) -> bool:
    """True when a turn of the model ended at its token limit."""
    return any(choice.finish_reason == "length" for choice in sampled(turns))


def spread(items: Sequence[T], count: int, rng: random.Random) -> list[T]:
    """`count` items in random order, each equally often (give or take one)."""
    full, rest = divmod(count, len(items))
    chosen = [*items] * full + rng.sample(list(items), rest)
    rng.shuffle(chosen)
    return chosen
