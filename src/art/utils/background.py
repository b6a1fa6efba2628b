"""Running a coroutine from synchronous code, also where the calling thread's own loop is running (Jupyter)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from typing import Any, TypeVar

T = TypeVar("T")


def run_blocking(start: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """The result of `start()`, run to its end in a loop of its own on another thread.

    Blocks the caller, and with it the loop the caller runs in; the other thread sees the caller's context
    variables.
    """
    outcome: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(asyncio.run(start()))
        except BaseException as error:  # noqa: BLE001 - carried over to the calling thread whole
            failure.append(error)

    thread = threading.Thread(target=copy_context().run, args=(run,), name="art-blocking", daemon=True)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]
