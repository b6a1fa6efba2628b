"""Writes that must not be lost to a full disk: they are repeated until they stand, or the server stops."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from art.errors import InfraError, Overloaded

logger = logging.getLogger(__name__)

T = TypeVar("T")
FIRST_PAUSE = 0.2  # seconds before the second try, doubled before each further one
LONGEST_PAUSE = 10.0  # seconds: a person who has made room on the disk does not wait longer than that


class Unwritten(Exception):
    """The server stops, and the store could not write to the end: the next start takes it up from there."""


class Persist:
    """Repeats writes of the store that may be repeated. `give_up` at the server's stop."""

    def __init__(self) -> None:
        self._stopping = asyncio.Event()

    def give_up(self) -> None:
        """Try each write once more, and no longer."""
        self._stopping.set()

    async def __call__(self, what: str, write: Callable[[], Awaitable[T]]) -> T:
        """The write's result. Unwritten when it failed to the end; what it refuses for good (Conflict) is raised."""
        pause = FIRST_PAUSE
        while True:
            last = self._stopping.is_set()
            try:
                return await write()
            except (InfraError, Overloaded) as error:
                if last:
                    raise Unwritten(f"{what} could not be written") from error
                logger.error("%s could not be written, and is tried again: %s", what, error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stopping.wait()
            pause = min(2 * pause, LONGEST_PAUSE)
