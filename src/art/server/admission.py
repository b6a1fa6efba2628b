"""How much may wait or run at once, and how much of that one of several who ask may take.

The bound is shared as network switches share their buffers: nobody may hold more than `SHARE` times what is still
free (dynamic thresholds: Choudhury and Hahne, IEEE/ACM Transactions on Networking 6(2), 1998). Who asks alone gets
all but a ninth of it; that ninth is there when another one comes, and from then on both hold about half.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from art.errors import Overloaded

SHARE = 8
"""Times the free part that one sharer may hold. More leaves less for who comes next; fewer leaves more unused."""
SHARER: ContextVar[str | None] = ContextVar("sharer", default=None)
"""On whose behalf this task works, for what shares a bound far below the routes."""


class Ticket:
    """A place inside. `close` gives it back, and may be called again."""

    __slots__ = ("_admission", "_amount", "_sharer")

    def __init__(self, admission: Admission, sharer: str | None, amount: int) -> None:
        self._admission = admission
        self._sharer = sharer
        self._amount = amount

    def grow(self, amount: int) -> None:
        """Take more. Overloaded where there is no room for it."""
        self._admission.check(self._sharer, amount)
        self._admission.add(self._sharer, amount)
        self._amount += amount

    def moved(self) -> Ticket:
        """This place in other hands: closing the old ticket does nothing any more."""
        new = Ticket(self._admission, self._sharer, self._amount)
        self._amount = 0
        return new

    def close(self) -> None:
        """Give the place back."""
        self._admission.add(self._sharer, -self._amount)
        self._amount = 0


class Admission:
    """Counts calls (or bytes) in and out; past the bound they are turned away at once instead of waiting for ever."""

    def __init__(self, bound: int, *, what: str = "calls are waiting or running already") -> None:
        self._bound = bound
        self._what = what
        self._inside = 0
        self._held: Counter[str] = Counter()

    @property
    def inside(self) -> int:
        """What is counted now."""
        return self._inside

    def check(self, sharer: str | None = None, amount: int = 1) -> None:
        """Overloaded when the bound, or the sharer's part of it, is reached. Whoever comes first is let in whatever its size.

        `sharer` None asks for the whole.
        """
        if self._inside == 0 or amount <= 0:
            return
        free = self._bound - self._inside
        if amount > free:
            raise self._full(f"{self._inside} {self._what}")
        if sharer is not None and self._held[sharer] + amount > SHARE * free:
            raise self._full(f"{self._held[sharer]} {self._what}, all of one project; the rest is for others")

    def add(self, sharer: str | None, amount: int) -> None:
        """Count `amount` in, or out where it is negative."""
        self._inside += amount
        if sharer is not None:
            self._held[sharer] += amount
            if not self._held[sharer]:
                del self._held[sharer]

    def take(self, sharer: str | None = None, amount: int = 1) -> Ticket:
        """Count in until the ticket is closed."""
        self.check(sharer, amount)
        self.add(sharer, amount)
        return Ticket(self, sharer, amount)

    @contextmanager
    def enter(self, sharer: str | None = None, amount: int = 1) -> Iterator[Ticket]:
        """Count in for the length of the `with`, or until the ticket was moved and is closed."""
        ticket = self.take(sharer, amount)
        try:
            yield ticket
        finally:
            ticket.close()

    @staticmethod
    def _full(message: str) -> Overloaded:
        return Overloaded(
            message, hint="try again after a second; limit the number of agents that run at once"
        )
