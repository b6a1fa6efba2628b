"""Worker processes: started with a deadline, watched by heartbeat, restarted a bounded number of times."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import os
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from art.config.environment import worker_environment
from art.errors import ArtError, InfraError, WorkerDied, from_dict
from art.ipc import Message
from art.server.channel import Channel
from art.types.wire import WorkerHealth

logger = logging.getLogger(__name__)

MAX_FAILURES = 5  # starts or lives in a row that may end badly before the supervisor waits to be asked
BACKOFF_SECONDS = (0.0, 0.5, 2.0, 5.0, 10.0)  # pause before the start after the n-th failure in a row
HEALTHY_SECONDS = 60.0  # a life this long clears the count of failures
COOLDOWN_SECONDS = 60.0  # after MAX_FAILURES, how long a request is refused at once
STOP_SECONDS = 5.0  # from closing the channel to SIGKILL
LOG_TAIL_BYTES = 4096
LOG_TAIL_LINES = 12


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """How a worker is started and how patient its supervisor is (seconds)."""

    name: str
    argv: Sequence[str]
    log_file: Path
    start_seconds: float
    heartbeat_seconds: float
    threads: int | None = None


@dataclass(slots=True)
class Worker:
    """One life of a worker process."""

    spec: WorkerSpec
    process: asyncio.subprocess.Process
    channel: Channel
    log_start: int
    ready: asyncio.Future[dict[str, Any]]
    stats: dict[str, Any] = field(default_factory=dict)
    last_heartbeat: float = field(default_factory=time.monotonic)
    silent: float = 0.0
    """Seconds without a heartbeat, counted by a clock that does not run while the gateway itself is held up."""
    cause: str = ""
    """Why the supervisor killed it; empty when it ended by itself."""
    unwanted: bool = False
    """It was ended because somebody asked for that."""
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    """Reader, watch and exit; held here because the loop holds tasks weakly."""
    died: asyncio.Future[WorkerDied] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    def on_control(self, message: Message) -> None:
        if "heartbeat" in message:
            self.last_heartbeat = time.monotonic()
            self.silent = 0.0
            self.stats = dict(message["heartbeat"].get("stats", {}))
        elif "ready" in message and not self.ready.done():
            self.ready.set_result(dict(message["ready"]))
        elif "failed" in message and not self.ready.done():
            self.ready.set_exception(from_dict(message["failed"]))

    def kill(self, cause: str) -> None:
        """SIGKILL the worker's process group."""
        self.cause = self.cause or cause
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def last_words(self) -> str:
        """The end of what this life wrote to its log."""
        try:
            with self.spec.log_file.open("rb") as log:
                end = log.seek(0, os.SEEK_END)
                log.seek(max(self.log_start, end - LOG_TAIL_BYTES))
                text = log.read().decode(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.strip().splitlines()[-LOG_TAIL_LINES:])


def _heard(task: asyncio.Task[None]) -> None:
    """Take a start's error when nobody waits for it any more; the supervisor has noted it."""
    if not task.cancelled():
        task.exception()


async def start_worker(spec: WorkerSpec) -> Worker:
    """Start the process and the tasks that watch it; returns before it is ready."""
    ours, theirs = socket.socketpair()
    spec.log_file.parent.mkdir(parents=True, exist_ok=True)
    try:
        with spec.log_file.open("ab") as log:
            log_start = log.tell()
            process = await asyncio.create_subprocess_exec(
                *spec.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env=worker_environment(fd=theirs.fileno(), threads=spec.threads),
            )
    except OSError as error:
        ours.close()
        raise WorkerDied(
            f"the {spec.name} could not be started",
            cause=str(error),
            hint="the machine may be out of memory or processes",
        ) from error
    finally:
        theirs.close()
    ready: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
    worker: Worker
    channel = Channel(spec.name, lambda message: worker.on_control(message))
    worker = Worker(spec, process, channel, log_start, ready)
    watchers = [
        asyncio.create_task(_read(worker, ours), name=f"{spec.name}-reader"),
        asyncio.create_task(_watch(worker), name=f"{spec.name}-watch"),
    ]
    worker.tasks = [*watchers, asyncio.create_task(_bury(worker, watchers), name=f"{spec.name}-exit")]
    return worker


async def _read(worker: Worker, sock: socket.socket) -> None:
    try:
        await worker.channel.run(sock)
    except InfraError as error:
        worker.kill(str(error))


async def _watch(worker: Worker) -> None:
    """Kill a worker that is silent. A tick counts for at most two seconds, however late it comes."""
    await asyncio.wait([worker.ready])
    worker.silent = 0.0
    before = time.monotonic()
    while True:
        await asyncio.sleep(1.0)
        now = time.monotonic()
        worker.silent += min(now - before, 2.0)
        before = now
        if worker.silent > worker.spec.heartbeat_seconds:
            worker.kill(f"it sent no heartbeat for {worker.silent:.0f} s")
            return


async def _bury(worker: Worker, tasks: list[asyncio.Task[None]]) -> None:
    """Wait for the process to end, then fail everything that waits for it."""
    status = await worker.process.wait()
    # What it sent before it died is still in the socket; the reader ends at end of file.
    await asyncio.wait(tasks[:1], timeout=1.0)
    for task in tasks:
        task.cancel()
    reason = worker.cause or _describe(status)
    words = await asyncio.to_thread(worker.last_words)
    name = worker.spec.name
    error = WorkerDied(
        f"the {name} process ended",
        cause=f"{reason}\n{words}" if words else reason,
        hint=f"it is started anew; its log is {worker.spec.log_file}",
    )
    worker.channel.fail(error)
    if not worker.ready.done():
        worker.ready.set_exception(error)
        worker.ready.exception()  # marks it as heard: the start may have timed out already
    worker.died.set_result(error)


