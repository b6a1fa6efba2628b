"""Work that recurses deeply inside native code, on threads whose stacks are large enough for it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeVar, cast

from art.errors import DeadlineExceeded

T = TypeVar("T")

STACK_BYTES = 256 * 1024 * 1024
"""Address space, not memory: only what is used is ever touched."""

_STARTING = threading.Lock()


def call_deep(function: Callable[[], T], *, seconds: float, what: str) -> T:
    """`function()` on a thread of its own with a large stack. DeadlineExceeded after `seconds`.

    A native stack that overflows ends the whole process, so callers bound the depth of what they hand over too.
    Past its deadline the thread runs on, unheard.
    """
    outcome: queue.SimpleQueue[tuple[object, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            outcome.put((function(), None))
        except BaseException as error:  # noqa: BLE001 - raised by the thread that waits
            outcome.put((None, error))

    thread = threading.Thread(target=run, name="deep-stack", daemon=True)
    with _STARTING:  # the size is the process's; other threads started meanwhile get as much room
        before = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    try:
        result, error = outcome.get(timeout=seconds)
    except queue.Empty:
        raise DeadlineExceeded(f"{what} took longer than {seconds:.0f} s") from None
    if error is not None:
        raise error
    return cast(T, result)
