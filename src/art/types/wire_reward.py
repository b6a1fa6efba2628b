"""What the read API says of a run's reward: part of `wire_views`, which names it too."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


class Points(BaseModel):
    """At most 2,000 rollouts as columns, for a scatter plot."""

    rollout_id: list[str]
    step: list[int]
    reward: list[float]
    sampled_tokens: list[int]
    tool_errors: list[int]
    metrics: dict[str, list[float | None]] = Field(default_factory=dict)
    """The program's metrics that vary, by name; None for a rollout that lacks it."""


class RewardLink(BaseModel):
    """How the reward goes with one figure of the rollouts."""

    name: str
    """`sampled_tokens`, `tool_errors`, or `metrics.NAME` for a metric of the program."""
    rollouts: int
    """That have both."""
    r: float | None = None
    """Pearson's correlation, -1 to 1; None where one of the two does not vary."""
    within: float | None = None
    """The same inside steps: what training changed over time has no part in it."""


class RewardWarning(BaseModel):
    """Something that a reward for the task itself would hardly show."""

    kind: Literal["length", "tool_errors", "flat_metric", "same_judge"]
    name: str
    """The figure that it is about: as in RewardLink, or the judge's metric."""
    message: str
    """A short sentence: `Reward follows length (r = +0.86).`"""
    detail: str
    """What that may mean, and where to look."""


class RewardCheck(BaseModel):
    """What the rewards of the newest training rollouts go with."""

    rollouts: int
    links: list[RewardLink] = Field(default_factory=list)
    """Length, tool errors, then the program's metrics by name."""
    warnings: list[RewardWarning] = Field(default_factory=list)