def _describe(status: int) -> str:
    if status < 0:
        name = signal.Signals(-status).name if -status in set(signal.Signals) else str(-status)
        return f"it was ended by {name}"
    return f"it exited with status {status}"


class Supervised:
    """A worker that is there when it is needed: started on demand, restarted after a death."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.spec = spec
        self.starts = 0
        """Lives so far; a change tells that what was loaded before is gone."""
        self._worker: Worker | None = None
        self._ready: dict[str, Any] = {}
        self._starting: asyncio.Task[None] | None = None
        self._failures = 0
        self._failed_at = 0.0
        self._last_error: ArtError | None = None
        self._stopping = False
        self._restart: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        return self._worker is not None and not self._worker.died.done()

    @property
    def stats(self) -> dict[str, Any]:
        """Of the last heartbeat."""
        return {} if self._worker is None else self._worker.stats

    @property
    def ready_message(self) -> dict[str, Any]:
        """What the worker said when it became ready."""
        return self._ready

    async def channel(self) -> Channel:
        """The channel of a ready worker, starting it if there is none.

        Raises what the worker said when it could not start, or WorkerDied when it keeps dying.
        """
        if self._worker is not None and self.alive:
            return self._worker.channel
        if self._starting is None or self._starting.done():
            # A task of its own: the start goes on for the others when the one who asked first goes away.
            self._starting = asyncio.create_task(self._start(), name=f"{self.spec.name}-start")
            self._starting.add_done_callback(_heard)
        starting = self._starting
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not starting.cancelled() or (task is not None and task.cancelling()):
                raise
            raise self._stopped() from None
        except ArtError as error:
            raise copy.copy(error) from error  # one per waiter
        assert self._worker is not None, "a start ends with a worker or an error"
        return self._worker.channel

    async def _start(self) -> None:
        if self._stopping:
            raise self._stopped()
        if self._failures >= MAX_FAILURES:
            if time.monotonic() - self._failed_at < COOLDOWN_SECONDS:
                raise self._gave_up()
            self._failures = MAX_FAILURES - 1  # one more try, because somebody asks
        else:
            await asyncio.sleep(BACKOFF_SECONDS[min(self._failures, len(BACKOFF_SECONDS) - 1)])
        worker = await start_worker(self.spec)
        self.starts += 1
        try:
            async with asyncio.timeout(self.spec.start_seconds):
                self._ready = await asyncio.shield(worker.ready)
        except TimeoutError:
            worker.kill(f"it was not ready within {self.spec.start_seconds:.0f} s")
            error: ArtError = await worker.died
            self._failed(error)
            raise error from None
        except ArtError as error_of_worker:
            worker.kill("it could not start")
            self._failed(error_of_worker)
            raise
        except asyncio.CancelledError:
            worker.kill("its start was cancelled")
            raise
        self._worker = worker
        worker.last_heartbeat = time.monotonic()
        logger.info("%s ready (pid %d)", self.spec.name, worker.process.pid)
        self._restart = asyncio.create_task(self._outlive(worker), name=f"{self.spec.name}-restart")

    async def _outlive(self, worker: Worker) -> None:
        """After the death of a ready worker, start the next one without being asked."""
        born = time.monotonic()
        error = await asyncio.shield(worker.died)
        if self._stopping:
            return
        logger.error("%s", error)
        if time.monotonic() - born >= HEALTHY_SECONDS:
            self._failures = 0
        if not worker.unwanted:
            self._failed(error)
        try:
            await self.channel()
        except ArtError as failed:
            logger.error("%s was not started again: %s", self.spec.name, failed)

    def _failed(self, error: ArtError) -> None:
        self._failures += 1
        self._failed_at = time.monotonic()
        self._last_error = error

    def _stopped(self) -> WorkerDied:
        return WorkerDied(
            f"the {self.spec.name} is stopped",
            cause="the server is stopping",
            hint="start it again; open jobs go on then",
        )

    def _gave_up(self) -> WorkerDied:
        last = self._last_error
        return WorkerDied(
            f"the {self.spec.name} ended {MAX_FAILURES} times in a row and is not started again for now",
            cause=str(last) if last is not None else "",
            hint=f"see {self.spec.log_file}; the next request after a minute tries once more",
        )

    def health(self) -> WorkerHealth:
        worker = self._worker
        return WorkerHealth(
            name=self.spec.name,
            pid=worker.process.pid if worker is not None and self.alive else None,
            alive=self.alive,
            restarts=max(0, self.starts - 1),
            last_heartbeat_age=time.monotonic() - worker.last_heartbeat if worker is not None else None,
            stats=self.stats,
        )

    def kill(self, cause: str) -> None:
        """End the process that runs now; the next life starts by itself, and this end counts for no failure."""
        if self._worker is not None and self.alive:
            self._worker.unwanted = True
            self._worker.kill(cause)

    async def stop(self) -> None:
        """Close the channel, wait a little, kill the process group."""
        self._stopping = True
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
            await asyncio.wait([self._starting])
        worker = self._worker
        if worker is not None and self.alive:
            worker.channel.fail(self._stopped())
            done, _ = await asyncio.wait([worker.died], timeout=STOP_SECONDS)
            if not done:
                worker.kill("the server is stopping")
                await worker.died
        if self._restart is not None:
            await asyncio.wait([self._restart], timeout=1.0)
