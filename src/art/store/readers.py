"""Reading for people: on connections of their own, beside the writer, each query with a deadline.

A list over a large store may take long, and what records calls must not wait for it. So these threads are not the
store's: they open the file read-only, and a query that takes too long is ended in the middle.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from art.errors import DeadlineExceeded, InfraError, Overloaded
from art.store.damage import told
from art.store.distrust import harden

T = TypeVar("T")
THREADS = 2
"""SQLite computes outside the interpreter's lock; more would take the cores from who samples and trains."""
MAX_WAITING = 64
"""Queries that wait; past it, who asks is told to come back."""
DEADLINE_SECONDS = 10.0
"""Of one query, the wait for a thread included. A list takes milliseconds."""
GRACE_SECONDS = 1.0
"""For a query to end in order: SQLite looks at the clock between its instructions, and a single one may be long."""
CACHE_KIB = 32 * 1024
"""Of each connection."""
_BUSY_SECONDS = 2.0
_INSTRUCTIONS = 20_000
"""Of SQLite's machine between two looks at the clock: a millisecond or less."""


class Readers:
    """Threads with a read-only connection each to one database file."""

    def __init__(self, file: Path) -> None:
        """The file need not be there before the first query."""
        self._uri = f"{file.absolute().as_uri()}?mode=ro"
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="store-view")
        self._mine = threading.local()
        self._opened: list[sqlite3.Connection] = []
        self._waiting = 0
        self._closed = False

    async def read(self, query: Callable[[sqlite3.Connection], T], *, seconds: float = DEADLINE_SECONDS) -> T:
        """What `query` finds, on one of the threads, in one state of the store.

        DeadlineExceeded after `seconds`, Overloaded when too many wait; what SQLite says otherwise is raised as it is.
        """
        if self._closed:
            raise InfraError("the store is closed", hint="the server is stopping; start it again")
        if self._waiting >= MAX_WAITING:
            raise Overloaded("too many lists are being read", hint="try again in a moment")
        deadline = _Deadline(time.monotonic() + seconds)
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            async with asyncio.timeout(seconds + GRACE_SECONDS):
                return await loop.run_in_executor(self._pool, self._run, query, deadline)
        except TimeoutError:
            raise _too_long() from None  # the thread is free when SQLite looks at the clock again
        except asyncio.CancelledError:
            deadline.at = 0.0  # nobody waits for it any more
            raise
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """End what runs and close the connections. The object is of no use afterwards."""
        self._closed = True
        for conn in list(self._opened):
            conn.interrupt()
        self._pool.shutdown(wait=True, cancel_futures=True)
        for conn in self._opened:
            conn.close()
        self._opened.clear()

    def _run(self, query: Callable[[sqlite3.Connection], T], deadline: _Deadline) -> T:
        if deadline.passed():
            raise _too_long()
        try:
            conn = self._connection()
            conn.set_progress_handler(deadline.passed, _INSTRUCTIONS)
            conn.execute("BEGIN")  # all of it in one state of the store
            try:
                with told(conn):
                    return query(conn)
            finally:
                conn.set_progress_handler(None, 0)
                with contextlib.suppress(sqlite3.Error):
                    conn.execute("ROLLBACK")
        except sqlite3.OperationalError as error:
            if deadline.passed():
                raise _too_long() from error
            raise

    def _connection(self) -> sqlite3.Connection:
        conn: sqlite3.Connection | None = getattr(self._mine, "conn", None)
        if conn is None:
            conn = sqlite3.connect(
                self._uri, uri=True, isolation_level=None, timeout=_BUSY_SECONDS, check_same_thread=False
            )
            conn.row_factory = sqlite3.Row
            harden(conn)
            conn.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            self._mine.conn = conn
            self._opened.append(conn)
        return conn


class _Deadline:
    """Until when a query may run."""

    def __init__(self, at: float) -> None:
        self.at = at

    def passed(self) -> bool:
        return time.monotonic() > self.at


def _too_long() -> DeadlineExceeded:
    return DeadlineExceeded(
        "the list took too long",
        cause="the store is large, or the machine is busy",
        hint="narrow it: one step or group, a rarer word, a smaller limit",
    )
