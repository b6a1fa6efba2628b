"""Large requests are read and tokenised beside the event loop, so that everybody else's keep being answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from art.server.admission import SHARER, Admission

P = ParamSpec("P")
T = TypeVar("T")

LARGE_BYTES = 32 * 1024
"""A request up to this is tokenised in a few tens of milliseconds, which costs less than a thread's turn."""
THREADS = 2
"""The tokenizer lets the interpreter go while it works; more threads would only compete for the cores."""
MAX_WAITING = 64
"""Large requests kept in memory at once."""


class OffLoop:
    """Runs the work of large requests on threads of its own: the default ones read the store."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="prompt")
        self._admission = Admission(MAX_WAITING)

    async def run(self, size: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """`function(...)`, at once and without a pause for a request of at most LARGE_BYTES.

        Overloaded when too many large ones wait already.
        """
        if size <= LARGE_BYTES:
            return function(*args, **kwargs)
        with self._admission.enter(SHARER.get()):
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, lambda: function(*args, **kwargs))
