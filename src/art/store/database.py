"""SQLite behind two threads: one writes, one reads.

Writes that wait together are committed together, each inside its own savepoint, so that one fsync serves
many and a failing one takes nothing with it. A write's future resolves after the commit: what was answered
is kept. Reads see everything that was answered before they began.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from art.errors import Conflict, DeadlineExceeded, InfraError, Overloaded
from art.store.schema import migrate

T = TypeVar("T")
MAX_WAITING = 20_000  # writes; past it the disk has stopped and callers are told so
DEADLINE_SECONDS = 120.0  # of one operation; a healthy disk takes milliseconds
GROUP = 256  # writes of one commit
_BUSY_SECONDS = 10.0  # a reader's checkpoint may hold the file for a moment


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

    def open(self) -> None:
        """Create or migrate the file and start the threads."""
        with contextlib.closing(self._connect()) as conn:
            conn.execute("PRAGMA journal_mode = WAL")
            migrate(conn)
        for name, target in (("store-writer", self._write_loop), ("store-reader", self._read_loop)):
            thread = threading.Thread(target=target, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def close(self) -> None:
        """Finish what waits and stop both threads."""
        if self._closed:
            return
        self._closed = True
        self._writes.put(None)
        self._reads.put(None)
        for thread in self._threads:
            thread.join()

    async def write(self, run: Callable[[sqlite3.Connection], T]) -> T:
        """Run on the writer thread inside a transaction; returns after the commit.

        The write itself is not cancelled with its caller: it happens whole or not at all.
        """
        return await self._submit(self._writes, run)

    async def read(self, run: Callable[[sqlite3.Connection], T]) -> T:
        """Run on the reader thread; the connection refuses writes."""
        return await self._submit(self._reads, run)

    async def flush(self) -> None:
        """Bring everything that was committed into the file itself, so that the log beside it holds no deleted text."""

        def run() -> None:
            with contextlib.closing(self._connect()) as conn:
                conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")

        await asyncio.to_thread(run)

    async def _submit(self, waiting: queue.Queue[_Task | None], run: Callable[[sqlite3.Connection], T]) -> T:
        if self._closed:
            raise InfraError("the store is closed", hint="the server is stopping; start it again")
        task = _Task(run, Future())
        try:
            waiting.put_nowait(task)
        except queue.Full:
            raise Overloaded("too many store operations wait", hint="try again in a moment") from None
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
        with contextlib.closing(self._connect()) as conn:
            stopping = False
            while not stopping:
                tasks, stopping = self._next_group()
                if tasks:
                    self._run_group(conn, tasks)
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

    @staticmethod
    def _run_group(conn: sqlite3.Connection, tasks: list[_Task]) -> None:
        outcomes: list[tuple[_Task, Any, BaseException | None]] = []
        try:
            conn.execute("BEGIN IMMEDIATE")
            for task in tasks:
                conn.execute("SAVEPOINT task")
                try:
                    outcomes.append((task, task.run(conn), None))
                except Exception as error:  # noqa: BLE001  the caller gets it; the other writes go on
                    conn.execute("ROLLBACK TO task")
                    outcomes.append((task, None, _classify(error)))
                conn.execute("RELEASE task")
            conn.execute("COMMIT")
        except sqlite3.Error as error:
            failure = InfraError(
                "the store could not write", cause=str(error), hint="check free disk space and permissions"
            )
            if conn.in_transaction:
                conn.execute("ROLLBACK")
            outcomes = [(task, None, failure) for task in tasks]
        for task, value, failed in outcomes:
            _resolve(task.future, value, failed)

    def _read_loop(self) -> None:
        with contextlib.closing(self._connect()) as conn:
            conn.execute("PRAGMA query_only = ON")
            while (task := self._reads.get()) is not None:
                try:
                    value = task.run(conn)
                except Exception as error:  # noqa: BLE001  the caller gets it; the reader goes on
                    _resolve(task.future, None, _classify(error))
                else:
                    _resolve(task.future, value, None)


def _classify(error: Exception) -> Exception:
    if isinstance(error, sqlite3.IntegrityError):
        return Conflict("the store refuses the change", cause=str(error))
    if isinstance(error, sqlite3.Error):
        return InfraError("the store failed", cause=f"{type(error).__name__}: {error}")
    return error


def _resolve(future: Future[Any], value: Any, error: BaseException | None) -> None:
    # A cancelled caller has cancelled its future; the write stands all the same.
    with contextlib.suppress(InvalidStateError):
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)
