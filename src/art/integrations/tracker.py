"""What a tracker is, and what it is told: the run, its rows, its rollouts, its checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from art.errors import ConfigError
    from art.integrations.seen import RolloutBatch


@dataclass(frozen=True, kw_only=True)
class About:
    """What a tracker is, as data."""

    name: str
    place: str
    """Where it keeps what it gets: a host, or a folder or file of this machine."""
    leaves: bool
    """Whether that can leave this machine."""
    figures: bool = True
    """Whether it takes rows; one that does not is never given any."""
    rollouts: bool = False
    """Whether it takes rollouts; one that does not is never given any."""
    content: bool = False
    """Whether its rollouts hold what was said. Without it they hold names, counts, times and rewards."""
    lacks: ConfigError | None = None
    """What `start` would raise as things are: a key that is nowhere. None where it can begin, or nobody knows before."""
    checkpoints: bool = False
    """Whether it uploads checkpoints; one that does not is told of none."""


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """The run that is reported: a model's history."""

    project: str
    name: str
    run_id: str
    """The same when the run is resumed, so that a tracker goes on where it stopped."""
    entity: str | None = None
    folder: Path
    """Of the model's files on this machine; trackers that write files put them here unless told otherwise."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Plain values that describe the run: base model, LoRA, history."""


@dataclass(frozen=True)
class Row:
    """One row of figures, as the server recorded it."""

    step: int
    split: str
    metrics: dict[str, float]
    """By full name: `train/reward`, `loss/train`."""
    time: float
    """Seconds since 1970."""


@dataclass(frozen=True)
class PublishedStep:
    """A checkpoint that a train call published."""

    step: int
    path: Path
    """Folder in PEFT's format; on this machine, or the tracker is not told."""
    metrics: dict[str, float]


@runtime_checkable
class Tracker(Protocol):
    """Where a run is reported to. Made by its class with options as keyword arguments.

    All methods but `about` are called on one thread of the tracker's own, one after the other, and may block. What they
    raise is counted and said once; it never reaches the run.
    """

    @property
    def about(self) -> About:
        """What it is; asked before `start`, on the program's thread."""
        ...

    def start(self, run: RunInfo) -> None:
        """Begin or resume the run. Called again, after a pause, while it raises anything but ConfigError."""
        ...

    def log(self, row: Row) -> None:
        """Take one row. Only for `about.figures`."""
        ...

    def rollouts(self, batch: RolloutBatch) -> None:
        """Take the rollouts behind a row. Only for `about.rollouts`."""
        ...

    def artifact(self, checkpoint: PublishedStep) -> None:
        """Take a published checkpoint. Only for `about.checkpoints`."""
        ...

    def close(self, seconds: float) -> None:
        """Send what is left, within so many seconds. Never called without `start` having succeeded."""
        ...


class FiguresOnly:
    """What the trackers that take neither rollouts nor checkpoints have in common."""

    def rollouts(self, batch: RolloutBatch) -> None:
        """Never called: `about.rollouts` is False."""
        raise AssertionError("a tracker of figures is given no rollouts")

    def artifact(self, checkpoint: PublishedStep) -> None:
        """Never called: `about.checkpoints` is False."""
        raise AssertionError("this tracker takes no checkpoints")
