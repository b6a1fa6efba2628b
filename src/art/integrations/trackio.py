"""Trackio: a run in its database on this machine, and in a Hugging Face Space where one is named."""

from __future__ import annotations

import os
from typing import Any

from art.config.outside import host_of, is_loopback
from art.config.trackers import TrackioOptions
from art.integrations.tracker import About, FiguresOnly, Row, RunInfo


class TrackioTracker(FiguresOnly):
    """Sends nothing unless `space_id` is given."""

    def __init__(self, options: TrackioOptions) -> None:
        self._options = options
        self._run: Any = None

    @property
    def about(self) -> About:
        """Trackio's folder (TRACKIO_DIR), the Space, or a server of one's own (TRACKIO_SERVER_URL)."""
        space, server = self._away
        if server is not None:
            place = host_of(server)
            return About(name="trackio", place=place, leaves=not is_loopback(place))
        place = "Trackio's folder on this machine" if space is None else f"huggingface.co/spaces/{space}"
        return About(name="trackio", place=place, leaves=space is not None)

    @property
    def _away(self) -> tuple[str | None, str | None]:
        """The Space, and the server where there is no Space, as Trackio itself finds them."""
        space = self._options.space_id or os.environ.get("TRACKIO_SPACE_ID") or None
        return space, None if space is not None else os.environ.get("TRACKIO_SERVER_URL") or None

    def start(self, run: RunInfo) -> None:
        """Begin the run, or go on with the one of its name."""
        import trackio
        from trackio import context_vars

        project = self._options.project or run.project
        if self._away == (None, None):
            context_vars.current_project.set(
                project
            )  # else it prints to stdout, which may be a program's output
        self._run = trackio.init(
            project=project,
            name=run.run_id,
            space_id=self._options.space_id,
            config=dict(run.config),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def log(self, row: Row) -> None:
        """One row at its step."""
        self._run.log(row.metrics, step=row.step)

    def close(self, seconds: float) -> None:
        """Write what is queued."""
        self._run.finish()
