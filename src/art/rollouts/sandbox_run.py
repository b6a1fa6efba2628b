"""One program in a sandbox, from its start to its certain end: time, memory and processes watched, output bounded."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

EndedBy = Literal["", "time", "memory", "processes"]

LOOK_SECONDS = 0.05
"""Between two looks at what a program uses: a look costs some 0.1 ms a process."""
DRAIN_SECONDS = 2.0
"""How long the output of a program that has ended is waited for."""
_CHUNK = 65_536


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What a program may use."""

    seconds: float
    memory: int
    """Bytes."""
    file: int
    """Bytes."""
    tasks: int
    """Processes and threads."""
    output: int
    """Bytes that are kept."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How it ended."""

    status: int | None
    ended_by: EndedBy
    output: bytes
    dropped: int
    seconds: float


@dataclass(frozen=True)
class Usage:
    """What a program and all it started use now."""

    tasks: int
    memory: int
    """Bytes."""


class Runner(Protocol):
    """One way to confine a program."""

    async def start(
        self, command: Sequence[str], environment: Mapping[str, str], bounds: Bounds
    ) -> asyncio.subprocess.Process:
        """A process with piped stdin and stdout that ends when the program has. ConfigError where it cannot be had."""
        ...

    def usage(self, process: asyncio.subprocess.Process) -> Usage | None:
        """What is used now; None where the system keeps the bounds by itself, or nothing runs yet."""
        ...

    async def end(self, process: asyncio.subprocess.Process) -> None:
        """Kill everything that runs, and wait until it is gone."""
        ...

    def outcome(self, process: asyncio.subprocess.Process) -> tuple[int | None, EndedBy]:
        """The program's status once it has ended by itself. ConfigError when it could not be started, or not be bounded."""
        ...


class Output:
    """The beginning and the end of what a program writes."""

    def __init__(self, most: int) -> None:
        self._half = max(1, most // 2)
        self._head = bytearray()
        self._tail = bytearray()
        self.dropped = 0

    def add(self, part: bytes) -> None:
        room = self._half - len(self._head)
        self._head += part[:room] if room > 0 else b""
        self._tail += part[max(0, room) :]
        if (over := len(self._tail) - self._half) > 0:
            del self._tail[:over]
            self.dropped += over

    def kept(self) -> bytes:
        """With a mark where something is left out."""
        return bytes(self._head + (b"\n[...]\n" if self.dropped else b"") + self._tail)


async def run_bounded(
    runner: Runner, command: Sequence[str], environment: Mapping[str, str], *, stdin: bytes, bounds: Bounds
) -> Ended:
    """Run to the end, or until a bound is reached. Also when the caller is cancelled, nothing is left running."""
    started = time.monotonic()
    process = await runner.start(command, environment, bounds)
    output = Output(bounds.output)
    transfers = [
        asyncio.create_task(_read(process, output)),
        asyncio.create_task(_write(process, stdin)),
    ]
    try:
        ended_by = await _watch(runner, process, bounds, until=started + bounds.seconds)
        seconds = time.monotonic() - started
        if ended_by:
            await runner.end(process)
        await asyncio.wait(transfers[:1], timeout=DRAIN_SECONDS)
    finally:
        if process.returncode is None:
            await runner.end(process)
        for transfer in transfers:
            transfer.cancel()
        await asyncio.gather(*transfers, return_exceptions=True)
    status: int | None = None
    if not ended_by:
        status, ended_by = runner.outcome(process)
    return Ended(
        status=status, ended_by=ended_by, output=output.kept(), dropped=output.dropped, seconds=seconds
    )


async def _watch(
    runner: Runner, process: asyncio.subprocess.Process, bounds: Bounds, *, until: float
) -> EndedBy:
    """Wait for the end of the program, or for the bound it reaches first."""
    waiting = asyncio.create_task(process.wait())
    try:
        while True:
            left = until - time.monotonic()
            if left <= 0:
                return "" if process.returncode is not None else "time"
            done, _ = await asyncio.wait([waiting], timeout=min(left, LOOK_SECONDS))
            if done:
                return ""
            used = runner.usage(process)
            if used is not None and used.tasks > bounds.tasks:
                return "processes"
            if used is not None and used.memory > bounds.memory:
                return "memory"
    finally:
        waiting.cancel()


async def _read(process: asyncio.subprocess.Process, output: Output) -> None:
    assert process.stdout is not None
    while part := await process.stdout.read(_CHUNK):
        output.add(part)


async def _write(process: asyncio.subprocess.Process, data: bytes) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(data)
        await process.stdin.drain()
        process.stdin.close()
    except ConnectionError:  # the program does not read its input
        return


def counts_children() -> bool:
    """Whether this system tells a process's children: without that nothing could be counted."""
    return os.path.exists(f"/proc/self/task/{threading.get_native_id()}/children")


def descendants(pid: int) -> list[int]:
    """Of a process, as Linux tells; itself not among them."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        parent = waiting.pop()
        try:
            for thread in os.listdir(f"/proc/{parent}/task"):
                with open(f"/proc/{parent}/task/{thread}/children", encoding="ascii") as file:
                    waiting += (born := [int(child) for child in file.read().split()])
                    found += born
        except OSError:  # it has ended meanwhile
            continue
    return found


def usage_of(pids: Sequence[int]) -> Usage:
    """Tasks and resident memory of these processes together."""
    tasks = pages = 0
    for pid in pids:
        try:
            tasks += len(os.listdir(f"/proc/{pid}/task"))
            with open(f"/proc/{pid}/statm", encoding="ascii") as file:
                pages += int(file.read().split()[1])
        except (OSError, IndexError):  # it has ended meanwhile
            continue
    return Usage(tasks, pages * os.sysconf("SC_PAGE_SIZE"))
