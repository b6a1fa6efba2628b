"""What a person sees of a run: one live panel on a terminal, plain lines elsewhere, and JSON lines where asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self

from art.run.progress import Progress
from art.utils.console import console, say, whole_terminal

if TYPE_CHECKING:
    from rich.panel import Panel

BARS = "▁▂▃▄▅▆▇█"
SHOWN_REWARDS = 60
PER_SECOND = 4
"""Drawings of the panel."""


class Display:
    """Shows one run. A context manager; lines that stay appear above the panel, and it is all that is drawn meanwhile."""

    def __init__(self, progress: Progress, *, events: IO[str] | None = None) -> None:
        """`events`: where JSON lines go, one for each thing that happened."""
        self._progress = progress
        self._events = events
        self._drawn = ExitStack()

    def __enter__(self) -> Self:
        if console().is_terminal:
            from rich.live import Live

            live = Live(
                get_renderable=self.panel, console=console(), refresh_per_second=PER_SECOND, transient=True
            )
            self._drawn.enter_context(whole_terminal())
            self._drawn.enter_context(live)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._drawn.close()

    def say(self, line: str, **event: Any) -> None:
        """A line that stays; "" shows nothing. `event`, with its kind under `event`, is the same as JSON."""
        say(line)
        if self._events is not None and event:
            self._events.write(json.dumps(event) + "\n")
            self._events.flush()

    def panel(self) -> Panel:
        """The panel of this moment."""
        from rich.panel import Panel
        from rich.table import Table

        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim")
        table.add_column()
        for name, value in figures(self._progress).items():
            table.add_row(name, value)
        return Panel(table, title=f"art run {self._progress.name}", title_align="left", expand=False)


def figures(progress: Progress) -> Mapping[str, str]:
    """What the panel says, by name: empty figures are left out."""
    done = f"batch {min(progress.batch + 1, progress.steps)} of {progress.steps}, step {progress.step}"
    found = {"at": f"{done}: {progress.phase}, {span(progress.seconds_in_phase)}"}
    if progress.runs_ended:
        whole = f"{progress.groups_ready}/{progress.groups} groups"
        found["ready"] = f"{whole}, {progress.runs_ended} rollouts"
    if (reward := progress.reward) is not None:
        found["reward"] = f"{reward:.3f} in this batch"
    if progress.rewards:
        found["rewards"] = f"{sparkline(progress.rewards[-SHOWN_REWARDS:])} {progress.rewards[-1]:.3f}"
    if (rate := progress.tokens_per_second) is not None:
        found["speed"] = f"{rate:.0f} tokens/s sampled"
    if (left := progress.seconds_left) is not None:
        found["left"] = f"about {span(left)}"
    return found


def sparkline(values: list[float]) -> str:
    """Values as a row of bars from the smallest to the largest."""
    low, high = min(values), max(values)
    top = len(BARS) - 1
    return "".join(BARS[round((value - low) / (high - low) * top) if high > low else 0] for value in values)


def span(seconds: float) -> str:
    """A span of time with two units at most: `45 s`, `3 min 20 s`, `2 h 5 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
