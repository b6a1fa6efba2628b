"""What `art explain` tells of a rollout."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from art.types.policy import Purpose, RolloutStatus, Sampling


class ExplainedToken(BaseModel):
    text: str
    token_id: int
    logprob: float
    trainable: bool
    """False where a grammar put it in place of the model's own draw."""


class ExplainedChoice(BaseModel):
    """One sampled choice and what becomes of it."""

    index: int
    finish_reason: str
    token_count: int
    fate: str
    """A `Fate`, or for one that is still pending `trainable`, `auxiliary` or `filtered`: what a train call would do."""
    reason: str
    reward: float | None = None
    """The reward it is compared by: its own, its agent's or the rollout's."""
    reward_of: Literal["", "call", "agent", "rollout"] = ""
    trained_tokens: int = 0
    trained_step: int | None = None
    tokens: list[ExplainedToken] | None = None
    """When asked for."""


class ExplainedCall(BaseModel):
    """One call: where it stands, what it was given, what it was asked."""

    call_id: str
    number: int
    parent: int | None = None
    """Number of the call it goes on from."""
    branch: int
    agent: str | None = None
    dialect: str
    version: str
    auxiliary: bool
    auxiliary_reason: str = ""
    prompt_tokens: int
    reused_tokens: int
    """Of the prompt, taken from token memory as they were."""
    tool_count: int
    sampling_asked: dict[str, object]
    sampling_used: dict[str, object]
    overrides: list[str]
    """Values that were asked for and not followed."""
    started_at: float
    seconds: float | None = None
    prompt_tail: str | None = None
    """The prompt's text behind what its parent call knew, when tokens were asked for."""
    withheld: str = ""
    """Why its text is not shown."""
    choices: list[ExplainedChoice]


class Explanation(BaseModel):
    """Every call of a rollout, and whether it will be trained, was trained, or why not."""

    rollout_id: str
    model: str
    """`project/name@step`."""
    purpose: Purpose
    status: RolloutStatus
    reason: str = ""
    reward: float | None = None
    agent_rewards: dict[str, float] = Field(default_factory=dict)
    sampling: Sampling
    auxiliary: str
    next: str
    """What has to happen before the rollout is trained; empty when nothing will."""
    calls: list[ExplainedCall]
    upstream_calls: int = 0
    """Calls to other models that were passed on, which are never trained."""
