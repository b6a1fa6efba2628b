"""A sandbox that is a container: the same bounds as options of `docker run`."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from art.errors import ConfigError
from art.rollouts.sandbox_run import Bounds, EndedBy, Usage

DOCKER = "docker"
INSIDE = "/sandbox"
"""Where a container has the sandbox's folder."""
KILL_SECONDS = 10.0
"""For docker to kill a container."""
_REFUSED = 125
"""Docker's own failure, by its documentation; the program's statuses are passed on, 126 and 127 are a command that cannot be run."""
_KILLED = 137
"""Killed: by the limit on memory, since nobody else kills in there."""


@dataclass(kw_only=True)
class DockerRunner:
    """Starts one container and sees to its end."""

    image: str
    folder: Path
    network: bool
    name: str = field(default_factory=lambda: f"art-sandbox-{uuid.uuid4().hex[:16]}")

    def arguments(self, command: Sequence[str], environment: Mapping[str, str], bounds: Bounds) -> list[str]:
        """The command line."""
        inside = {"HOME": INSIDE, "TMPDIR": INSIDE, "LANG": "C.UTF-8", **environment}
        return [
            *(DOCKER, "run", "--rm", "--interactive", "--init", "--name", self.name, "--pull", "missing"),
            *([] if self.network else ["--network", "none"]),
            *("--memory", str(bounds.memory), "--memory-swap", str(bounds.memory)),
            *("--pids-limit", str(bounds.tasks), "--ulimit", f"fsize={bounds.file}", "--ulimit", "core=0"),
            *("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
            *("--user", f"{os.getuid()}:{os.getgid()}"),
            *("--volume", f"{self.folder}:{INSIDE}", "--workdir", INSIDE),
            *(part for name, value in inside.items() for part in ("--env", f"{name}={value}")),
            *("--entrypoint", command[0], self.image, *command[1:]),
        ]

    async def start(
        self, command: Sequence[str], environment: Mapping[str, str], bounds: Bounds
    ) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                *self.arguments(command, environment, bounds),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise ConfigError(
                "docker cannot be started", cause=str(error), hint='install it, or use kind="namespaces"'
            ) from error

    def usage(self, process: asyncio.subprocess.Process) -> Usage | None:
        return None  # the container's own limits hold

    async def end(self, process: asyncio.subprocess.Process) -> None:
        killing = await asyncio.create_subprocess_exec(
            *(DOCKER, "kill", self.name),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            async with asyncio.timeout(KILL_SECONDS):
                await killing.wait()
                await process.wait()
        except TimeoutError:
            pass
        finally:
            for each in (killing, process):
                if each.returncode is None:
                    each.kill()
                    await each.wait()

    def outcome(self, process: asyncio.subprocess.Process) -> tuple[int | None, EndedBy]:
        status = process.returncode
        assert status is not None
        if status == _REFUSED:
            raise ConfigError(
                f"docker did not start a container of {self.image}",
                hint="`docker run` of the same image says why: no daemon, no such image, or no right to use it",
            )
        return (None, "memory") if status == _KILLED else (status, "")
