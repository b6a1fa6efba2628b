"""Ctrl-C during a pipeline: the first one ends it after the step in hand, the second at once."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

log = logging.getLogger(__name__)

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def first_signal_asks(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at the first SIGINT or SIGTERM; from then on, and afterwards, the handlers are as before.

    Only in the main thread, where Python delivers signals; elsewhere nothing is changed.
    """
    loop = asyncio.get_running_loop()
    before: dict[signal.Signals, Any] = {}

    def restore() -> None:
        while before:
            number, handler = before.popitem()
            loop.remove_signal_handler(number)
            # None: a handler that was not set from Python; it cannot be set from here either.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def asked() -> None:
        restore()
        stop()

    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            handler = signal.getsignal(number)
            try:
                loop.add_signal_handler(number, asked)
            except (NotImplementedError, RuntimeError) as error:  # a loop without signals
                log.debug("signals stay as they are: %s", error)
                break
            before[number] = handler
    try:
        yield
    finally:
        restore()
