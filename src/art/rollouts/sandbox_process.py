"""A sandbox of this machine's own means: `sandbox_init` as its first process, in namespaces or as a plain process group."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from art.errors import ConfigError
from art.rollouts import sandbox_init
from art.rollouts.process import signal_group
from art.rollouts.sandbox_run import Bounds, EndedBy, Usage, counts_children, descendants, usage_of

GRACE_SECONDS = 3.0
"""For `sandbox_init` to kill what it has adopted; after that it is killed itself."""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_OWN_TASKS = 2
"""Processes of `sandbox_init` that the kernel counts with the program's."""
_COUNTED_PER_NAMESPACE = (5, 14)
"""Since this Linux, the limit on processes counts those of the namespace instead of all of the user's."""


@dataclass(kw_only=True)
class ProcessRunner:
    """Starts and watches one program."""

    own: Path
    """A private folder for this run."""
    folder: Path
    """The program's working directory."""
    namespaces: bool
    network: bool
    read_only: bool
    hidden: tuple[str, ...]

    async def start(
        self, command: Sequence[str], environment: Mapping[str, str], bounds: Bounds
    ) -> asyncio.subprocess.Process:
        if sys.platform != "linux":
            raise _unavailable("limits", f"{sys.platform} is not Linux")
        if not counts_children():
            raise _unavailable("count of processes", "/proc does not tell a process's children here")
        devices, empty, plan = self.own / "dev", self.own / "empty", self.own / "plan.json"
        devices.mkdir()
        empty.touch(0o400)
        told = {
            "command": list(command),
            "environment": {**_surroundings(self.folder), **environment},
            "folder": str(self.folder),
            "devices": str(devices),
            "empty": str(empty),
            "namespaces": self.namespaces,
            "network": self.network,
            "read_only": self.read_only,
            "hidden": self.hidden,
            "memory": bounds.memory,
            "file": bounds.file,
            "tasks": bounds.tasks + _OWN_TASKS if self.namespaces and _counted() else None,
        }
        plan.write_text(json.dumps(told))
        # A file, opened out here: in there it cannot be reached, and nobody has to read it while the program runs.
        status = os.open(self._status, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", sandbox_init.__file__, str(status), str(plan)),
                env={"PATH": PATH},
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                pass_fds=(status,),
                start_new_session=True,
            )
        finally:
            os.close(status)

    def usage(self, process: asyncio.subprocess.Process) -> Usage | None:
        inside = descendants(process.pid)
        if self.namespaces:
            # The first process of the namespace is ours; everything else in it is the program's.
            inside = inside[1:]
        return usage_of(inside)

    async def end(self, process: asyncio.subprocess.Process) -> None:
        try:
            if not self.namespaces:  # what the program has left behind is known to its first process alone
                with contextlib.suppress(TimeoutError, ProcessLookupError):
                    process.send_signal(signal.SIGTERM)
                    async with asyncio.timeout(GRACE_SECONDS):
                        await process.wait()
        finally:
            # With namespaces everything in them ends with their first process.
            signal_group(process.pid, signal.SIGKILL)
            await process.wait()

    def outcome(self, process: asyncio.subprocess.Process) -> tuple[int | None, EndedBy]:
        said: dict[str, Any] = {}
        for line in self._status.read_text().splitlines():
            said |= json.loads(line)
        if "refused" in said:
            raise _unavailable(said["refused"], said["cause"])
        if "cannot_start" in said:
            raise ConfigError("the sandbox's command cannot be started", cause=said["cannot_start"])
        if "status" not in said:
            raise ConfigError(
                "the sandbox's first process ended before its program", cause=f"status {process.returncode}"
            )
        return int(said["status"]), ""

    @property
    def _status(self) -> Path:
        """What `sandbox_init` has to say."""
        return self.own / "status"


def _unavailable(limit: str, cause: str) -> ConfigError:
    return ConfigError(
        f"this machine does not give a sandbox its own {limit}",
        cause=cause,
        hint='Sandbox(kind="docker", image=...) where docker runs; Sandbox(kind="process", network=True, read_only=False) '
        "bounds time, memory, files' sizes and processes alone",
    )


def _surroundings(folder: Path) -> dict[str, str]:
    return {"PATH": PATH, "HOME": str(folder), "TMPDIR": str(folder), "LANG": "C.UTF-8"}


def _counted() -> bool:
    """Whether the kernel's limit on processes can be used for a sandbox's own."""
    numbers = os.uname().release.split(".")[:2]
    return all(number.isdigit() for number in numbers) and (
        tuple(map(int, numbers)) >= _COUNTED_PER_NAMESPACE
    )
