"""How long a project's recorded data is kept, as the control API takes and tells it."""

from __future__ import annotations

from pydantic import BaseModel, Field

from art.types.wire import Wire
from art.types.wire_purge import Purged

LONGEST = 100 * 366 * 24 * 3600.0
"""Seconds; beyond a century it is a mistake."""


class SetRetention(Wire):
    """Keep a project's data so long and no longer."""

    project: str = Field(min_length=1)
    keep_seconds: float | None = Field(gt=0, le=LONGEST)
    """From a rollout's end. None keeps everything, as without a retention."""
    dry_run: bool = False
    """Only tell what would go now."""


class ProjectRetention(BaseModel):
    """What holds for one project."""

    project: str
    keep_seconds: float
    changed_at: float
    """Unix time."""


class RetentionSet(BaseModel):
    """What holds from now on, and what went at once (with `dry_run`: what would)."""

    retention: ProjectRetention | None
    purged: Purged


class RetentionList(BaseModel):
    retentions: list[ProjectRetention]
