"""Who shows something is told that it changed: every page a listener, every commit a piece of news.

A listener gets what it has not read yet as one parcel, so that a burst is told once and a slow reader costs no memory: past
`MOST_PENDING` things it is told to ask for everything anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, field

from art.errors import Overloaded
from art.server.rates import Rates
from art.store.changes import Change

logger = logging.getLogger(__name__)

MOST_PENDING = 500
"""Things that a listener has not read yet."""
MOST_LISTENERS = 256
"""Pages at once; each costs a connection."""
MOST_OF_ACCOUNT = 64
"""Of them with the keys of one account."""
PAUSE_SECONDS = 0.3
"""Between two parcels to one listener."""
KEEP_ALIVE_SECONDS = 15.0

Key = tuple[str, str, str, str]
RESYNC = Change(kind="resync", project="", name="", id="", status="", step=None)
RESYNC_KEY: Key = ("resync", "", "", "")


@dataclass(eq=False)
class Listener:
    """What one page wants to hear of, and has not heard yet."""

    own: str | None
    """The project of its key; None is every one."""
    project: str | None
    name: str | None
    account: str = ""
    """Whose key it came with."""
    pending: dict[Key, Change] = field(default_factory=dict)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, change: Change) -> None:
        """Keep a change for the next parcel, if it is one to hear of."""
        if self.own not in (None, change.project) or self.project not in (None, change.project):
            return
        if self.name not in (None, change.name):
            return
        if RESYNC_KEY in self.pending:  # everything will be asked for anew, this too
            return
        key = (change.kind, change.project, change.name, change.id)
        if len(self.pending) >= MOST_PENDING and key not in self.pending:
            self.resync()
            return
        self.pending.pop(key, None)  # the newest stands last
        self.pending[key] = change
        self.news.set()

    def resync(self) -> None:
        """In place of what it has not read: it must ask for everything anew."""
        self.pending = {RESYNC_KEY: RESYNC}
        self.news.set()

    def parcel(self) -> list[Change]:
        """Everything that was kept, oldest first."""
        found = list(self.pending.values())
        self.pending.clear()
        self.news.clear()
        return found


class Live:
    """The listeners of one server."""

    def __init__(self) -> None:
        self.rates = Rates()
        self._listeners: set[Listener] = set()
        self._closing = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """From within the event loop in which the listeners wait."""
        self._loop = asyncio.get_running_loop()

    def close(self) -> None:
        """End every stream: the server stops."""
        self._closing.set()
        for listener in self._listeners:
            listener.news.set()

    def tell(self, changes: Sequence[Change]) -> None:
        """What was committed. May be called from any thread, and never waits."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self.publish, changes)

    def publish(self, changes: Sequence[Change]) -> None:
        """The same from within the event loop."""
        for change in changes:
            if change.kind == "sampled":
                self.rates.count("tokens", change.step or 0)
                self.rates.count("calls", int(change.id == "0"))  # once for all its choices
                continue
            for listener in self._listeners:
                listener.take(change)

    def check_room(self, account: str = "") -> None:
        """Overloaded when no further page can listen, or none with this account's keys: they leave room for others'."""
        theirs = sum(listener.account == account for listener in self._listeners)
        if len(self._listeners) >= MOST_LISTENERS or theirs >= MOST_OF_ACCOUNT:
            raise Overloaded(
                f"{len(self._listeners)} pages listen already, {theirs} of them with this key",
                hint="close some of them, and reload this one",
            )

    def resync(self) -> None:
        """Something changed, and nobody knows what."""
        for listener in self._listeners:
            listener.resync()

    @contextlib.contextmanager
    def listening(self, listener: Listener) -> Iterator[None]:
        """Tell the listener of what changes, for the length of the `with`."""
        self._listeners.add(listener)
        try:
            yield
        finally:
            self._listeners.discard(listener)

    async def parcels(self, listener: Listener) -> AsyncGenerator[list[Change], None]:
        """What changed, parcel by parcel; an empty one when nothing did for a while. Ends when the server stops."""
        while not self._closing.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                    await listener.news.wait()
            if self._closing.is_set():
                return
            yield listener.parcel()
            await asyncio.sleep(PAUSE_SECONDS)
