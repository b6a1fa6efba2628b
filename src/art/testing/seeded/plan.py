"""What a seeded store holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from art.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Options of `seed`. The same plan gives the same store."""

    runs: int = 3
    """Of which the second was rolled back and the third is a fork of the first."""
    steps: int | Sequence[int] = 20
    """Train calls of each run, or of the first runs one by one; the last number holds for those behind."""
    groups: int = 4
    """Per step."""
    group_size: int = 8
    """Rollouts of a group."""
    turns: int = 3
    """Calls of a rollout, without those on the side: tools first, then the answer."""
    answer_tokens: int = 40
    """Of an answer, about."""
    long_tokens: int = 0
    """Of one rollout more, of the last run, whose answer has exactly so many; 0 leaves it out."""
    traces: bool = True
    """What the trainer found of each trained choice: its own log-probabilities and the advantage."""
    scenarios: int = 24
    """Different questions."""
    evaluate_every: int = 5
    """Steps; 0 never."""
    reward_bug: Literal["", "length"] = ""
    """`length`: the reward pays for the length of an answer, right or wrong."""
    project: str = "shop"
    seed: int = 0
    began: float = 1_793_520_000.0
    """Unix time of the first registration: 1 November 2026."""

    def __post_init__(self) -> None:
        counts = {"runs": self.runs, "groups": self.groups, "group_size": self.group_size}
        counts |= {"turns": self.turns, "answer_tokens": self.answer_tokens, "scenarios": self.scenarios}
        for name, value in counts.items():
            if value < 1:
                raise ConfigError(f"{name} is {value}", hint="give at least 1")
        if self.groups > self.scenarios:
            raise ConfigError(
                f"{self.groups} groups a step need as many scenarios, there are {self.scenarios}",
                hint="a step holds each scenario once; raise scenarios",
            )

    def steps_of(self, run: int) -> int:
        """Train calls of a run, counted from 0."""
        if isinstance(self.steps, int):
            return self.steps
        return self.steps[min(run, len(self.steps) - 1)]

    def name_of(self, run: int) -> str:
        """The model's name."""
        return f"desk-{run + 1:02d}"
