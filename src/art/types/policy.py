"""Enumerations and sampling parameters that client, gateway, engine and trainer share."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class RolloutStatus(StrEnum):
    """How a rollout stands. Only `running` is not final for the agent; `finished` waits for training."""

    RUNNING = "running"
    """The session is open."""
    FINISHED = "finished"
    """The agent ended; the rollout waits to be trained or evaluated."""
    EVALUATED = "evaluated"
    """Its reward was measured for evaluation; it is never trained."""
    TRAINED = "trained"
    """Its tokens took part in a published step."""
    STALE = "stale"
    """Sampled from a version too old for the batch that wanted it."""
    ZERO_VARIANCE = "zero_variance"
    """Its group's rewards were equal, so it carries no signal."""
    AGENT_ERROR = "agent_error"
    """The agent raised."""
    INFRA_ERROR = "infra_error"
    """A part of ART or the machine failed. Never a reward of 0."""
    NO_CALLS = "no_calls"
    """The agent never called the model, so there is nothing to train."""
    OVERLONG = "overlong"
    """Longer than the trainer can take."""


class Fate(StrEnum):
    """What became of one sampled choice."""

    PENDING = "pending"
    TRAINED = "trained"
    EVALUATION = "evaluation"
    AUXILIARY = "auxiliary"
    FILTERED = "filtered"
    DUPLICATE = "duplicate"
    STALE = "stale"
    OVERLONG = "overlong"


class Purpose(StrEnum):
    """What a session is for; it decides whose sampling parameters hold."""

    TRAIN = "train"
    EVALUATE = "evaluate"


FinishReason = Literal["stop", "length", "tool_calls", "cancelled", "error"]
Sampling = Literal["training", "caller"]
"""`training`: temperature 1, no truncation, whatever the caller asks. `caller`: as asked."""


class SamplingParams(BaseModel):
    """How one choice is sampled. The same class records what was asked and what was used."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    temperature: float = Field(default=1.0, ge=0.0, le=100.0)
    """0 is greedy; its log-probabilities are taken at temperature 1 and the choice is not trained."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    top_k: int = Field(default=0, ge=0)
    """0 is off."""
    max_tokens: int | None = Field(default=None, ge=1)
    """New tokens at most; None is what the context leaves."""
    seed: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: bool = True
    top_logprobs: int = Field(default=0, ge=0, le=20)


class Limits(BaseModel):
    """Bounds of one rollout; None is none."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_calls: int | None = Field(default=None, ge=1)
    """Calls to the model."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Sampled tokens over all calls."""
    max_seconds: float | None = Field(default=None, gt=0)
    """Wall time from the session's start."""
