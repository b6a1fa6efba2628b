"""How much was done within the last minute: tokens, calls, refusals."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable

WINDOW_SECONDS = 60


class Rates:
    """Counts by second; what is older than the window is forgotten. `ticks` is a clock in seconds that never jumps."""

    def __init__(self, ticks: Callable[[], float] = time.monotonic) -> None:
        self._ticks = ticks
        self._started = ticks()
        self._seconds: deque[tuple[int, Counter[str]]] = deque()

    def count(self, what: str, amount: int = 1) -> None:
        """`amount` of `what`, now."""
        now = int(self._ticks())
        if not self._seconds or self._seconds[-1][0] != now:
            self._forget()
            self._seconds.append((now, Counter()))
        self._seconds[-1][1][what] += amount

    def per_second(self, what: str) -> float:
        """Over the window, or over the time since the start where that is shorter."""
        self._forget()
        total = sum(counts[what] for _, counts in self._seconds)
        return total / min(float(WINDOW_SECONDS), max(1.0, self._ticks() - self._started))

    def per_minute(self, what: str) -> float:
        """The same for a minute."""
        return 60 * self.per_second(what)

    def _forget(self) -> None:
        bound = self._ticks() - WINDOW_SECONDS
        while self._seconds and self._seconds[0][0] < bound:
            self._seconds.popleft()
