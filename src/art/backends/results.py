"""What `train` returns."""

from __future__ import annotations

from dataclasses import dataclass, field

from art.types.wire import JobResult, TrajectoryOutcome


@dataclass(repr=False)
class TrainResult:
    """A finished train call.

    `step` is the model's published step afterwards. A batch without signal publishes nothing: the step stays,
    `published` is False and `reason` says why. `trajectories` tells for each trajectory, in the order it was
    handed over, what became of it.
    """

    step: int
    metrics: dict[str, float] = field(default_factory=dict)
    published: bool = True
    reason: str = ""
    batch: int = 0
    trajectories: list[TrajectoryOutcome] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        # One line: the metrics and outcomes of a batch would fill a screen.
        parts = [f"step={self.step}", f"published={self.published}"]
        parts += [f"reason={self.reason!r}"] if self.reason else []
        parts += [f"batch={self.batch}", f"trajectories={len(self.trajectories)}"]
        parts += [f"metrics={len(self.metrics)}", *self._more()]
        return f"{type(self).__name__}({', '.join(parts)})"

    def _repr_html_(self) -> str:
        from art.notebook import train_html

        return train_html(self)

    def _more(self) -> list[str]:
        return []


@dataclass(repr=False)
class LocalTrainResult(TrainResult):
    """A train call's result with the folder of the checkpoint it published, on the server's machine."""

    checkpoint_path: str | None = None

    def _more(self) -> list[str]:
        return [f"checkpoint_path={self.checkpoint_path!r}"]


def from_job(result: JobResult) -> LocalTrainResult:
    """The client's form of a job's result."""
    return LocalTrainResult(
        step=result.step,
        metrics=result.metrics,
        published=result.published,
        reason=result.reason,
        batch=result.batch,
        trajectories=result.trajectories,
        notes=result.notes,
        checkpoint_path=result.checkpoint_path,
    )
