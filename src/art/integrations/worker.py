"""One tracker with its bounded queue and its thread: whatever it does, the run does not wait for it."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar

from art.errors import ConfigError
from art.integrations.tracker import RunInfo, Tracker
from art.utils.console import say

logger = logging.getLogger(__name__)

T = TypeVar("T")
Kind: TypeAlias = Literal["row", "rollout", "checkpoint", "other"]
ROOM: dict[Kind, int] = {"row": 1000, "rollout": 2000, "checkpoint": 8, "other": 100}
"""How many may wait. At a row in ten seconds, an outage of nearly three hours loses none; of rollouts, which are
larger, about thirty batches wait."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds between attempts to start; doubled each time."""


@dataclass(frozen=True)
class Job:
    """One thing to tell the tracker."""

    kind: Kind
    count: int
    """How many of its kind: a batch holds many rollouts."""
    tell: Callable[[Tracker], None]


class Worker:
    """`offer` never blocks. What finds no room, or fails, is counted in `lost`."""

    def __init__(self, tracker: Tracker, run: RunInfo, *, on_start: Callable[[], None]) -> None:
        self.tracker = tracker
        self.name = tracker.about.name
        self.lost: Counter[Kind] = Counter()
        self._run_info = run
        self._on_start = on_start
        self._jobs: deque[Job] = deque()
        self._waiting: Counter[Kind] = Counter()
        self._changed = threading.Condition()
        self._busy: Job | None = None
        self._closing: float | None = None
        """When it has to have ended, by the monotonic clock; None while it is open."""
        self._down = False
        """It could not be started, and waits for the next attempt."""
        self._over = False
        """Nobody takes jobs any more."""
        self._told: set[str] = set()
        self._thread: threading.Thread | None = None

    # -- the run's side

    def offer(self, job: Job) -> None:
        """Queue a job, or count it as lost. The thread starts with the first one."""
        with self._changed:
            full = self._waiting[job.kind] + job.count > ROOM[job.kind] and self._waiting[job.kind] > 0
            if full or self._over or self._closing is not None:
                self.lost[job.kind] += job.count
            else:
                self._jobs.append(job)
                self._waiting[job.kind] += job.count
                self._changed.notify_all()
            self._ensure_thread()
        if full:
            self._say_once("full", "it is slower than the run, so some of what is reported is dropped")

    def open(self) -> None:
        """Start the tracker before there is anything to tell it."""
        with self._changed:
            self._ensure_thread()

    def _ensure_thread(self) -> None:
        if self._thread is None and not self._over:
            # A daemon: a tracker that hangs must not keep the program from ending.
            self._thread = threading.Thread(target=self._serve, name=f"art-tracker-{self.name}", daemon=True)
            self._thread.start()

    def drain(self, seconds: float) -> bool:
        """Wait until nothing is queued or in hand, at most so many seconds; not for a tracker that is down.

        False when something is left.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._over or self._down or self._idle, timeout=seconds)
            return self._idle

    @property
    def _idle(self) -> bool:
        return not self._jobs and self._busy is None

    def ask_to_close(self, deadline: float) -> None:
        """Take no more jobs, and end before `deadline` (monotonic clock). Returns at once."""
        with self._changed:
            if self._closing is None:
                self._closing = deadline
            if self._thread is None:
                self._over = True
            self._changed.notify_all()

    def closed(self) -> bool:
        """Wait for the end until the deadline that `ask_to_close` was given; what is left then is lost."""
        with self._changed:
            deadline = time.monotonic() if self._closing is None else self._closing
            done = self._changed.wait_for(lambda: self._over, timeout=max(0.0, deadline - time.monotonic()))
            if not done:
                self._abandon()
        return done

    def _abandon(self) -> None:
        if self._busy is not None:
            self.lost[self._busy.kind] += self._busy.count
        self._lose_waiting()
        self._over = True

    def _lose_waiting(self) -> None:
        for job in self._jobs:
            self.lost[job.kind] += job.count
        self._jobs.clear()
        self._waiting.clear()

    # -- the tracker's thread

    def _serve(self) -> None:
        if self._start():
            while (job := self._take()) is not None:
                self._done(job, self._attempt(job.tell, self.tracker))
            self._attempt(self.tracker.close, self._seconds_left())
        with self._changed:
            self._lose_waiting()
            self._over = True
            self._changed.notify_all()

    def _start(self) -> bool:
        """Start the tracker, again and again while it cannot be; False when the run ends before, or it never can."""
        pause = FIRST_PAUSE
        while True:
            failure = self._attempt(self.tracker.start, self._run_info)
            if failure is None:
                self._on_start()
                return True
            self._say_once("failed", f"it cannot be started ({_words(failure)}); the run goes on without it")
            if isinstance(failure, ConfigError):
                return False
            with self._changed:
                self._down = True
                self._changed.notify_all()
                if self._changed.wait_for(lambda: self._closing is not None, timeout=pause):
                    return False
                self._down = False
            pause = min(2 * pause, LONGEST_PAUSE)

    def _take(self) -> Job | None:
        """The next job; None when there will be none."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._jobs) or self._closing is not None)
            if not self._jobs or (self._closing is not None and self._seconds_left() <= 0):
                return None
            job = self._busy = self._jobs.popleft()
            self._waiting[job.kind] -= job.count
            return job

    def _done(self, job: Job, failure: BaseException | None) -> None:
        with self._changed:
            given_up, self._busy = self._over, None
            if failure is not None and not given_up:
                self.lost[job.kind] += job.count
            self._changed.notify_all()
        if failure is not None:
            self._say_once("failed", f"it did not take what was reported ({_words(failure)})")

    def _attempt(self, act: Callable[[T], None], given: T) -> BaseException | None:
        """What the tracker raised. A library that calls `sys.exit` has failed too."""
        try:
            act(given)
        except (Exception, SystemExit) as error:  # the boundary: counted and said, never raised
            logger.info("the tracker %s failed", self.name, exc_info=error)
            return error
        return None

    def _seconds_left(self) -> float:
        return 0.0 if self._closing is None else max(0.0, self._closing - time.monotonic())

    def _say_once(self, what: str, text: str) -> None:
        with self._changed:
            new = what not in self._told
            self._told.add(what)
        if new:
            say(f"tracker {self.name}: {text}", style="dim")


def _words(error: BaseException) -> str:
    first = str(error).strip().splitlines()[:1]
    return f"{type(error).__name__}: {first[0][:300]}" if first else type(error).__name__
