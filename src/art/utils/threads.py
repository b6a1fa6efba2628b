"""Running synchronous agents beside an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import TypeVar

T = TypeVar("T")


async def in_thread(function: Callable[[], T], *, name: str = "art-agent") -> T:
    """The result of `function()`, run in a daemon thread of its own with the caller's context variables.

    Not in the loop's default executor: that has about as many threads as the machine has cores, and agents
    spend their time waiting. When the caller is cancelled the thread's result is dropped; a thread cannot be
    stopped from outside.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def deliver(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)  # type: ignore[arg-type]
        elif isinstance(error, StopIteration):
            future.set_exception(RuntimeError(f"the function raised StopIteration: {error}"))
        else:
            future.set_exception(error)

    def run() -> None:
        result: T | None = None
        failure: BaseException | None = None
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001 - carried over to the awaiting task whole
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile: nobody waits
            loop.call_soon_threadsafe(deliver, result, failure)

    threading.Thread(target=copy_context().run, args=(run,), name=name, daemon=True).start()
    return await future
