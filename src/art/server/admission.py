"""How many calls may wait or run at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from art.errors import Overloaded


class Admission:
    """Counts calls in and out; past the bound they are turned away at once instead of waiting for ever."""

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._inside = 0

    def check(self) -> None:
        """Overloaded when the bound is reached."""
        if self._inside >= self._bound:
            raise Overloaded(
                f"{self._inside} calls are waiting or running already",
                hint="try again after a second; limit the number of agents that run at once",
            )

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Count a call for the length of the `with`."""
        self.check()
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1
