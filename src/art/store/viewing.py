"""A store that is only looked at: nothing is written into its folder, which may lie on a file system that cannot be written.

SQLite in WAL mode wants to write even where it only reads: it makes `art.db-shm` beside the file. So how the file is
opened is decided anew at each read, by what lies there:

- no log beside it, as a server that ended in order leaves it: as a file that does not change (`immutable`);
- a log with its index, of a server that was killed or that runs now: with the index as it is (`readonly_shm`);
- a log without an index: as a copy of both, in a folder of our own;
- of an older release: as a copy, brought to today's schema.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from art.errors import ConfigError, DeadlineExceeded, NotFound, ReadOnly
from art.store.changes import Kind
from art.store.damage import told
from art.store.database import Database, store_error
from art.store.distrust import harden, require_ours
from art.store.redaction import KeepEverything
from art.store.schema import MIGRATIONS, migrate, schema_version
from art.store.store import DATABASE, Store

T = TypeVar("T")
READERS = 4
"""Reads at once: a page asks for a handful of things, and each is a thread and a connection of its own."""
DEADLINE_SECONDS = 60.0
"""Of one read."""
PATIENCE = 10_000
"""Instructions of SQLite between two looks at the clock."""
MAP_BYTES = 1 << 30
"""Of the file that a read may take from the system's cache without copying."""

Signature = tuple[tuple[int, int], ...]
"""Sizes and times of the file and its log; another one says that something was written."""


Digest = dict[tuple[Kind, str, str], tuple[object, ...]]
"""By what it is of and of which run, figures that change with it."""

_DIGESTS: dict[Kind, str] = {
    "rollout": "SELECT project, model, COUNT(*), MAX(rowid), SUM(status = 'running'), MAX(ended_at), TOTAL(reward)"
    " FROM rollouts GROUP BY project, model",
    "step": "SELECT project, name, step, batch FROM models",
    "checkpoint": "SELECT project, name, MAX(step), SUM(deleted_at IS NULL) FROM checkpoints GROUP BY project, name",
    "job": "SELECT project, name, COUNT(*), SUM(status = 'running'), MAX(ended_at) FROM jobs GROUP BY project, name",
    "log": "SELECT project, name, MAX(id) FROM history GROUP BY project, name",
}


async def view_store(root: Path) -> tuple[Store, ReadOnlyDatabase]:
    """The store of a server's folder (`<path>/server`), to be read. NotFound where there is none."""
    database = ReadOnlyDatabase(root / DATABASE)
    await asyncio.to_thread(database.open)
    return Store(root, KeepEverything(), database), database


