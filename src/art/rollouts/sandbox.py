"""`Sandbox`: where a program that a model wrote or asked for runs, with bounds on what it can do and use."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from art.errors import ConfigError, InvalidInput, UnsupportedOption
from art.rollouts.recording import count
from art.rollouts.sandbox_docker import DockerRunner
from art.rollouts.sandbox_process import ProcessRunner
from art.rollouts.sandbox_run import Bounds, EndedBy, Runner, run_bounded
from art.utils.background import run_blocking

STOPPED = "tools/sandbox_stopped"
"""The trajectory's metric: programs that a limit of their sandbox has ended."""
MIB, KIB = 1 << 20, 1 << 10


@dataclass(frozen=True)
class SandboxResult:
    """What a program did."""

    status: int | None
    """Exit status, -N when signal N killed it; None when a limit has ended it."""
    ended_by: EndedBy
    """The limit that has ended it, "" where none has."""
    output: str
    """What it wrote to stdout and stderr, as far as it was kept."""
    dropped: int
    """Bytes of output beyond those."""
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether it ended by itself, with status 0."""
        return self.status == 0

    @property
    def text(self) -> str:
        """For the model: the output, and how the program ended where that was not well."""
        notes = [f"{self.dropped} bytes more"] if self.dropped else []
        if self.ended_by:
            notes.append(f"ended by the limit on {self.ended_by} after {self.seconds:.3g} s")
        elif self.status:
            notes.append(
                f"exit status {self.status}" if self.status > 0 else f"killed by signal {-self.status}"
            )
        return self.output + (f"\n[{', '.join(notes)}]" if notes else "")


@dataclass(frozen=True, kw_only=True)
class Sandbox:
    """Runs programs within bounds: `Sandbox(seconds=5).run_sync(["python3", "main.py"], files={"main.py": code}).text`.

    `kind`:
    - "namespaces" (Linux, no privilege needed): own user, process, network and mount namespaces. No network, everything but
      the working directory read-only, and whatever the program started ends with it.
    - "docker": a container of `image`, with the same bounds.
    - "process": a process group with limits, for where the other two cannot be had. It bounds neither network nor files,
      and that must be said: `Sandbox(kind="process", network=True, read_only=False)`.
    A bound that cannot be set on this machine raises ConfigError when a program is to run; none is left out in silence.
    """

    seconds: float = 30.0
    """Of wall time, for the program and all it starts."""
    memory_mb: int = 1024
    """MiB: of address space for each process, and of memory in use for all together."""
    file_mb: int = 64
    """MiB, of each file that is written."""
    processes: int = 64
    """Processes and threads at a time. Where the kernel does not count them they are looked at 20 times a second."""
    output_kb: int = 64
    """KiB of output that are kept, half from its beginning and half from its end."""
    network: bool = False
    """True: the program may use the machine's network."""
    read_only: bool = True
    """False: it may write wherever the user may who runs it."""
    hidden: Sequence[str | Path] = ()
    """Files and folders that are empty for the program: keys, other people's data. It can read all others."""
    folder: str | Path | None = None
    """The working directory, which stays; None makes a new one for each run, which goes."""
    kind: Literal["namespaces", "docker", "process"] = "namespaces"
    image: str | None = None
    """Of the container."""

    def __post_init__(self) -> None:
        for name in ("seconds", "memory_mb", "file_mb", "processes", "output_kb"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
                raise InvalidInput(f"{name} of a sandbox is {value!r}", hint="give a number over 0")
        if self.kind not in ("namespaces", "docker", "process"):
            raise InvalidInput(
                f"there is no sandbox of kind {self.kind!r}", hint="namespaces, docker or process"
            )
        if (self.image is not None) != (self.kind == "docker"):
            raise ConfigError(
                f"a sandbox of kind {self.kind} was given {'an' if self.image else 'no'} image",
                hint='Sandbox(kind="docker", image="python:3.13-slim") needs one, the others have no use for it',
            )
        ignored = {"hidden": bool(self.hidden)} if self.kind != "namespaces" else {}
        if self.kind == "process":
            ignored |= {"network": not self.network, "read_only": self.read_only}
        if self.kind == "docker":
            ignored["read_only"] = not self.read_only
        for name, refused in ignored.items():
            if refused:
                raise UnsupportedOption(
                    f"a sandbox of kind {self.kind} does not have {name}={getattr(self, name)!r}",
                    hint='kind="namespaces" bounds network and files; kind="process" needs network=True, read_only=False'
                    if self.kind == "process"
                    else f"leave {name} out",
                )

    async def run(
        self,
        command: Sequence[str],
        *,
        files: Mapping[str, str | bytes] | None = None,
        stdin: str | bytes = b"",
        environment: Mapping[str, str] | None = None,
    ) -> SandboxResult:
        """Run `command` in the working directory, with `files` in it. When this returns, nothing of it runs any more.

        The program's environment is `environment`, with PATH, HOME, TMPDIR and LANG: nothing of this process's own.
        ConfigError where the command cannot be started, or a bound not be set. InvalidInput for a file that would lie
        elsewhere. A program that fails or is stopped is a result.
        """
        if isinstance(command, str) or not command:
            raise InvalidInput(
                "the command of a sandbox must be a list", hint='["python3", "-c", code]; no shell reads it'
            )
        with tempfile.TemporaryDirectory(prefix="art-sandbox-", ignore_cleanup_errors=True) as own:
            folder = _prepared(Path(own, "work") if self.folder is None else Path(self.folder), files or {})
            runner = self._runner(Path(own), folder)
            data = stdin.encode() if isinstance(stdin, str) else stdin
            ended = await run_bounded(
                runner, list(command), dict(environment or {}), stdin=data, bounds=self._bounds
            )
        count(STOPPED, int(bool(ended.ended_by)))
        return SandboxResult(
            status=ended.status,
            ended_by=ended.ended_by,
            output=ended.output.decode(errors="replace"),
            dropped=ended.dropped,
            seconds=ended.seconds,
        )

    def run_sync(
        self,
        command: Sequence[str],
        *,
        files: Mapping[str, str | bytes] | None = None,
        stdin: str | bytes = b"",
        environment: Mapping[str, str] | None = None,
    ) -> SandboxResult:
        """`run` for code that does not await."""
        return run_blocking(lambda: self.run(command, files=files, stdin=stdin, environment=environment))

    @property
    def _bounds(self) -> Bounds:
        return Bounds(
            seconds=self.seconds,
            memory=int(self.memory_mb * MIB),
            file=int(self.file_mb * MIB),
            tasks=self.processes,
            output=int(self.output_kb * KIB),
        )

    def _runner(self, own: Path, folder: Path) -> Runner:
        if self.image is not None:
            return DockerRunner(image=self.image, folder=folder, network=self.network)
        return ProcessRunner(
            own=own,
            folder=folder,
            namespaces=self.kind == "namespaces",
            network=self.network,
            read_only=self.read_only,
            hidden=tuple(str(Path(path).resolve()) for path in self.hidden if Path(path).exists()),
        )


def _prepared(given: Path, files: Mapping[str, str | bytes]) -> Path:
    """The working directory, without links in its path, and with the files of a run."""
    folder = given.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        _write(folder, name, content)
    return folder


def _write(folder: Path, name: str, content: str | bytes) -> None:
    """One file of a run, in the working directory: neither outside nor through a link that leads there."""
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()) or path.is_symlink():
        raise InvalidInput(f"the file {name!r} lies outside of the sandbox's working directory")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
