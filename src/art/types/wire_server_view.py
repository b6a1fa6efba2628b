"""What the dashboard reads of the server itself and keeps there: queues and workers, notes, saved views,
configurations of runs.

Part of `wire_views`, which names all of it.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field


class Note(BaseModel):
    """A person's flag and note at a rollout."""

    flag: Literal["good", "bad", "check"] | None = None
    note: str = Field("", max_length=4000)
    by: str | None = None
    """Id of the key that set it."""
    time: float | None = None


class SavedView(BaseModel):
    name: str = Field(min_length=1, max_length=100)
    location: str = Field(max_length=4000)
    """The part of the address behind `#`."""


class SavedViews(BaseModel):
    views: list[SavedView]


class QueueInfo(BaseModel):
    name: str
    """`calls`, `jobs`, `store`, or a worker's."""
    waiting: int
    running: int
    limit: int | None = None


class ServerView(BaseModel):
    """The server, now."""

    version: str
    started_at: float
    read_only: bool
    """`art ui`: no engine and no trainer, so nothing can be sampled or changed."""
    queues: list[QueueInfo]
    workers: list[dict[str, Any]]
    """As in Health."""
    sampled_tokens_per_second: float | None = None
    """Over the last minute; so are the others."""
    calls_per_minute: float | None = None
    refused_per_minute: float | None = None
    memory_bytes: int
    store_bytes: int
    open_connections: int | None = None


class RunConfig(BaseModel):
    """The resolved configuration of one `art run`."""

    config: dict[str, Any]
    origin: dict[str, str] = Field(default_factory=dict)
    """Dotted name to `default`, `run.toml`, `environment` or `flag`."""
