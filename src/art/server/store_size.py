"""How many bytes a store takes on the disk."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path

from art.store.store import BLOBS, DATABASE

KNOWN_SECONDS = 300.0
"""How long the size of the token files is taken as known: there is a file for each rollout."""


class StoreSize:
    """The database is looked at each time, the token files now and then."""

    def __init__(self) -> None:
        self._known: tuple[float, int] | None = None
        self._looking = asyncio.Lock()

    async def total(self, folder: Path) -> int:
        """Of `<path>/server`."""
        async with self._looking:
            if self._known is None or time.monotonic() - self._known[0] > KNOWN_SECONDS:
                self._known = time.monotonic(), await asyncio.to_thread(_sum, folder / BLOBS, "**/*.blob")
            return self._known[1] + _sum(folder, f"{DATABASE}*")


def _sum(folder: Path, pattern: str) -> int:
    total = 0
    for file in folder.glob(pattern):
        with contextlib.suppress(OSError):  # deleted meanwhile
            total += file.stat().st_size
    return total
