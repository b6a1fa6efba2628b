"""TensorBoard: event files, written as its own library writes them. No torch and no tensorflow."""

from __future__ import annotations

from typing import Any

from art.config.trackers import TensorboardOptions
from art.integrations.tracker import About, FiguresOnly, Row, RunInfo

FOLDER = "tensorboard"


class TensorboardTracker(FiguresOnly):
    """One event file each time the run is opened, all in one folder: TensorBoard shows them as one run."""

    def __init__(self, options: TensorboardOptions) -> None:
        self._options = options
        self._writer: Any = None

    @property
    def about(self) -> About:
        """A folder of this machine."""
        place = f"the folder {FOLDER} of the model" if self._options.dir is None else str(self._options.dir)
        return About(name="tensorboard", place=place, leaves=False)

    def start(self, run: RunInfo) -> None:
        """Open an event file; the run's configuration is its first entry, as text."""
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        folder = self._options.dir or run.folder / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        self._writer = EventFileWriter(str(folder))

    def log(self, row: Row) -> None:
        """A scalar for each figure, at the step, with the time at which it was recorded."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in row.metrics.items()]
        self._writer.add_event(Event(wall_time=row.time, step=row.step, summary=Summary(value=values)))
        self._writer.flush()  # a person watches; and a kill must lose nothing that was logged

    def close(self, seconds: float) -> None:
        """Close the file."""
        self._writer.close()
