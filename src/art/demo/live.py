"""What the demonstration shows while it runs: one live panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from art.evals.intervals import Mean
from art.utils.console import whole_terminal

if TYPE_CHECKING:
    from art.backends.results import TrainResult

BARS = "▁▂▃▄▅▆▇█"


def sparkline(rewards: Sequence[float]) -> str:
    """Rewards between 0 and 1 as a row of bars."""
    top = len(BARS) - 1
    return "".join(BARS[round(min(max(reward, 0.0), 1.0) * top)] for reward in rewards)


class Display:
    """Shows phases, steps and evaluations; a context manager."""

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._title = title
        self._lines: list[str] = []
        self._status = Text("")
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        )
        self._current = self._progress.add_task("starting", total=None)
        self._live = (
            Live(self, console=console, refresh_per_second=4, transient=True) if console.is_terminal else None
        )
        self._drawn = ExitStack()
        self._done = 0
        self._reward = 0.0
        self._started = time.monotonic()

    def __rich__(self) -> Panel:
        body = [Text(line) for line in self._lines[-12:]]
        return Panel(Group(*body, self._status, self._progress), title=self._title, title_align="left")

    def __enter__(self) -> Self:
        if self._live is not None:
            self._drawn.enter_context(whole_terminal())
            self._drawn.enter_context(self._live)
        return self

    def __exit__(self, *_: object) -> None:
        self._drawn.close()

    def say(self, line: str) -> None:
        """A line that stays."""
        self._lines.append(line)
        # Above the live panel; rich keeps the panel at the bottom.
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def phase(self, what: str, total: int) -> None:
        """What is being done now; `total` runs are to come, 0 when it is not countable."""
        self._done, self._reward = 0, 0.0
        self._progress.reset(self._current, total=total or None, description=what, completed=0)
        if self._live is None and not total:
            self.say(what)

    def advance(self, reward: float) -> None:
        """One run has ended."""
        self._done += 1
        self._reward += reward
        self._progress.update(self._current, advance=1)
        self._status = Text(f"reward so far {self._reward / self._done:.2f}")

    def trained(
        self, step: int, steps: int, rewards: Sequence[float], result: TrainResult, seconds: float
    ) -> None:
        """A step has been trained."""
        left = (steps - step) * seconds
        state = f"published step {result.step}" if result.published else f"nothing published: {result.reason}"
        parity = result.metrics.get("parity/mean")
        parts = [
            f"step {step}/{steps}  reward {rewards[-1]:.3f} {sparkline(rewards)}",
            state,
            *([] if parity is None else [f"parity {parity:.4f}"]),
            f"{seconds:.1f} s, about {left:.0f} s left",
        ]
        self.say("  ".join(parts))

    def stopped(self, done: int, steps: int, why: str) -> None:
        """Training ends before all steps."""
        if done < steps:
            self.say(f"stopped after step {done} of {steps}: {why}")

    def evaluated(self, title: str, mean: Mean) -> None:
        """An evaluation has ended."""
        low, high = mean.ci95
        self.say(f"{title}: {mean.value:.3f} (95% {low:.3f} to {high:.3f}, {mean.count} runs)")


def transcript(turns: Sequence[dict[str, Any]]) -> str:
    """A run as lines `role: text`; tool calls as the call."""
    lines = []
    for turn in turns:
        calls = [
            f"{call['function']['name']}({call['function']['arguments']})"
            for call in turn.get("tool_calls") or []
        ]
        text = " ".join(part for part in (str(turn.get("content") or ""), *calls) if part)
        lines.append(f"  {turn['role']:>9}: {text}".replace("\n", "\n" + " " * 13))
    return "\n".join(lines)