class ReadOnlyDatabase(Database):
    """Reads of a file that may change under it; every write is refused."""

    def __init__(self, file: Path) -> None:
        super().__init__(file)
        self._log = file.with_name(f"{file.name}-wal")
        self._index = file.with_name(f"{file.name}-shm")
        self._folder: Path | None = None
        self._copied: tuple[Signature, Path] | None = None
        self._migrated: Path | None = None
        self._copying = threading.Lock()
        self._places = asyncio.Semaphore(READERS)

    def open(self) -> None:
        """Look whether it can be read. NotFound without a file; ConfigError when a newer release wrote it."""
        if not self._file.is_file():
            raise NotFound(
                f"{self._file.parent.parent} holds no run",
                cause=f"there is no {self._file}",
                hint="name the folder that was given to art serve --path, or to LocalBackend(path=...)",
            )
        try:
            with contextlib.closing(self._connect()) as conn:
                require_ours(conn, self._file)
                version = schema_version(conn)
                if version > len(MIGRATIONS):
                    migrate(conn)  # which says that this release is too old
                if version < len(MIGRATIONS):
                    self._migrated = self._brought_forward(conn)
        except sqlite3.Error as error:
            self.close()
            raise store_error(error) from error

    def close(self) -> None:
        """Forget the copies."""
        self._readers.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    async def write(self, run: Callable[[sqlite3.Connection], T]) -> T:
        raise ReadOnly(
            f"{self._file.parent.parent} is only looked at",
            hint=f"start a server on it: art serve --path {self._file.parent.parent}",
        )

    async def read(self, run: Callable[[sqlite3.Connection], T]) -> T:
        """Run on a thread, with a connection of its own. DeadlineExceeded where that takes too long."""
        async with self._places:
            return await asyncio.to_thread(self._read_once, run)

    async def view(self, run: Callable[[sqlite3.Connection], T]) -> T:
        """The same: everything here is looked at by people."""
        return await self.read(run)

    async def flush(self) -> None:
        """Nothing was written."""

    def signature(self) -> Signature:
        """Of what lies there now."""
        found = []
        for file in (self._file, self._log):
            with contextlib.suppress(OSError):
                stat = file.stat()
                found.append((stat.st_size, stat.st_mtime_ns))
        return tuple(found)

    async def digest(self) -> Digest:
        """Of every run as it is now: what differs from an earlier digest has changed."""

        def run(conn: sqlite3.Connection) -> Digest:
            return {
                (kind, row[0], row[1]): tuple(row[2:])
                for kind, query in _DIGESTS.items()
                for row in conn.execute(query)
            }

        return await self.read(run)

    def _read_once(self, run: Callable[[sqlite3.Connection], T]) -> T:
        give_up = time.monotonic() + DEADLINE_SECONDS
        try:
            with contextlib.closing(self._connect()) as conn:
                conn.set_progress_handler(lambda: time.monotonic() > give_up, PATIENCE)
                require_ours(conn, self._file)  # at each read: what lies there may be another file by now
                with told(conn):
                    return run(conn)
        except sqlite3.OperationalError as error:
            if time.monotonic() < give_up:
                raise store_error(error) from error
            raise DeadlineExceeded(
                f"the store did not answer within {DEADLINE_SECONDS:.0f} s", hint="ask for less at once"
            ) from error
        except sqlite3.Error as error:
            raise store_error(error) from error

    def _connect(self) -> sqlite3.Connection:
        conn = sqlite3.connect(self._uri(), uri=True, isolation_level=None, check_same_thread=False)
        conn.row_factory = sqlite3.Row
        harden(conn)
        conn.execute(f"PRAGMA mmap_size = {MAP_BYTES}")
        return conn

    def _uri(self) -> str:
        if self._migrated is not None:
            return f"{self._migrated.as_uri()}?mode=ro&immutable=1"
        if not self._log.exists() or self._log.stat().st_size == 0:
            return f"{self._file.as_uri()}?mode=ro&immutable=1"
        if self._index.exists():
            return f"{self._file.as_uri()}?mode=ro&readonly_shm=1"
        return f"{self._copy().as_uri()}?mode=ro"

    def _copy(self) -> Path:
        """Of the file and its log, as they are now."""
        with self._copying:
            signature = self.signature()
            if self._copied is None or self._copied[0] != signature:
                target = self._room() / f"copy-{abs(hash(signature)):x}" / self._file.name
                target.parent.mkdir(exist_ok=True)
                shutil.copyfile(self._file, target)
                shutil.copyfile(self._log, target.with_name(self._log.name))
                self._copied = signature, target
            return self._copied[1]

    def _brought_forward(self, conn: sqlite3.Connection) -> Path:
        """A copy with today's schema."""
        target = self._room() / "today.db"
        with contextlib.closing(sqlite3.connect(target, isolation_level=None)) as copy:
            conn.backup(copy)
            copy.row_factory = sqlite3.Row
            copy.execute("PRAGMA journal_mode = DELETE")
            migrate(copy)
        return target

    def _room(self) -> Path:
        """A folder of our own, which nobody else can read."""
        if self._folder is None:
            try:
                self._folder = Path(tempfile.mkdtemp(prefix="art-ui-"))
            except OSError as error:
                raise ConfigError(
                    "a copy of the store is needed and cannot be made",
                    cause=str(error),
                    hint="name a folder for temporary files in TMPDIR",
                ) from error
        return self._folder
