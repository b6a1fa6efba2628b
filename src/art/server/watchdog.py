"""Notices that work in hand does not get on, and writes down where everything stands.

Deadlines end what hangs; the watchdog leaves behind why it hung, while it still does. It looks once a second, and once
a part has had work for long without doing any of it, the log gets the stacks of the part's process, of this one's
threads, and of its tasks. It ends nothing.

An event loop that is held up cannot look. For that there is a timer outside of Python, wound up at every look: when it
runs off, the threads' stacks are in the log, whatever holds the interpreter.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
BLOCKED_SECONDS = 5.0
"""An event loop that is held up for this long: clients wait for everything meanwhile."""
MAX_KINDS = 40
"""Different stacks that are written down; thousands of calls wait in a few places."""
MAX_FRAMES = 24


@dataclass(frozen=True, slots=True)
class Work:
    """What a part has to do."""

    pending: int
    done: int
    """Another number whenever something was done; while it stays, nothing was."""


class Part(Protocol):
    """What the watchdog looks at."""

    def in_hand(self) -> Work:
        """What it has to do now."""
        ...

    def dump_stacks(self) -> None:
        """Write the stacks of the part's own process into its log; nothing where it has none."""
        ...


@dataclass(frozen=True, slots=True)
class Counted:
    """A part of this process, whose stacks are written anyway."""

    count: Callable[[], tuple[int, int]]
    """What is pending and what is done."""

    def in_hand(self) -> Work:
        return Work(*self.count())

    def dump_stacks(self) -> None:
        """Nothing more to write."""


@dataclass(slots=True)
class _Seen:
    """Since when a part has been as it is, by the watchdog's own clock."""

    done: int
    since: float
    told_after: float
    """Seconds without progress after which it is told; doubled each time."""


class Watchdog:
    """`run` until cancelled. `parts` gives what there is now, by name."""

    def __init__(self, parts: Callable[[], Mapping[str, Part]], *, stall_seconds: float, log: Path) -> None:
        self._parts = parts
        self._stall_seconds = stall_seconds
        self._log = log
        self._seen: dict[str, _Seen] = {}
        self._clock = 0.0
        """Seconds of looking: time in which this process was held up counts little."""

    async def run(self) -> None:
        """Look until cancelled."""
        before = time.monotonic()
        with self._timer() as (file, wind_up):
            while True:
                wind_up()
                await asyncio.sleep(LOOK_SECONDS)
                now = time.monotonic()
                if now - before > LOOK_SECONDS + BLOCKED_SECONDS:
                    logger.warning(
                        "the event loop was held up for %.1f s; where, is above", now - before - LOOK_SECONDS
                    )
                self._clock += min(now - before, 2 * LOOK_SECONDS)
                before = now
                for name in self.look():
                    faulthandler.dump_traceback(file, all_threads=True)
                    logger.warning("%s: the tasks of the gateway:\n%s", name, task_stacks())

    def look(self) -> list[str]:
        """The parts that are to be told about now; their own processes write their stacks."""
        found, told = self._parts(), []
        for name, part in found.items():
            work = part.in_hand()
            seen = self._seen.get(name)
            if seen is None or work.pending == 0 or work.done != seen.done:
                self._seen[name] = _Seen(work.done, self._clock, self._stall_seconds)
                continue
            held = self._clock - seen.since
            if held >= seen.told_after:
                seen.told_after *= 2
                logger.warning(
                    "%s has %d requests and has done none of them for %.0f s", name, work.pending, held
                )
                part.dump_stacks()
                told.append(name)
        for name in self._seen.keys() - found.keys():
            del self._seen[name]
        return told

    @contextmanager
    def _timer(self) -> Iterator[tuple[IO[bytes], Callable[[], None]]]:
        """The log, and what winds up the timer whose end writes all threads' stacks into it."""
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab", buffering=0) as file:

            def wind_up() -> None:
                faulthandler.dump_traceback_later(LOOK_SECONDS + BLOCKED_SECONDS, file=file)

            try:
                yield file, wind_up
            finally:
                faulthandler.cancel_dump_traceback_later()


def task_stacks() -> str:
    """Where the running loop's tasks wait: each place once, with the number of tasks and the name of one of them."""
    places: Counter[str] = Counter()
    names: dict[str, str] = {}
    for task in asyncio.all_tasks():
        place = "\n".join(await_chain(task.get_coro()))
        places[place] += 1
        names.setdefault(place, task.get_name())
    lines = []
    for place, count in places.most_common(MAX_KINDS):
        lines.append(f"{count} x {names[place]}\n{place}")
    if len(places) > MAX_KINDS:
        lines.append(f"and {len(places) - MAX_KINDS} other places")
    return "\n".join(lines)


def await_chain(step: Any) -> list[str]:
    """The frames of a suspended coroutine, the outermost first, as far as Python knows them."""
    lines: list[str] = []
    while step is not None and len(lines) < MAX_FRAMES:
        kind = next((kind for kind in ("cr", "gi", "ag") if hasattr(step, f"{kind}_frame")), None)
        if kind is None:  # a future, or what C code waits with
            lines.append(f"    {type(step).__qualname__}")
            break
        frame = getattr(step, f"{kind}_frame")
        if frame is not None:
            code = frame.f_code
            lines.append(f"    {code.co_filename}:{frame.f_lineno} in {code.co_qualname}")
        step = getattr(step, "gi_yieldfrom" if kind == "gi" else f"{kind}_await")
    return lines
