"""The life of a server: take the folder and the port, start the parts, serve, stop in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from art.config.running import settings_of
from art.config.server import ServerConfig
from art.errors import ArtError, InfraError
from art.server.connections import raise_descriptor_limit
from art.server.data_keeper import DataKeeper
from art.server.determinism import settle
from art.server.doors import Doors
from art.server.engines import EnginePool
from art.server.folder import ServerFolder
from art.server.jobs import Jobs
from art.server.keys import Keys
from art.server.listen import Listening, listening
from art.server.quota import Meters
from art.server.recovery import recover
from art.server.registration import Registration
from art.server.sessions import Sessions
from art.server.state import Gateway
from art.server.trainers import WorkerTrainer
from art.server.upstreams import Upstreams
from art.server.versions import Versions
from art.server.watchdog import Counted, Part, Watchdog
from art.store.rules import redaction_of
from art.store.sealing import Seal
from art.store.store import Store
from art.version import package_version

logger = logging.getLogger(__name__)

CLIENT_POLL_SECONDS = 1.0
# Looks in a row without a client before the server stops: a program may just be changing over.
CLIENT_MISSES = 2


class Stop:
    """Why and how firmly the server is asked to stop."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.forced = asyncio.Event()

    def ask(self, why: str) -> None:
        """The first time: stop in order. The second: now."""
        if self.asked.is_set():
            logger.warning("stopping at once (%s)", why)
            self.forced.set()
        else:
            logger.info("stopping (%s); a training step in progress is finished first", why)
            self.asked.set()

    def on_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self.ask, number.name)


async def serve(settings: ServerConfig, *, on_ready: Callable[[Gateway], None]) -> None:
    """Run a server until it is asked to stop. `on_ready` is called when it answers.

    Conflict when a server has the folder, PortInUse, ConfigError; all before anything is started.
    """
    stop = Stop()
    stop.on_signals()
    raise_descriptor_limit()
    folder = ServerFolder(settings.path)
    folder.acquire()
    try:
        with listening(settings) as sockets:
            async with _gateway(settings, folder, sockets) as gateway:
                announce = partial(
                    folder.announce,
                    url=gateway.url,
                    version=package_version(),
                    settings=settings_of(
                        settings
                    ),  # as asked for: what was settled on is this machine's affair
                )
                await _answer(gateway, sockets, stop, on_ready, folder, announce)
    finally:
        folder.release()


@asynccontextmanager
async def _gateway(
    settings: ServerConfig, folder: ServerFolder, sockets: Listening
) -> AsyncGenerator[Gateway, None]:
    """All parts, started; stopped in reverse order."""
    root: Path = folder.root
    upstreams = Upstreams(settings.upstreams, max_waiting=settings.max_waiting_calls)
    url = sockets.url
    store = await _open_store(settings, folder.server)
    async with contextlib.AsyncExitStack() as parts:
        parts.push_async_callback(store.close)
        parts.push_async_callback(upstreams.close)
        meters = Meters(store.accounts)
        parts.push_async_callback(meters.stop)
        keys = Keys(store)
        await keys.ensure_admin(folder.admin_key)
        await recover(store)
        settings, notes = await asyncio.to_thread(settle, settings, folder.server)
        engines = EnginePool(settings, root)
        parts.push_async_callback(engines.stop)
        trainer = WorkerTrainer(settings, root)
        parts.push_async_callback(trainer.stop)
        versions = Versions(store, engines)
        await versions.load()
        sessions = Sessions(store, versions, keys, url=url, max_waiting=settings.max_waiting_calls)
        parts.push_async_callback(sessions.stop)
        jobs = Jobs(settings, root, store=store, trainer=trainer, versions=versions, notes=notes)
        registration = Registration(root, store=store, trainer=trainer, versions=versions, engines=engines)
        keeper = DataKeeper(store, keys)
        parts.push_async_callback(keeper.stop)
        gateway = Gateway(
            settings=settings,
            root=root,
            url=url,
            store=store,
            keys=keys,
            engines=engines,
            trainer=trainer,
            versions=versions,
            sessions=sessions,
            jobs=jobs,
            registration=registration,
            upstreams=upstreams,
            meters=meters,
            tls_url=sockets.tls_url,
            keeper=keeper,
        )
        gateway.live.start()
        store.watch(gateway.live.tell)
        await jobs.start()
        keeper.start()
        watching = asyncio.create_task(_watchdog(gateway).run(), name="watchdog")
        parts.push_async_callback(_end, watching)
        if versions.entries():  # a server without models may never train: importing torch takes seconds
            warm = asyncio.create_task(_warm(trainer), name="warm trainer")
            parts.push_async_callback(_end, warm)
        yield gateway


