"""What the client shows a person: notices once, and one short line per train call. On stderr."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING, Self

from art.types.wire import JobEvent
from art.utils.visible import clean

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status


@cache
def console() -> Console:
    """The console of all of the client's output, loaded on first use."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def say(line: str, *, style: str | None = None) -> None:
    """One line, whole: a terminal folds it by itself, and a log file gets it unbroken. "" shows nothing."""
    if line:
        console().print(clean(line, lines=True), style=style, markup=False, soft_wrap=True)


_whole = threading.Event()
"""Set while a panel has the terminal to itself."""


@contextmanager
def whole_terminal() -> Iterator[None]:
    """For a panel that tells all that goes on: meanwhile nobody draws a bar or a spinner below it. Lines are said as ever."""
    _whole.set()
    try:
        yield
    finally:
        _whole.clear()


def bars_wanted() -> bool:
    """Whether a bar or a spinner has a place: a terminal, and no panel that says the same already."""
    return console().is_terminal and not _whole.is_set()


class Notices:
    """Automatic choices with their reasons, each shown once."""

    def __init__(self) -> None:
        self._shown: set[str] = set()
        self._lock = threading.Lock()

    def show(self, notes: Iterable[str], *, prefix: str = "") -> None:
        for note in notes:
            line = prefix + note
            with self._lock:
                new = line not in self._shown
                self._shown.add(line)
            if new:
                say(line, style="dim")


class TrainLine:
    """A live line while a train call runs: on a terminal a spinner, elsewhere nothing unless `verbose`."""

    def __init__(self, model: str, *, verbose: bool) -> None:
        self._model = model
        self._verbose = verbose
        self._status: Status | None = None

    def __enter__(self) -> Self:
        from rich.errors import LiveError

        if bars_wanted():
            self._status = console().status(f"{self._model}: training")
            try:
                self._status.start()
            except LiveError:
                self._status = None  # another live display owns the terminal
        return self

    def show(self, event: JobEvent) -> None:
        """Show where the job stands."""
        detail = ""
        if event.type == "progress":
            phase, done, total = (event.data.get(key, "") for key in ("phase", "done", "total"))
            detail = f" {phase} {done}/{total}"
        if self._status is not None:
            self._status.update(f"{self._model}: {event.type}{detail}")
        elif self._verbose or event.type == "restarted":
            say(f"{self._model}: {event.type}{detail}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()
