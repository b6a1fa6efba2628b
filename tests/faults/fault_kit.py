"""What the fault tests do to a server's machine: its processes, its disk, its clock, its neighbours."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import signal
import socket
import subprocess
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import httpx2
from train_kit import Trained

T = TypeVar("T")
KILLED, FROZEN, OTHER = 2.0, 15.0, 5.0
"""Seconds until a fault must show."""
SECONDS = 60.0
"""No wait of these tests takes longer."""
POLL_SECONDS = 0.01
DISK_BYTES = 256 * 1024 * 1024
"""Of the small disk: a hundred times what these tests keep."""
MNT_DETACH = 2


def until(condition: Callable[[], T], seconds: float = SECONDS) -> T:
    """The first true value of `condition`."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(POLL_SECONDS)
    return found


# -- processes


def worker_pid(trained: Trained, name: str) -> int:
    """Of a worker that is there: "engine" or "trainer"."""

    def pid() -> int:
        worker = trained.workers().get(name)
        return int(worker["pid"] or 0) if worker is not None and worker["alive"] else 0

    return until(pid)


def gateway_pid(trained: Trained) -> int:
    assert trained.server.process is not None
    return trained.server.process.pid


def runs(pid: int) -> bool:
    """False for a process that has ended, also where nobody has taken note of it yet."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def children(pid: int) -> list[int]:
    """Processes that it started and that are not buried."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextlib.contextmanager
def held(*pids: int) -> Iterator[None]:
    """SIGSTOP; they go on at the end, if they are still there."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


# -- requests


def ask(
    trained: Trained, rollout_id: str | None = None, *, model: str = "p/m", **options: Any
) -> httpx2.Response:
    """One call on a connection of its own, whatever it answers."""
    headers = {"Authorization": f"Bearer {trained.server.admin_key}"}
    if rollout_id is not None:
        headers["X-ART-Rollout"] = rollout_id
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "yes or no?"}],
        "max_tokens": 8,
        **options,
    }
    url = f"{trained.server.url}/v1/chat/completions"
    return httpx2.post(url, json=body, headers=headers, timeout=SECONDS)


def said(response: httpx2.Response) -> str:
    """What an error says to its reader."""
    return str(response.json()["error"]["message"])


def raw_request(trained: Trained, body: bytes, *headers: str) -> bytes:
    """A chat request as it goes over the wire."""
    head = [
        "POST /v1/chat/completions HTTP/1.1",
        f"Host: 127.0.0.1:{trained.server.port}",
        f"Authorization: Bearer {trained.server.admin_key}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        *headers,
    ]
    return "\r\n".join([*head, "", ""]).encode() + body


# -- the neighbours


class SilentJudge:
    """Takes connections and never answers."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}/v1"

    def close(self) -> None:
        self._socket.close()


@contextlib.contextmanager
def locked(database: Path, python: str) -> Iterator[None]:
    """Another process holds the store's write lock."""
    text = textwrap.dedent(
        """
        import sqlite3, sys
        conn = sqlite3.connect(sys.argv[1], isolation_level=None)
        conn.execute("BEGIN IMMEDIATE")
        print("held", flush=True)
        sys.stdin.read()
        """
    )
    other = subprocess.Popen(
        [python, "-c", text, str(database)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    assert other.stdin is not None
    try:
        assert other.stdout.readline().strip() == "held"
        yield
    finally:
        other.stdin.close()
        other.wait(SECONDS)
        other.stdout.close()


class Clock:
    """The wall clock of every process that gets `environment`: it can be set forward and back."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "offset"
        self._folder = folder
        self.set(0.0)
        # Python imports it before anything else, so that `from time import time` gets the clock that jumps, too.
        (folder / "sitecustomize.py").write_text(
            textwrap.dedent(
                """
                import os, time

                real, real_ns = time.time, time.time_ns

                def offset():
                    with open(os.environ["ART_TEST_CLOCK"]) as file:
                        return float(file.read())

                time.time = lambda: real() + offset()
                time.time_ns = lambda: real_ns() + int(offset() * 1e9)
                """
            )
        )

    @property
    def environment(self) -> dict[str, str]:
        paths = [str(self._folder), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {"PYTHONPATH": os.pathsep.join(paths), "ART_TEST_CLOCK": str(self._file)}

    def set(self, offset: float) -> None:
        """Seconds that the clock is ahead of the true one."""
        new = self._file.with_suffix(".new")
        new.write_text(str(offset))
        new.replace(self._file)


# -- the disk


class Disk:
    """A file system of DISK_BYTES that can be filled to the last byte.

    Where this process may not mount one, the folder is an ordinary one and "full" is a limit on the size of files that
    the given processes write.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._libc = ctypes.CDLL(None, use_errno=True)
        options = f"size={DISK_BYTES},mode=0700".encode()
        self.mounted = self._libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, options) == 0

    @property
    def how(self) -> str:
        """How it gets full, for the table."""
        return "real" if self.mounted else "file size limit"

    def fill(self, pids: Sequence[int]) -> None:
        """Leave no byte to anybody."""
        if not self.mounted:
            for pid in pids:
                _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, hard))
            return
        for size in (1 << 20, 1 << 12, 1):
            with (self.folder / f"filler-{size}").open("wb", buffering=0) as file:
                try:
                    while True:
                        file.write(b"\0" * size)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    def free(self, pids: Sequence[int]) -> None:
        """Make room again."""
        for filler in self.folder.glob("filler-*"):
            filler.unlink()
        for pid in pids if not self.mounted else ():
            _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))

    def release(self) -> None:
        if self.mounted:
            self._libc.umount2(os.fsencode(self.folder), MNT_DETACH)
