"""A program in a process group of its own: run to its end, and ended together with all it started."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from art.errors import ConfigError

GRACE_SECONDS = 5.0
"""Between asking a program to end (SIGTERM) and killing it."""
DRAIN_SECONDS = 2.0
"""How long the output of a program that has ended is waited for: something it started may hold the pipe."""
_CHUNK = 65_536


@dataclass(frozen=True)
class Ended:
    """How a program ended."""

    status: int
    """Exit status; -N when signal N killed it."""
    timed_out: bool
    seconds: float

    @property
    def failure(self) -> str:
        """Why it has no result: killed, or out of time. Empty when it ended by itself, whatever its status."""
        if self.timed_out:
            return f"it was still running after {self.seconds:.3g} s and was ended"
        if self.status < 0:
            return f"it was killed by {_signal_name(-self.status)}"
        return ""


async def run_process(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    stdin: IO[bytes] | int | None,
    on_output: Callable[[bytes], None] | None = None,
    timeout: float | None = None,
    cwd: Path | None = None,
) -> Ended:
    """Run `command` to its end, in the folder `cwd`. Its stdout goes to `on_output` piece by piece, or where ours goes.

    The whole process group is ended when `timeout` (seconds) passes or the caller is cancelled, and what is left
    of it when the program itself has ended. ConfigError when it cannot be started.
    """
    started = time.monotonic()
    read_fd, write_fd = os.pipe() if on_output is not None else (-1, -1)
    try:
        # A session of its own: Ctrl-C in the terminal reaches us alone, and we end the whole group.
        process = await asyncio.create_subprocess_exec(
            *command,
            env=dict(environment),
            cwd=cwd,
            stdin=stdin,
            stdout=write_fd if on_output is not None else None,
            start_new_session=True,
        )
    except OSError as error:
        if on_output is not None:
            os.close(read_fd)
        raise ConfigError(f"{command[0]} cannot be started", cause=str(error)) from error
    finally:
        if on_output is not None:
            os.close(write_fd)
    reading = None if on_output is None else asyncio.create_task(_read(read_fd, on_output))
    timed_out = False
    try:
        try:
            async with asyncio.timeout(timeout):
                await process.wait()
        except TimeoutError:
            timed_out = True
            await _end(process)
        seconds = time.monotonic() - started
        if reading is not None:
            await asyncio.wait([reading], timeout=DRAIN_SECONDS)
    finally:
        # Also when cancelled: first the program, then whatever it left behind.
        if process.returncode is None:
            await _end(process)
        signal_group(process.pid, signal.SIGKILL)
        if reading is not None:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
    assert process.returncode is not None
    return Ended(process.returncode, timed_out, seconds)


async def _end(process: asyncio.subprocess.Process) -> None:
    signal_group(process.pid, signal.SIGTERM)
    try:
        async with asyncio.timeout(GRACE_SECONDS):
            await process.wait()
    except TimeoutError:
        pass
    finally:
        signal_group(process.pid, signal.SIGKILL)
    await process.wait()


async def _read(fd: int, on_output: Callable[[bytes], None]) -> None:
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb", buffering=0)
    )
    try:
        while part := await reader.read(_CHUNK):
            on_output(part)
    finally:
        transport.close()


def signal_group(pid: int, number: signal.Signals) -> None:
    """Send a signal to the process group that `pid` leads; one that is gone is fine."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
