"""`art ui` on the folder of a run that has ended: the read API and the page, without engine, trainer and writer.

The parts are those of a server, made and never started, so that a route need not know which of the two it serves.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from art.config.server import ServerConfig
from art.errors import ArtError
from art.server.auth import Principal
from art.server.connections import raise_descriptor_limit
from art.server.data_keeper import DataKeeper
from art.server.doors import Doors
from art.server.engines import EnginePool
from art.server.jobs import Jobs
from art.server.keys import PREFIX, Keys
from art.server.lifetime import Stop
from art.server.listen import Listening, listening
from art.server.live import Live
from art.server.quota import Meters
from art.server.registration import Registration
from art.server.sessions import Sessions
from art.server.state import Gateway
from art.server.trainers import WorkerTrainer
from art.server.upstreams import Upstreams
from art.server.versions import Versions
from art.store.records import Role
from art.store.store import Store
from art.store.viewing import ReadOnlyDatabase, view_store

logger = logging.getLogger(__name__)

VIEWER = "viewer"
LOOK_SECONDS = 1.0
"""Between two looks whether somebody writes into the folder."""


class ViewerKeys(Keys):
    """One key, made at the start and kept nowhere. It sees everything: who can start this can read the files."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.token = f"{PREFIX}{VIEWER}_{secrets.token_urlsafe(32)}"

    async def authenticate(self, token: str) -> Principal | None:
        if not hmac.compare_digest(token.encode(), self.token.encode()):
            return None
        return Principal(key_id=VIEWER, role=Role.ADMIN, account=VIEWER)


async def view(
    root: Path, *, port: int, on_ready: Callable[[Gateway, str], None], stop: Stop | None = None
) -> None:
    """Serve the folder `root`, an absolute path, on loopback until a signal comes, or until `stop` is asked to, which leaves signals
    alone. `on_ready` is called with the key when it answers.

    NotFound where the folder holds no run, PortInUse; both before anything is answered.
    """
    if stop is None:
        stop = Stop()
        stop.on_signals()
    raise_descriptor_limit()
    settings = ServerConfig(path=root, port=port)
    store, database = await view_store(settings.path / "server")
    try:
        with listening(settings) as sockets:
            async with (
                _gateway(settings, store, sockets) as (gateway, key),
                following(gateway.live, database),
            ):
                await _answer(gateway, sockets, stop, lambda: on_ready(gateway, key))
    finally:
        await store.close()


@asynccontextmanager
async def _gateway(
    settings: ServerConfig, store: Store, sockets: Listening
) -> AsyncGenerator[tuple[Gateway, str], None]:
    root, url = settings.path, sockets.url
    keys = ViewerKeys(store)
    engines, trainer = EnginePool(settings, root), WorkerTrainer(settings, root)
    versions = Versions(store, engines)
    upstreams = Upstreams({}, max_waiting=1)
    gateway = Gateway(
        settings=settings,
        root=root,
        url=url,
        store=store,
        keys=keys,
        engines=engines,
        trainer=trainer,
        versions=versions,
        sessions=Sessions(store, versions, keys, url=url, max_waiting=1),
        jobs=Jobs(settings, root, store=store, trainer=trainer, versions=versions),
        registration=Registration(root, store=store, trainer=trainer, versions=versions, engines=engines),
        upstreams=upstreams,
        meters=Meters(store.accounts),
        keeper=DataKeeper(store, keys),
        read_only=True,
    )
    try:
        yield gateway, keys.token
    finally:
        await upstreams.close()


@asynccontextmanager
async def following(live: Live, database: ReadOnlyDatabase) -> AsyncGenerator[None, None]:
    """Tell the pages what another process writes into the folder, for the length of the `with`."""
    live.start()
    task = asyncio.create_task(_follow(live, database), name="folder")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _follow(live: Live, database: ReadOnlyDatabase) -> None:
    signature, known = database.signature(), await database.digest()
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        now = database.signature()
        if now == signature:
            continue
        try:
            found = await database.digest()
        except ArtError as error:  # it is being written: the next look may be luckier
            logger.warning("what was written into the folder could not be read: %s", error)
            continue
        if found != known:
            live.resync()
        signature, known = now, found


async def _answer(gateway: Gateway, sockets: Listening, stop: Stop, on_ready: Callable[[], None]) -> None:
    http = Doors(gateway, sockets)
    serving = asyncio.create_task(http.serve(), name="http")
    up = asyncio.create_task(http.up(), name="up")
    asked = asyncio.create_task(stop.asked.wait(), name="stop")
    try:
        await asyncio.wait([serving, up], return_when=asyncio.FIRST_COMPLETED)
        if up.done():
            on_ready()
        await asyncio.wait([serving, asked], return_when=asyncio.FIRST_COMPLETED)
        gateway.live.close()
        http.close()
        forced = asyncio.create_task(stop.forced.wait(), name="force")
        await asyncio.wait([serving, forced], return_when=asyncio.FIRST_COMPLETED)
        http.close(force=True)
        forced.cancel()
        await serving
    finally:
        for task in (up, asked):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
