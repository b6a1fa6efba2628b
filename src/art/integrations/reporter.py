"""Reports a run to its trackers. The run never waits for one, and never fails with one."""

from __future__ import annotations

import atexit
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from art.integrations.batch import Batch
from art.integrations.tracker import PublishedStep, Row, RunInfo, Tracker
from art.integrations.uses import note_use
from art.integrations.worker import Job, Kind, Worker
from art.utils.console import say

CLOSE_SECONDS = 10.0
"""Deadline at the end of a program: what a person waits for."""


class Reporter:
    """The trackers of one run. Every method but `drain` and `close` returns at once."""

    def __init__(self, run: RunInfo) -> None:
        self._run = run
        self._workers: dict[str, Worker] = {}
        self._lost_before = 0
        """By trackers that were closed."""

    def _close_at_exit(self) -> None:
        atexit.unregister(self.close)
        atexit.register(self.close)

    @property
    def names(self) -> list[str]:
        """Those that are open."""
        return list(self._workers)

    @property
    def lost(self) -> int:
        """Rows, rollouts and checkpoints that a tracker did not get, over all trackers."""
        return self._lost_before + sum(worker.lost.total() for worker in self._workers.values())

    def add(self, tracker: Tracker) -> None:
        """Open a tracker, on a thread of its own; one of a name that is open changes nothing."""
        about = tracker.about
        if about.name not in self._workers:
            worker = Worker(tracker, self._run, on_start=lambda: self._started(tracker))
            self._workers[about.name] = worker
            self._close_at_exit()
            worker.open()

    def _started(self, tracker: Tracker) -> None:
        self._close_at_exit()  # exits run backwards: before what the tracker's library has registered for its own
        note_use(self._run.folder, tracker.about)

    def row(self, row: Row) -> None:
        """Report a row of figures to those trackers that take them."""
        for worker in self._workers.values():
            if worker.tracker.about.figures:
                worker.offer(Job("row", 1, lambda tracker: tracker.log(row)))

    @property
    def takes_rollouts(self) -> bool:
        """Whether any of them does."""
        return any(worker.tracker.about.rollouts for worker in self._workers.values())

    def rollouts(self, batch: Batch) -> None:
        """Report the rollouts behind a row to those trackers that take them."""
        for worker in self._workers.values():
            if worker.tracker.about.rollouts and batch.count:
                worker.offer(Job("rollout", batch.count, batch.tell))

    def checkpoint(self, checkpoint: PublishedStep) -> None:
        """Report a published step to those trackers that upload them."""
        for worker in self._workers.values():
            if worker.tracker.about.checkpoints:
                worker.offer(Job("checkpoint", 1, lambda tracker: tracker.artifact(checkpoint)))

    def tell(self, name: str, act: Callable[[Tracker], None]) -> None:
        """Have `act` done on the thread of the tracker of that name, where there is one."""
        if name in self._workers:
            self._workers[name].offer(Job("other", 1, act))

    def ask(self, name: str, act: Callable[[Tracker], Any], seconds: float) -> Any:
        """What `act` returns on that tracker's thread; None when it is down, or takes longer than so many seconds."""
        worker = self._workers[name]
        found: list[Any] = []
        worker.offer(Job("other", 1, lambda tracker: found.append(act(tracker))))
        worker.drain(seconds)
        return found[0] if found else None

    def drain(self, seconds: float) -> bool:
        """Wait for what is queued, at most so many seconds in all; False when something is left."""
        deadline = time.monotonic() + seconds
        waits = [
            worker.drain(max(0.0, deadline - time.monotonic())) for worker in list(self._workers.values())
        ]
        return all(waits)

    def close(self, seconds: float = CLOSE_SECONDS, *, names: Iterable[str] | None = None) -> None:
        """Let trackers (all, or those named) send what they have, at most so many seconds in all; then say what was lost."""
        chosen = [name for name in (self._workers if names is None else names) if name in self._workers]
        closing = [self._workers.pop(name) for name in chosen]
        deadline = time.monotonic() + seconds
        for worker in closing:
            worker.ask_to_close(deadline)
        for worker in closing:
            late = not worker.closed()
            self._lost_before += worker.lost.total()
            if late or worker.lost:
                say(f"tracker {worker.name}: {_said(worker.lost, late, seconds)}", style="dim")
        if not self._workers:
            atexit.unregister(self.close)


_WORDS: dict[Kind, str] = {"row": "row", "rollout": "rollout", "checkpoint": "checkpoint", "other": "message"}


def _said(lost: Counter[Kind], late: bool, seconds: float) -> str:
    parts = [f"{count} {_WORDS[kind]}{'' if count == 1 else 's'}" for kind, count in lost.items() if count]
    ended = [f"it did not end within {seconds:g} s"] if late else []
    missing = [f"{', '.join(parts)} did not reach it"] if parts else []
    return "; ".join([*ended, *missing])
