"""The progress bar of a gather, on a terminal; elsewhere nothing is shown."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from art.trajectories import Trajectory
from art.utils.console import bars_wanted, console

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

SHOWN_METRICS = 4
"""As many averages as fit beside the bar."""


class GatherProgress:
    """Counts trajectories, exceptions and running averages."""

    def __init__(self, description: str | None, *, max_metrics: int | None = None) -> None:
        self._description = description
        self._max_metrics = SHOWN_METRICS if max_metrics is None else max_metrics
        self._total = 0
        self._exceptions = 0
        self._sums: dict[str, tuple[float, int]] = {}
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if self._description is None or not bars_wanted():
            return self
        from rich.errors import LiveError
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, console=console(), transient=True)
        try:
            self._bar.start()
        except LiveError:
            self._bar = None  # another live display owns the terminal
        else:
            self._task = self._bar.add_task(self._description, total=None)
        return self

    def expect(self, trajectories: int) -> None:
        """More trajectories are to come."""
        self._total += trajectories
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, total=self._total)

    def done(self, result: object) -> None:
        """One member has ended, with a trajectory, several, or an exception."""
        for item in result if isinstance(result, list | tuple) else [result]:
            self._count(item)
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, advance=1, description=f"{self._description} {self._averages()}")

    def _count(self, item: Any) -> None:
        if isinstance(item, BaseException):
            self._exceptions += 1
        elif isinstance(item, Trajectory):
            for name, value in {"reward": item.reward, **item.metrics}.items():
                total, count = self._sums.get(name, (0.0, 0))
                self._sums[name] = (total + float(value), count + 1)

    def _averages(self) -> str:
        shown = [f"{name}={total / count:.3g}" for name, (total, count) in self._sums.items()]
        shown = shown[: self._max_metrics]
        if self._exceptions:
            shown.append(f"exceptions={self._exceptions}")
        return " ".join(shown)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
