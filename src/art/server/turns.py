"""Whose request the engine gets next: projects take turns, and within a project its sessions do.

An engine serves first come, first served. So it is given no more than it can work on, and a little more, and who waits
for a place waits here: a project with a thousand waiting calls delays another one's call by one turn.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

AHEAD = 0.25
"""Of the engine's places, how many more requests it is given: they stand ready when a place becomes free."""
LEAST_AHEAD = 2

Waiting = deque[asyncio.Future[None]]


def places_for(max_batch: int) -> int:
    """Requests that an engine which decodes `max_batch` choices at once has at a time."""
    return max_batch + max(LEAST_AHEAD, int(AHEAD * max_batch))


class Turns:
    """The places of one engine. Every choice of a call takes a turn of its own."""

    def __init__(self) -> None:
        self.taken = 0
        self._places = 0
        self._waiting: OrderedDict[str, OrderedDict[str, Waiting]] = OrderedDict()
        """By project, then by session; whose turn is next comes first."""

    @property
    def waiting(self) -> int:
        """Choices without a place."""
        return sum(len(queue) for sessions in self._waiting.values() for queue in sessions.values())

    def resize(self, places: int) -> None:
        """What the engine takes: known when it runs."""
        self._places = places
        self._grant()

    @asynccontextmanager
    async def take(self, project: str, session: str) -> AsyncIterator[None]:
        """A place for the length of the `with`; waits for it. Bounded by whoever waits: a call has a deadline."""
        await self._wait(project, session)
        try:
            yield
        finally:
            self.taken -= 1
            self._grant()

    async def _wait(self, project: str, session: str) -> None:
        if self.taken < self._places and not self._waiting:
            self.taken += 1
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(project, OrderedDict()).setdefault(session, deque()).append(granted)
        self._grant()
        try:
            await granted
        except asyncio.CancelledError:
            if granted.cancelled():
                self._leave(project, session, granted)
            else:  # the place and the cancellation came together
                self.taken -= 1
                self._grant()
            raise

    def _grant(self) -> None:
        while self.taken < self._places and self._waiting:
            granted = self._next()
            if not granted.done():
                self.taken += 1
                granted.set_result(None)

    def _next(self) -> asyncio.Future[None]:
        """Take out whose turn it is; its session goes to the end of its project's line, and the project to the end of all."""
        project, sessions = self._waiting.popitem(last=False)
        session, queue = sessions.popitem(last=False)
        granted = queue.popleft()
        if queue:
            sessions[session] = queue
        if sessions:
            self._waiting[project] = sessions
        return granted

    def _leave(self, project: str, session: str, granted: asyncio.Future[None]) -> None:
        """Take out one that waits no more; `_next` may have done so already."""
        sessions = self._waiting.get(project, OrderedDict())
        queue = sessions.get(session, deque())
        if granted in queue:
            queue.remove(granted)
        if not queue:
            sessions.pop(session, None)
        if not sessions:
            self._waiting.pop(project, None)
