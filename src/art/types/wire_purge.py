"""Deleting recorded data, as the control API takes and tells it."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, Field, model_validator

from art.types.wire import Wire


class PurgeData(Wire):
    """What to delete. All that is given must hold; nothing given would be everything, and is refused."""

    project: str | None = None
    rollout_ids: list[str] | None = Field(None, min_length=1, max_length=10_000)
    older_than_seconds: float | None = Field(None, ge=0)
    """Ended at least so long ago."""
    dry_run: bool = False
    """Count, and delete nothing."""

    @model_validator(mode="after")
    def _names_something(self) -> Self:
        if self.project is None and self.rollout_ids is None and self.older_than_seconds is None:
            raise ValueError(
                "name a project, rollout_ids or older_than_seconds: without any it would be everything"
            )
        return self


class Purged(BaseModel):
    """What was deleted, or would be."""

    rollouts: int = 0
    calls: int = 0
    upstream_calls: int = 0
    logged_trajectories: int = 0
    token_files: int = 0
    kept_running: int = 0
    """Rollouts that still run: finish them first."""
    kept_in_jobs: int = 0
    """Rollouts that a queued or running training job is about to read."""
