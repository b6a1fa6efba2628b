"""Looks at a running server from outside: which part of a run it is in, and which of its processes do it.

Processes are held still (SIGSTOP) before it is looked, so that what is seen is what a SIGKILL then hits. Linux only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sqlite3
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

IN_MODIFY, IN_CREATE, IN_MOVED_TO = 0x2, 0x100, 0x80
EVENT = struct.Struct("iIII")
"""inotify's event: watch, mask, cookie, bytes of the name behind it."""
GATEWAY, ENGINE, TRAINER = "gateway", "engine", "trainer"
WORKERS = {ENGINE: "art.engine.worker", TRAINER: "art.trainer.worker"}
POLL_SECONDS = 0.002
DRAINED_SECONDS = 0.05
"""Silence after which a trainer held still has no word of its own left in its channel."""


class Folder:
    """Tells of files that appear or change in one folder, within a tenth of a millisecond."""

    def __init__(self, path: Path, mask: int) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0 or self._libc.inotify_add_watch(self._fd, os.fsencode(path), mask) < 0:
            raise OSError(ctypes.get_errno(), f"inotify on {path}")

    def names(self, seconds: float) -> list[str]:
        """The names told of since the last call; waits up to `seconds` for one."""
        if not select.select([self._fd], [], [], seconds)[0]:
            return []
        data, found, at = os.read(self._fd, 65536), [], 0
        while at < len(data):
            *_, length = EVENT.unpack_from(data, at)
            at += EVENT.size
            found.append(data[at : at + length].rstrip(b"\0").decode())
            at += length
        return found

    def close(self) -> None:
        os.close(self._fd)


@contextlib.contextmanager
def watching(path: Path, mask: int) -> Iterator[Folder]:
    """A Folder for the length of the `with`."""
    folder = Folder(path, mask)
    try:
        yield folder
    finally:
        folder.close()


class Watch:
    """One model of one server, by its files alone."""

    def __init__(self, root: Path, project: str, name: str) -> None:
        self.blobs = root / "server" / "blobs" / project
        self.checkpoints = root / project / "models" / name / "checkpoints"
        self._database = root / "server" / "art.db"
        self._model = (project, name)

    def query(self, sql: str, *values: Any) -> list[Any]:
        """Rows; none while the database is being opened anew."""
        try:
            with contextlib.closing(sqlite3.connect(f"file:{self._database}?mode=ro", uri=True)) as conn:
                return conn.execute(sql, values).fetchall()
        except sqlite3.OperationalError:
            return []

    def one(self, sql: str, *values: Any) -> Any:
        """The first column of the first row, or None."""
        found = self.query(sql, *values)
        return found[0][0] if found else None

    @property
    def batch(self) -> int:
        """Train calls that have ended."""
        return int(self.one("SELECT batch FROM models WHERE project = ? AND name = ?", *self._model) or 0)

    @property
    def step(self) -> int:
        """The latest step, as it is recorded."""
        return int(self.one("SELECT step FROM models WHERE project = ? AND name = ?", *self._model) or 0)

    @property
    def running(self) -> int:
        """Rollouts that are open."""
        return int(self.one("SELECT COUNT(*) FROM rollouts WHERE status = 'running'") or 0)

    @property
    def job(self) -> str | None:
        """The job that runs, if one does."""
        found = self.one("SELECT job_id FROM jobs WHERE status = 'running'")
        return None if found is None else str(found)

    def progress(self, job: str) -> tuple[str, int, int]:
        """(phase, done, total), as the trainer said it last."""
        row = self.query(
            "SELECT json_extract(data, '$.phase'), json_extract(data, '$.done'), json_extract(data, '$.total')"
            " FROM job_events WHERE job_id = ? AND type = 'progress' ORDER BY id DESC LIMIT 1",
            job,
        )
        return (str(row[0][0]), int(row[0][1]), int(row[0][2])) if row else ("", 0, 0)

    def unnamed_bytes(self, file: str) -> int:
        """Bytes at the end of a rollout's blob that no recorded call names."""
        named = self.one(
            "SELECT MAX(json_extract(blob, '$.offset') + json_extract(blob, '$.length')) FROM calls"
            " WHERE rollout_id = ?",
            file.removesuffix(".blob"),
        )
        try:
            return (self.blobs / file).stat().st_size - int(named or 0)
        except OSError:
            return 0

    def writing(self) -> list[str]:
        """Checkpoints that are not whole yet."""
        return [name for name in os.listdir(self.checkpoints) if name.startswith(".tmp-0")]

    def unrecorded(self) -> list[int]:
        """Whole checkpoints that the server has not made the latest."""
        step = self.step
        return [int(name) for name in os.listdir(self.checkpoints) if name.isdecimal() and int(name) > step]


def processes(gateway: int) -> dict[str, int]:
    """The server's processes that are there, by what they do."""
    found = {GATEWAY: gateway}
    try:
        children = Path(f"/proc/{gateway}/task/{gateway}/children").read_text().split()
    except OSError:
        return found
    for child in children:
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{child}/cmdline").read_bytes().decode().split("\0")
            found |= {name: int(child) for name, module in WORKERS.items() if module in command}
    return found


def send(pids: Sequence[int], number: signal.Signals) -> None:
    """A signal to each process that is still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def ended(pid: int) -> bool:
    """True when the process is gone, or only waits to be buried."""
    try:
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


def wait_ended(pids: Sequence[int], seconds: float) -> None:
    """Return when all of them have ended. TimeoutError."""
    deadline = time.monotonic() + seconds
    while not all(map(ended, pids)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {pids} did not end")
        time.sleep(POLL_SECONDS)
