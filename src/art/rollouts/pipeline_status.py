"""What a pipeline says while it runs: a line per step, and one now and then in between."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from art.errors import InvalidInput
from art.utils.console import say


@dataclass(frozen=True)
class PipelineStatus:
    """Where a pipeline stands. Groups, unless it says otherwise."""

    step: int
    """The published step."""
    steps: int
    """Train calls of this run."""
    max_steps: int | None
    running: int
    waiting: int
    doing: str
    """"collecting", "training" or "evaluating"."""
    scenarios: int
    """Those that are done, earlier runs included."""
    stale: int
    """Discarded in this run because they were too old."""
    failed: int
    """Of this run, without a trajectory to train."""


class StatusReporter:
    """Prints lines about one pipeline.

    `interval_seconds`: between lines while nothing else is said; 0 says nothing in between. `ewa_alpha`: weight
    of the newest step in the running averages of reward and step time, from which the time left is estimated.
    """

    def __init__(
        self,
        name: str,
        interval_seconds: float = 60.0,
        ewa_alpha: float = 0.2,
        total_scenarios: int | None = None,
        *,
        show: Callable[[str], None] = say,
    ) -> None:
        if not 0 < ewa_alpha <= 1:
            raise InvalidInput(f"status_ewa_alpha is {ewa_alpha}", hint="give more than 0 and at most 1")
        if interval_seconds < 0:
            raise InvalidInput(
                f"log_interval_seconds is {interval_seconds}",
                hint="give seconds; 0 shows no lines in between",
            )
        self._name = name
        self._interval = interval_seconds
        self._alpha = ewa_alpha
        self._total = total_scenarios
        self._show = show
        self._reward: float | None = None
        self._seconds: float | None = None
        self._last_step = time.monotonic()

    def begin(self, line: str) -> None:
        """The run begins; `line` says from where ("" says nothing)."""
        self._last_step = time.monotonic()
        self.tell(line)

    def tell(self, line: str) -> None:
        """One line about this pipeline; "" shows nothing."""
        if line:
            self._show(f"{self._name}: {line}")

    def stepped(self, status: PipelineStatus, *, reward: float | None, published: bool, reason: str) -> None:
        """A train call has ended; `reward` is its groups' mean."""
        now = time.monotonic()
        self._seconds = self._averaged(self._seconds, now - self._last_step)
        self._last_step = now
        if reward is not None:
            self._reward = self._averaged(self._reward, reward)
        self.tell(self.line(status) + ("" if published else f"  (nothing published: {reason})"))

    def _averaged(self, before: float | None, value: float) -> float:
        return value if before is None else (1 - self._alpha) * before + self._alpha * value

    def line(self, status: PipelineStatus) -> str:
        """Where it stands, in one line."""
        goal = "" if status.max_steps is None else f"/{status.max_steps}"
        parts = [f"batch {status.steps}{goal}", f"step {status.step}"]
        parts += [f"reward {self._reward:.3f}"] if self._reward is not None else []
        parts.append(f"{status.doing}, {status.running} running, {status.waiting} waiting")
        total = "" if self._total is None else f"/{self._total}"
        parts.append(f"scenarios {status.scenarios}{total}")
        parts += [f"{status.stale} too old"] if status.stale else []
        parts += [f"{status.failed} failed"] if status.failed else []
        if self._seconds is not None:
            parts.append(f"{self._seconds:.1f} s/step")
            if status.max_steps is not None:
                parts.append(f"about {self._seconds * (status.max_steps - status.steps) / 60:.0f} min left")
        return "  ".join(parts)

    async def run(self, status: Callable[[], PipelineStatus]) -> None:
        """A line every `interval_seconds`, until cancelled."""
        while self._interval:
            await asyncio.sleep(self._interval)
            self.tell(self.line(status()))
