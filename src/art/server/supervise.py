"""Worker processes that are there when they are needed: started on demand, restarted a bounded number of times."""

from __future__ import annotations

import asyncio
import copy
import logging
import time
from typing import Any

from art.errors import ArtError, WorkerDied
from art.server.channel import Channel
from art.server.watchdog import Work
from art.server.worker_process import Worker, WorkerSpec, start_worker
from art.types.wire import WorkerHealth

logger = logging.getLogger(__name__)

MAX_FAILURES = 5  # starts or lives in a row that may end badly before the supervisor waits to be asked
BACKOFF_SECONDS = (0.0, 0.5, 2.0, 5.0, 10.0)  # pause before the start after the n-th failure in a row
HEALTHY_SECONDS = 60.0  # a life this long clears the count of failures
COOLDOWN_SECONDS = 60.0  # after MAX_FAILURES, how long a request is refused at once
STOP_SECONDS = 5.0  # from closing the channel to SIGKILL

__all__ = ["Supervised", "WorkerSpec"]


def _heard(task: asyncio.Task[None]) -> None:
    """Take a start's error when nobody waits for it any more; the supervisor has noted it."""
    if not task.cancelled():
        task.exception()


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

    def kill(self, cause: str, *, hangs: bool = False) -> None:
        """End the process that runs now; the next life starts by itself.

        This end counts for no failure, unless the process `hangs`: the watchdog has its stacks.
        """
        if self._worker is not None and self.alive:
            self._worker.unwanted = not hangs
            self._worker.kill(cause)

    def in_hand(self) -> Work:
        """Requests that it has not answered, and a number that grows while it gets on."""
        worker = self._worker
        if worker is None or not self.alive:
            return Work(0, self.starts)
        return Work(worker.channel.pending, worker.channel.heard)

    def dump_stacks(self) -> None:
        """Have it write the stacks of its threads to its log."""
        if self._worker is not None and self.alive:
            self._worker.dump_stacks()

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
