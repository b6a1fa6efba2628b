"""One life of a worker process: started, read, watched by heartbeat, and buried, so that whoever waits is told."""

from __future__ import annotations

import asyncio
import contextlib
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
from art.errors import InfraError, WorkerDied, from_dict
from art.ipc import STACKS_SIGNAL, Message
from art.server.channel import Channel

logger = logging.getLogger(__name__)

STACKS_SECONDS = 0.3  # from asking a silent worker for its stacks to SIGKILL
UNKILLABLE_SECONDS = 0.5  # from SIGKILL until its callers are told, whether the kernel has ended it or not
WORDS_SECONDS = 0.5  # to read the end of its log
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
    killed: asyncio.Event = field(default_factory=asyncio.Event)
    deaf: bool = False
    """It has closed its end of the channel: no answer comes from it any more."""
    unwanted: bool = False
    """It was ended because somebody asked for that."""
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    """Reader, watch and exit; held here because the loop holds tasks weakly."""
    waits: asyncio.Task[int] | None = None
    """For the end of a process that the kernel does not let go."""
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
        self.killed.set()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def dump_stacks(self) -> None:
        """Have it write its threads' stacks to its log. Before it is ready the signal would end it."""
        if self.ready.done():
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(STACKS_SIGNAL)

    def failed(self, task: asyncio.Task[None]) -> None:
        """A watcher of it has ended. One that failed would leave everybody waiting: the worker ends, and they are told."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        logger.critical("%s failed", task.get_name(), exc_info=error)
        self.kill(f"{task.get_name()} failed: {error!r}")
        if task is self.tasks[-1] and not self.died.done():  # the one that tells the others
            self.bury(WorkerDied(f"the {self.spec.name} process ended", cause=self.cause))

    def bury(self, error: WorkerDied) -> None:
        """Tell whoever waits for it that it is dead."""
        self.channel.fail(error)
        if not self.ready.done():
            self.ready.set_exception(error)
            self.ready.exception()  # marks it as heard: the start may have timed out already
        self.died.set_result(error)

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


async def start_worker(spec: WorkerSpec) -> Worker:
    """Start the process and the tasks that watch it; returns before it is ready."""
    ours, theirs = socket.socketpair()
    try:
        spec.log_file.parent.mkdir(parents=True, exist_ok=True)
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
            hint="the machine may be out of memory, processes or disk space",
        ) from error
    except BaseException:
        ours.close()
        raise
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
    for task in worker.tasks:
        task.add_done_callback(worker.failed)
    return worker


async def _read(worker: Worker, sock: socket.socket) -> None:
    try:
        await worker.channel.run(sock)
    except InfraError as error:
        worker.kill(str(error))
    worker.deaf = True


async def _watch(worker: Worker) -> None:
    """Kill a worker that is silent, with its stacks in the log. A tick counts for at most two seconds, however late it comes."""
    await asyncio.wait([worker.ready])
    worker.silent, deaf = 0.0, False
    before = time.monotonic()
    while True:
        await asyncio.sleep(1.0)
        now = time.monotonic()
        worker.silent += min(now - before, 2.0)
        before = now
        if deaf and not worker.channel.closed:  # for a whole tick: it does not just end
            worker.kill("it closed its channel")
            return
        deaf = worker.deaf
        if worker.silent > worker.spec.heartbeat_seconds:
            worker.dump_stacks()
            await asyncio.sleep(STACKS_SECONDS)
            worker.kill(f"it sent no heartbeat for {worker.silent:.0f} s")
            return


async def _bury(worker: Worker, tasks: list[asyncio.Task[None]]) -> None:
    """Wait for the process to end, then fail everything that waits for it."""
    ended = asyncio.create_task(worker.process.wait(), name=f"{worker.spec.name}-wait")
    killed = asyncio.create_task(worker.killed.wait(), name=f"{worker.spec.name}-killed")
    await asyncio.wait([ended, killed], return_when=asyncio.FIRST_COMPLETED)
    # A process that hangs in the kernel (a disk that is gone) ends when that lets it go; nobody waits so long.
    await asyncio.wait([ended], timeout=UNKILLABLE_SECONDS)
    killed.cancel()
    if ended.done():
        with contextlib.suppress(ProcessLookupError, PermissionError):  # what it started and left behind
            os.killpg(worker.process.pid, signal.SIGKILL)
    # What it sent before it died is still in the socket; the reader ends at end of file.
    await asyncio.wait(tasks[:1], timeout=1.0 if ended.done() else 0.0)
    for task in tasks:
        task.cancel()
    reason = worker.cause or _describe(ended.result())
    if not ended.done():
        worker.waits = ended
        reason += "; the kernel has not ended it yet"
    words = ""
    with contextlib.suppress(TimeoutError):  # a disk that hangs holds nobody up here
        async with asyncio.timeout(WORDS_SECONDS):
            words = await asyncio.to_thread(worker.last_words)
    name = worker.spec.name
    error = WorkerDied(
        f"the {name} process ended",
        cause=f"{reason}\n{words}" if words else reason,
        hint=f"it is started anew; its log is {worker.spec.log_file}",
    )
    worker.bury(error)


def _describe(status: int) -> str:
    if status < 0:
        name = signal.Signals(-status).name if -status in set(signal.Signals) else str(-status)
        return f"it was ended by {name}"
    return f"it exited with status {status}"
