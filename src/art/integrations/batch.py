"""The rollouts behind a row on their way to trackers: read from the server's record, without what was said unless asked."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence

from art.errors import NotFound
from art.integrations.seen import Noted, RolloutBatch, RolloutSeen, exception_types, noted, seen
from art.integrations.tracker import Row, Tracker
from art.trajectories import TrajectoryGroup
from art.types.wire import RolloutInfo

READ_SECONDS = 60.0
"""How long the server's records of one batch are waited for."""
AT_ONCE = 4
"""Records that are asked for at once: sampling and training come first."""

ReadRollout = Callable[[str], Awaitable[RolloutInfo]]


class Batch:
    """Read once, by the first tracker that wants it, on that tracker's thread."""

    def __init__(self, row: Row, groups: Sequence[TrajectoryGroup], read: ReadRollout | None) -> None:
        """`read` asks the server for its record, which has passed the server's redaction; None where there is no server."""
        self._row = row
        self._items: list[Noted] = noted(groups, recorded=read is not None)
        self._exceptions = exception_types(groups)
        self._read = read
        self._lock = threading.Lock()
        self._found: tuple[RolloutSeen, ...] | None = None

    @property
    def count(self) -> int:
        """Rollouts."""
        return len(self._items)

    def tell(self, tracker: Tracker) -> None:
        """Hand it the rollouts. Blocks; ArtError or TimeoutError when the server does not answer."""
        with self._lock:
            if self._found is None:
                self._found = asyncio.run(self._recorded())
            found = self._found
        content = tracker.about.content
        tracker.rollouts(
            RolloutBatch(
                step=self._row.step,
                split=self._row.split,
                time=self._row.time,
                rollouts=found if content else tuple(item.without_content() for item in found),
                exceptions=self._exceptions,
            )
        )

    async def _recorded(self) -> tuple[RolloutSeen, ...]:
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(item: Noted) -> RolloutSeen:
            if self._read is None or item.rollout_id is None:
                return seen(item, None)
            async with gate:
                try:
                    return seen(item, await self._read(item.rollout_id))
                except NotFound:  # purged meanwhile
                    return seen(item, None)

        async with asyncio.timeout(READ_SECONDS):
            return tuple(await asyncio.gather(*map(one, self._items)))
