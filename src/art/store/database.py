"""SQLite behind two threads: one writes, one reads.

Writes that wait together are committed together, each inside its own savepoint, so that one fsync serves
many and a failing one takes nothing with it. A write's future resolves after the commit: what was answered
is kept. Reads see everything that was answered before they began.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import errno
import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from art.errors import Conflict, DeadlineExceeded, InfraError, Overloaded
from art.store.changes import Changes
from art.store.damage import told
from art.store.distrust import require_ours
from art.store.readers import Readers
from art.store.schema import migrate

logger = logging.getLogger(__name__)

T = TypeVar("T")
MAX_WAITING = 20_000  # writes; past it the disk has stopped and callers are told so
DEADLINE_SECONDS = 120.0  # of one operation; a healthy disk takes milliseconds
GROUP = 256  # writes of one commit
_BUSY_SECONDS = 2.0  # another process may hold the file for a moment; who waits for longer is told
CLOSE_SECONDS = 30.0  # for the writes that wait; a disk that is stuck is not waited for


@dataclass(slots=True)
class _Task:
    run: Callable[[sqlite3.Connection], Any]
    future: Future[Any]


class Database:
    """The connection pair. `write` and `read` take a function of the connection and run it on its thread."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._writes: queue.Queue[_Task | None] = queue.Queue(maxsize=MAX_WAITING)
        self._reads: queue.Queue[_Task | None] = queue.Queue(maxsize=MAX_WAITING)
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._failure: InfraError | None = None
        """Why one of the threads is not there any more."""
        self._submitted, self._written, self._read = 0, 0, 0
        self._readers = Readers(file)
        self.changes = Changes()
        """What each commit changes."""

    def open(self) -> None:
        """Create or migrate the file and start the threads. InfraError where the disk or another process is in the way, Damaged
        where the file's tables are not a store's."""
        try:
            with contextlib.closing(self._connect()) as conn:
                require_ours(conn, self._file)
                conn.execute("PRAGMA journal_mode = WAL")
                migrate(conn)
        except sqlite3.Error as error:
            raise store_error(error) from error
        for name, target, waiting in (
            ("store-writer", self._write_loop, self._writes),
            ("store-reader", self._read_loop, self._reads),
        ):
            thread = threading.Thread(target=self._live, args=(target, waiting), name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def close(self) -> None:
        """Finish what waits and stop both threads."""
        if self._closed:
            return
        self._closed = True
        self._readers.close()
        deadline = time.monotonic() + CLOSE_SECONDS
        with contextlib.suppress(queue.Full):
            for waiting in (self._writes, self._reads):
                waiting.put(None, timeout=CLOSE_SECONDS)
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                logger.critical("%s did not end within %.0f s: the disk is stuck", thread.name, CLOSE_SECONDS)

    @property
    def work(self) -> tuple[int, int]:
        """Operations that are not done, and those that have ended, however they did."""
        done = self._written + self._read
        return self._submitted - done, done

    def _live(self, loop: Callable[[], None], waiting: queue.Queue[_Task | None]) -> None:
        """One thread. When it fails, everybody who waits for it is told, and who asks later is told at once."""
        try:
            loop()
        except Exception as error:
            # A boundary: nobody else would hear of it, and every operation would run into its deadline.
            logger.critical("%s failed", threading.current_thread().name, exc_info=error)
            self._failure = _stopped(error)
            while True:
                try:
                    task = waiting.get_nowait()
                except queue.Empty:
                    return
                if task is not None:
                    _resolve(task.future, None, self._failure)

    async def write(self, run: Callable[[sqlite3.Connection], T]) -> T:
        """Run on the writer thread inside a transaction; returns after the commit.

        The write itself is not cancelled with its caller: it happens whole or not at all.
        """
        return await self._submit(self._writes, run)

    async def read(self, run: Callable[[sqlite3.Connection], T]) -> T:
        """Run on the reader thread; the connection refuses writes."""
        return await self._submit(self._reads, run)

    async def view(self, run: Callable[[sqlite3.Connection], T]) -> T:
        """Run what a person looks at: beside the other operations, which it keeps from nothing, and with a deadline."""
        try:
            return await self._readers.read(run)
        except sqlite3.Error as error:
            raise store_error(error) from error

    async def flush(self) -> None:
        """Bring everything that was committed into the file itself, so that the log beside it holds no deleted text."""

        def run() -> None:
            try:
                with contextlib.closing(self._connect()) as conn:
                    conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            except sqlite3.Error as error:
                raise store_error(error) from error

        await asyncio.to_thread(run)

    async def _submit(self, waiting: queue.Queue[_Task | None], run: Callable[[sqlite3.Connection], T]) -> T:
        if self._closed:
            raise InfraError("the store is closed", hint="the server is stopping; start it again")
        if self._failure is not None:
            raise copy.copy(self._failure)
        task = _Task(run, Future())
        try:
            waiting.put_nowait(task)
        except queue.Full:
            raise Overloaded("too many store operations wait", hint="try again in a moment") from None
        self._submitted += 1
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                result: T = await asyncio.wrap_future(task.future)
        except TimeoutError:
            raise DeadlineExceeded(
                f"the store did not answer within {DEADLINE_SECONDS:.0f} s",
                cause="the disk is stuck, or far too slow",
                hint="check the disk that holds the server's folder (--path)",
            ) from None
        return result

    def _connect(self) -> sqlite3.Connection:
        conn = sqlite3.connect(self._file, isolation_level=None, timeout=_BUSY_SECONDS)
        conn.row_factory = sqlite3.Row
        conn.execute("PRAGMA synchronous = FULL")
        conn.execute("PRAGMA foreign_keys = ON")
        conn.execute("PRAGMA secure_delete = ON")  # what is deleted is overwritten, not only unlinked
        return conn

    def _write_loop(self) -> None:
        stopping = False
        while not stopping:
            with contextlib.closing(self._connect()) as conn:
                self.changes.attach(conn)
                # A transaction that could not be rolled back stays; only a new connection is free of it.
                while not stopping and not conn.in_transaction:
                    tasks, stopping = self._next_group()
                    try:
                        if tasks:
                            self._run_group(conn, tasks)
                    except Exception as error:
                        for task in tasks:
                            _resolve(task.future, None, _stopped(error))
                        raise
                    self._written += len(tasks)
                if stopping:
                    with contextlib.suppress(sqlite3.Error):  # a full disk: the next start does it
                        conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _next_group(self) -> tuple[list[_Task], bool]:
        tasks: list[_Task] = []
        first = self._writes.get()
        while first is not None:
            tasks.append(first)
            if len(tasks) == GROUP:
                return tasks, False
            try:
                first = self._writes.get_nowait()
            except queue.Empty:
                return tasks, False
        return tasks, True

    def _run_group(self, conn: sqlite3.Connection, tasks: list[_Task]) -> None:
        outcomes: list[tuple[_Task, Any, BaseException | None]] = []
        first: sqlite3.Error | None = None
        try:
            conn.execute("BEGIN IMMEDIATE")
            for task in tasks:
                conn.execute("SAVEPOINT task")
                try:
                    outcomes.append((task, task.run(conn), None))
                except Exception as error:  # noqa: BLE001  the caller gets it; the other writes go on
                    # SQLite may have rolled everything back by itself, a full disk for one: then this raises.
                    first = first or (error if isinstance(error, sqlite3.Error) else None)
                    conn.execute("ROLLBACK TO task")
                    outcomes.append((task, None, _classify(error)))
                conn.execute("RELEASE task")
            conn.execute("COMMIT")
            self.changes.committed()
        except sqlite3.Error as error:
            self.changes.discard()
            failure = store_error(first or error)
            if conn.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    conn.execute("ROLLBACK")
            outcomes = [(task, None, failure) for task in tasks]
        for task, value, failed in outcomes:
            _resolve(task.future, value, failed)

    def _read_loop(self) -> None:
        with contextlib.closing(self._connect()) as conn:
            conn.execute("PRAGMA query_only = ON")
            while (task := self._reads.get()) is not None:
                try:
                    with told(conn):
                        value = task.run(conn)
                except Exception as error:  # noqa: BLE001  the caller gets it; the reader goes on
                    _resolve(task.future, None, _classify(error))
                else:
                    _resolve(task.future, value, None)
                self._read += 1


def _classify(error: Exception) -> Exception:
    if isinstance(error, sqlite3.IntegrityError):
        return Conflict("the store refuses the change", cause=str(error))
    if isinstance(error, sqlite3.Error | OSError):
        return store_error(error)
    return error


def _stopped(error: Exception) -> InfraError:
    """What is told once one of the threads is not there any more."""
    cause = f"{type(error).__name__}: {error}"
    return InfraError("the store has stopped", cause=cause, hint="start the server again")


def store_error(error: sqlite3.Error | OSError) -> InfraError:
    """What is told of a disk or a database that does not do as it is asked."""
    text = str(error).lower()
    if isinstance(error, sqlite3.Error) and ("locked" in text or "busy" in text):
        return InfraError(
            "the store is locked by another process",
            cause=f"{error}, for more than {_BUSY_SECONDS:.0f} s",
            hint="end what else has art.db open (a backup is `art backup`, which locks nothing); nothing was written",
        )
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    if full or "is full" in text:
        return InfraError(
            "the disk of the store is full",
            cause=str(error),
            hint="make room on the disk of the server's folder (--path); what was answered before is kept, and can be read",
        )
    return InfraError(
        "the store failed",
        cause=f"{type(error).__name__}: {error}",
        hint="check the disk and its permissions",
    )


def _resolve(future: Future[Any], value: Any, error: BaseException | None) -> None:
    # A cancelled caller has cancelled its future; the write stands all the same.
    with contextlib.suppress(InvalidStateError):
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)
