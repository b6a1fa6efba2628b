"""Trackio: a run in its database on this machine, and in a Hugging Face Space where one is named."""

from __future__ import annotations

from typing import Any

from art.config.trackers import TrackioOptions
from art.integrations.tracker import About, FiguresOnly, Row, RunInfo


class TrackioTracker(FiguresOnly):
    """Sends nothing unless `space_id` is given."""

    def __init__(self, options: TrackioOptions) -> None:
        self._options = options
        self._run: Any = None

    @property
    def about(self) -> About:
        """Trackio's folder (TRACKIO_DIR), or the Space."""
        space = self._options.space_id
        place = "Trackio's folder on this machine" if space is None else f"huggingface.co/spaces/{space}"
        return About(name="trackio", place=place, leaves=space is not None)

    def start(self, run: RunInfo) -> None:
        """Begin the run, or go on with the one of its name."""
        import trackio

        self._run = trackio.init(
            project=self._options.project or run.project,
            name=run.run_id,
            space_id=self._options.space_id,
            config=dict(run.config),
            resume="allow",
            embed=False,
        )

    def log(self, row: Row) -> None:
        """One row at its step."""
        self._run.log(row.metrics, step=row.step)

    def close(self, seconds: float) -> None:
        """Write what is queued."""
        self._run.finish()