async def _open_store(settings: ServerConfig, folder: Path) -> Store:
    """The store, with what the settings keep of content. ConfigError where that cannot be done."""
    default, projects = settings.content_rule(), settings.project_rules()
    if any(rule.changes for rule in (default, *projects.values())):
        # What is missing for it is found now, and not at the first call.
        await asyncio.to_thread(Seal.load, folder, make=True)
    return await Store.open(folder, redact=redaction_of(default, projects))


def _watchdog(gateway: Gateway) -> Watchdog:
    """Over the store and every worker."""
    store = Counted(lambda: gateway.store.work)

    def parts() -> dict[str, Part]:
        workers = [*gateway.engines.workers(), gateway.trainer.worker]
        return {"store": store, **{worker.spec.name: worker for worker in workers}}

    log = gateway.root / "server" / "logs" / "gateway.log"
    return Watchdog(parts, stall_seconds=gateway.settings.stall_seconds, log=log)


async def _warm(trainer: WorkerTrainer) -> None:
    """Start the trainer before it is needed; what keeps it from starting is told to whoever needs it."""
    try:
        await trainer.warm()
    except ArtError as error:
        logger.error("the trainer did not start: %s", error)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("%s failed", task.get_name(), exc_info=error)


async def _answer(
    gateway: Gateway,
    sockets: Listening,
    stop: Stop,
    on_ready: Callable[[Gateway], None],
    folder: ServerFolder,
    announce: Callable[[], None],
) -> None:
    settings = gateway.settings
    http = Doors(gateway, sockets)
    serving = asyncio.create_task(http.serve(), name="http")
    asked = asyncio.create_task(stop.asked.wait(), name="stop")
    watching = asyncio.create_task(
        _watch(folder, stop, with_clients=settings.stop_with_clients), name="watch"
    )
    try:
        up = asyncio.create_task(http.up(), name="up")
        await asyncio.wait([serving, up], return_when=asyncio.FIRST_COMPLETED)
        if up.done():
            await asyncio.to_thread(announce)
            on_ready(gateway)
        up.cancel()
        queue = gateway.jobs.queue
        await asyncio.wait([serving, asked, watching, queue], return_when=asyncio.FIRST_COMPLETED)
        if queue.done():  # whoever waits for a job would wait for ever; the next start takes it up
            raise _ended("the queue of training jobs", queue)
        if watching.done() and (failed := watching.exception()) is not None:
            raise InfraError("the server cannot watch its folder", cause=str(failed)) from failed
        if serving.done():
            raise _ended("the HTTP server", serving)
        await _finish_job(gateway, stop)
        gateway.live.close()  # pages that listen would keep the server for as long as calls may take
        http.close()
        forced = asyncio.create_task(stop.forced.wait(), name="force")
        await asyncio.wait([serving, forced], return_when=asyncio.FIRST_COMPLETED)
        http.close(force=True)
        forced.cancel()
        await serving
    finally:
        asked.cancel()
        watching.cancel()


def _ended(what: str, task: asyncio.Task[None]) -> InfraError:
    """What is raised when a part has ended without which the server is none."""
    error = None if task.cancelled() else task.exception()
    hint = "see server/logs; start the server again"
    failed = InfraError(f"{what} ended by itself", cause=str(error or ""), hint=hint)
    failed.__cause__ = error
    return failed


async def _finish_job(gateway: Gateway, stop: Stop) -> None:
    """Let the step in progress end; a second signal leaves it for the next start."""
    stopping = asyncio.create_task(gateway.jobs.stop(), name="jobs-stop")
    forced = asyncio.create_task(stop.forced.wait(), name="force")
    await asyncio.wait([stopping, forced], return_when=asyncio.FIRST_COMPLETED)
    if not stopping.done():
        gateway.jobs.abandon()
        await gateway.trainer.stop()
    await stopping
    forced.cancel()


async def _watch(folder: ServerFolder, stop: Stop, *, with_clients: bool) -> None:
    """Ask to stop when the folder is gone, or, if asked for, when no living client holds its file any more."""
    misses = 0
    while misses < CLIENT_MISSES:
        await asyncio.sleep(CLIENT_POLL_SECONDS)
        if not await asyncio.to_thread(folder.intact):
            stop.ask("its folder was deleted")
            return
        if with_clients:
            held = await asyncio.to_thread(folder.clients_held)
            misses = 0 if held else misses + 1
    stop.ask("no client is left")
