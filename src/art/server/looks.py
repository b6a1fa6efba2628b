"""Whose list is read next: projects take turns at the read API, and within a project its keys do.

The readers of the store are two threads for everybody. Without turns a project that asks for heavy lists all the time
would have them to itself.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from art.errors import DeadlineExceeded, Overloaded
from art.server.turns import Turns
from art.store.readers import DEADLINE_SECONDS, THREADS

PLACES = 2 * THREADS
"""Requests that read at a time: those that are being computed, and as many that stand ready or are being written."""
MOST_WAITING = 32
"""Of one project, beside those that read; a page of the dashboard asks for a handful of things at once."""


class Looks:
    """The turns of one server."""

    def __init__(self) -> None:
        self._turns = Turns()
        self._turns.resize(PLACES)
        self._here: Counter[str] = Counter()
        """By project, requests that wait or read."""

    @asynccontextmanager
    async def turn(self, project: str, key: str, *, begun: bool = False) -> AsyncIterator[None]:
        """A place to read for the length of the `with`; "" is the project of who sees all of them.

        Overloaded where too many of the project's requests wait already, DeadlineExceeded when its turn does not come.
        Neither for an answer that has `begun`, as a stream has: it could not be told any more, and waits.
        """
        if self._here[project] >= MOST_WAITING + PLACES and not begun:
            raise Overloaded(
                f"{MOST_WAITING} requests for lists wait already",
                cause=f"all of the project {project}" if project else "all with keys that see every project",
                hint="wait for the answers to some of them before asking for more",
            )
        self._here[project] += 1
        try:
            async with AsyncExitStack() as held:
                try:
                    async with asyncio.timeout(None if begun else DEADLINE_SECONDS):
                        await held.enter_async_context(self._turns.take(project, key))
                except TimeoutError:
                    raise DeadlineExceeded(
                        f"no list could be read for {DEADLINE_SECONDS:.0f} s",
                        cause="the lists that others ask for take long",
                        hint="try again in a moment",
                    ) from None
                yield
        finally:
            self._here[project] -= 1
            if not self._here[project]:
                del self._here[project]
