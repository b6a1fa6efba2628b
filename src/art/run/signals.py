"""Ctrl-C during a run: the first one lets the batch in hand end, the second one ends everything at once."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STOPPING = "stopping behind the batch in hand; Ctrl-C again stops at once"


class Stopping:
    """What has been asked for. With nothing in hand the first signal is as good as the second."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._in_hand: Callable[[], None] | None = None
        self.signal: signal.Signals | None = None
        """The first one that came."""

    @property
    def asked(self) -> bool:
        """Whether a signal has come."""
        return self.signal is not None

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Signals come here, and cancel the running task unless it has a batch in hand."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def arrived(number: signal.Signals) -> None:
            first = self.signal is None
            self.signal = self.signal or number
            if first and self._in_hand is not None:
                self._say(STOPPING)
                self._in_hand()
            else:
                task.cancel()

        for number in SIGNALS:
            loop.add_signal_handler(number, arrived, number)
        try:
            yield
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)

    @contextmanager
    def in_hand(self, ask: Callable[[], None] = lambda: None) -> Iterator[None]:
        """What runs here is let come to an end: `ask` is called at the first signal."""
        self._in_hand = ask
        try:
            yield
        finally:
            self._in_hand = None
