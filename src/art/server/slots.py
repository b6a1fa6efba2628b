"""The adapters that one engine process holds: who uses them, which one makes room, and loads that several wait for.

An adapter is never unloaded while it is used. Where every loaded one is in use and another is wanted, the one that was
asked for longest ago takes no new users until its last has gone: else calls that keep coming would keep it for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from art.errors import ArtError, Conflict, DeadlineExceeded, InfraError
from art.server.engines import WorkerEngine
from art.server.turns import Turns, places_for

logger = logging.getLogger(__name__)

SLOT_SECONDS = 300.0
"""How long a version waits for room while every loaded one has running calls."""
SETTLING_SECONDS = 0.05
"""Pause before an adapter is unloaded again whose last request the engine is just ending."""

Load = Callable[[WorkerEngine], Awaitable[None]]
"""Loads one version into the engine and checks it."""


class AdapterSlots:
    """The adapters of one engine, and its places for requests."""

    def __init__(self) -> None:
        self.turns = Turns()
        self._generation = 0
        self._versions: OrderedDict[str, None] = OrderedDict()
        """Loaded ones, the one that was asked for longest ago first."""
        self._users: Counter[str] = Counter()
        self._leaving: set[str] = set()
        """Loaded ones that take no new users."""
        self._loads: dict[str, asyncio.Task[None]] = {}
        self._arriving = 0
        """Loads that have their room."""
        self._news = asyncio.Event()
        """Set, and replaced, when a user has gone or a load has ended."""

    def meet(self, engine: WorkerEngine) -> None:
        """Take note of the process that runs now: a new one has lost what the old one held."""
        if self._generation != engine.generation:
            self._generation = engine.generation
            self._versions.clear()
            self._leaving.clear()
            self._wake()
        self.turns.resize(places_for(engine.capabilities.max_batch))

    @asynccontextmanager
    async def use(self, version: str) -> AsyncIterator[None]:
        """Count a user for the length of the `with`. Waits first while the version makes room for another."""
        while version in self._leaving:
            await self._news.wait()
        self._users[version] += 1
        try:
            yield
        finally:
            self._users[version] -= 1
            if not self._users[version]:
                del self._users[version]
            self._wake()

    async def bring(self, version: str, engine: WorkerEngine, load: Load) -> None:
        """Have the engine hold a version, whose user the caller is. Those who ask meanwhile share one load.

        A load goes on without the one who asked for it first. DeadlineExceeded where no room was made in SLOT_SECONDS;
        what `load` raises.
        """
        self.meet(engine)
        if version in self._versions:
            self._versions.move_to_end(version)
            return
        task = self._loads.get(version)
        if task is None:
            task = asyncio.create_task(self._load(version, engine, load), name=f"load {version}")
            self._loads[version] = task
            task.add_done_callback(lambda done: self._loaded(version, done))
        try:
            await asyncio.shield(task)
        except ArtError as error:
            raise copy.copy(error) from error  # one per waiter: a traceback belongs to one raise

    def holds(self, version: str) -> bool:
        """Whether it counts as loaded."""
        return version in self._versions

    def lost(self, version: str) -> None:
        """The engine does not hold it, or holds what it is no more: it is loaded anew for the next one who asks."""
        self._versions.pop(version, None)

    async def unload(self, version: str, engine: WorkerEngine) -> None:
        """Drop a version that nobody will ask for again."""
        if version in self._versions:
            del self._versions[version]
            await engine.unload_adapter(version)

    def _loaded(self, version: str, task: asyncio.Task[None]) -> None:
        del self._loads[version]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.warning("%s was not loaded: %s", version, error)
        self._wake()

    async def _load(self, version: str, engine: WorkerEngine, load: Load) -> None:
        await self._make_room(version, engine)
        try:
            # A process that was started meanwhile may have got it, or the one before: loading it twice is harmless, but one
            # that is there and not counted would take the room of another.
            while True:
                generation = engine.generation
                await load(engine)
                if engine.generation == generation:
                    break
            self.meet(engine)
            self._versions[version] = None
        finally:
            self._arriving -= 1
            self._wake()

    async def _make_room(self, version: str, engine: WorkerEngine) -> None:
        """Unload what nobody uses until one more fits, and take that room."""
        sent: str | None = None
        try:
            async with asyncio.timeout(SLOT_SECONDS):
                while len(self._versions) + self._arriving >= engine.capabilities.max_adapters:
                    idle = next((known for known in self._versions if not self._users[known]), None)
                    if idle is not None:
                        await self._evict(idle, engine)
                        continue
                    if not self._users[version]:
                        raise InfraError(f"{version} was not loaded", cause="nobody waits for it any more")
                    if sent not in self._versions:
                        sent = self._send_away()
                    await self._news.wait()
        except TimeoutError:
            raise DeadlineExceeded(
                f"no adapter slot became free within {SLOT_SECONDS:.0f} s",
                cause=f"{len(self._versions)} versions are loaded and all of them have running calls",
                hint="raise the engine's max_adapters, or run fewer versions at once",
            ) from None
        finally:
            if sent is not None:
                self._leaving.discard(sent)
                self._wake()
        self._arriving += 1

    def _send_away(self) -> str | None:
        """Let the version that was asked for longest ago take no new users; None where all of them leave already."""
        found = next((known for known in self._versions if known not in self._leaving), None)
        if found is not None:
            self._leaving.add(found)
        return found

    async def _evict(self, idle: str, engine: WorkerEngine) -> None:
        """Unload a version without users. Who asks for it meanwhile has it loaded anew, behind this."""
        del self._versions[idle]
        self._leaving.discard(idle)
        with contextlib.suppress(Conflict):
            await engine.unload_adapter(idle)
            return
        self._versions[idle] = None  # its last request is just being ended
        self._versions.move_to_end(idle, last=False)
        await asyncio.sleep(SETTLING_SECONDS)

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()
