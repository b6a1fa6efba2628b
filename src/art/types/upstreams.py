"""Calls that were passed on to other models: captured, never trained."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field


class UpstreamCall(BaseModel):
    """A call that was passed on to an upstream. It is never trained."""

    call_id: str
    rollout_id: str | None = None
    agent: str | None = None
    upstream: str
    model: str
    """The model's name at the upstream."""
    route: str
    """What follows /v1/."""
    outcome: Literal["answered", "refused", "failed", "cancelled"]
    """`refused`: a 4xx of the upstream, passed on. `failed`: no usable answer. `cancelled`: the client left, or the rollout ended."""
    status: int | None = None
    """HTTP status of the upstream."""
    error: str = ""
    usage: dict[str, Any] = Field(default_factory=dict)
    """Under the upstream's own names."""
    started_at: float = 0.0
    first_byte_at: float | None = None
    finished_at: float | None = None


class UpstreamCallText(UpstreamCall):
    """With what was asked, and what was answered: the answer's JSON, or the list of a stream's events."""

    request: Any = None
    answer: Any = None


class UpstreamCalls(BaseModel):
    calls: list[UpstreamCallText]
