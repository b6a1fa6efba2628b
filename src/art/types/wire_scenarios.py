"""Scenarios in a list, as the read API tells them: part of `wire_views`, which names it too."""

from __future__ import annotations

from pydantic import BaseModel, Field

from art.types.policy import Purpose


class ScenarioLine(BaseModel):
    """`first` and `last` are of rollouts with one purpose: what was sampled to be trained is not compared with evaluation."""

    scenario_id: str
    scenario_label: str = ""
    """As of a group."""
    rollouts: int
    """All of them."""
    purpose: Purpose = Purpose.TRAIN
    """Of those that are compared: the one with rewards at more steps, training where both have as many."""
    first_step: int
    last_step: int
    reward_first: float | None = None
    reward_last: float | None = None
    """Mean over the rollouts of its first and of its newest step."""
    rollouts_first: int = 0
    rollouts_last: int = 0
    """That have a reward there."""
    metrics_first: dict[str, float] = Field(default_factory=dict)
    metrics_last: dict[str, float] = Field(default_factory=dict)
    """Means of the program's metrics there."""
    preview: str = ""


class ScenarioList(BaseModel):
    scenarios: list[ScenarioLine]
    next: str | None = None
