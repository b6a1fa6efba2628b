"""The sandbox: each limit against a program that tries to pass it, and nothing left running whatever happens."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from art.errors import ConfigError, InvalidInput, UnsupportedOption
from art.rollouts import sandbox_init
from art.rollouts.recording import Recording, recording_into
from art.rollouts.sandbox_docker import DockerRunner
from art.rollouts.sandbox_run import Bounds, Output
from art.utils import Sandbox, SandboxResult

PYTHON = sys.executable
OPEN: dict[str, Any] = {"kind": "process", "network": True, "read_only": False}
"""Neither network nor files bounded: the form that works everywhere."""


def namespaces_are_missing() -> bool:
    """Whether this machine lets nobody make a user namespace, as a container may."""
    if sys.platform != "linux":
        return True
    command = ["unshare", "--user", "--map-root-user", "--net", "--mount", "true"]
    return shutil.which("unshare") is None or subprocess.run(command, capture_output=True).returncode != 0


def docker_is_missing() -> bool:
    if shutil.which("docker") is None:
        return True
    try:
        return subprocess.run(["docker", "info"], capture_output=True, timeout=10).returncode != 0
    except subprocess.TimeoutExpired:
        return True


NO_NAMESPACES = namespaces_are_missing()
needs_namespaces = pytest.mark.absent(NO_NAMESPACES, reason="user namespaces")
KINDS = [
    pytest.param({}, id="namespaces", marks=needs_namespaces),
    pytest.param(OPEN, id="process"),
]


def run(code: str, *, stdin: str = "", files: dict[str, str] | None = None, **options: Any) -> SandboxResult:
    return Sandbox(**options).run_sync([PYTHON, "-I", "-c", code], stdin=stdin, files=files)


def processes_with(mark: str) -> list[int]:
    """Processes whose command line holds the mark."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if mark in (folder / "cmdline").read_text(errors="replace"):
                    found.append(int(folder.name))
            except OSError:
                continue
    return found


def gone(mark: str) -> bool:
    """Whether they are gone, or go within two seconds: what is killed takes a moment to be collected."""
    deadline = time.monotonic() + 2
    while processes_with(mark) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not processes_with(mark)


@contextmanager
def listener() -> Iterator[int]:
    """The port of a server on loopback."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_program_runs_in_a_folder_of_its_own(kind: dict[str, Any]) -> None:
    code = (
        "import os, sys\nprint(open('a/in.txt').read(), input(), sorted(os.environ))\n"
        "open('out.txt', 'w').write('x')\nprint(os.getcwd() == os.environ['HOME'] == os.environ['TMPDIR'])\n"
        "sys.stderr.write('to stderr'); sys.exit(3)"
    )
    os.environ["ART_TEST_SECRET"] = "secret"
    try:
        result = run(code, stdin="line\n", files={"a/in.txt": "given"}, **kind)
    finally:
        del os.environ["ART_TEST_SECRET"]
    assert result.status == 3
    assert not result.ok
    assert result.output.startswith("given line ['HOME', 'LANG',")
    assert "ART_TEST_SECRET" not in result.output
    assert result.output.endswith("True\nto stderr")
    assert result.text.endswith("[exit status 3]")


@pytest.mark.parametrize("kind", KINDS)
def test_time_is_bounded_for_all_that_was_started(kind: dict[str, Any]) -> None:
    mark = uuid.uuid4().hex
    code = (
        "import subprocess, sys, time\n"
        f"sleeper = [sys.executable, '-c', 'import time; time.sleep(60) # {mark}']\n"
        "subprocess.Popen(sleeper)\nsubprocess.Popen(sleeper, start_new_session=True)\n"
        "print('started', flush=True)\ntime.sleep(60)"
    )
    recording = Recording()
    with recording_into(recording):
        result = run(code, seconds=1.5, **kind)
    assert (result.status, result.ended_by, result.output) == (None, "time", "started\n")
    assert "ended by the limit on time" in result.text
    assert recording.counts == {"tools/sandbox_stopped": 1}
    assert gone(mark)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_program_leaves_behind_ends_with_it(kind: dict[str, Any]) -> None:
    mark = uuid.uuid4().hex
    code = (
        "import subprocess, sys\n"
        f"subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60) # {mark}'], start_new_session=True)"
    )
    result = run(code, seconds=20, **kind)
    assert result.ok
    assert gone(mark)


@pytest.mark.parametrize("kind", KINDS)
def test_memory_is_bounded_in_one_process_and_in_all(kind: dict[str, Any]) -> None:
    result = run("x = bytearray(400 << 20)", memory_mb=200, **kind)
    assert result.status == 1
    assert "MemoryError" in result.output
    together = (
        "import os, time\nfor _ in range(4):\n    if os.fork() == 0:\n"
        "        x = bytearray(b'x') * (90 << 20); time.sleep(30)\ntime.sleep(30)"
    )
    result = run(together, memory_mb=200, seconds=20, **kind)
    assert result.ended_by == "memory"


@pytest.mark.parametrize("kind", KINDS)
def test_the_size_of_files_is_bounded(kind: dict[str, Any]) -> None:
    code = "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\nopen('big', 'wb').write(b'x' * (3 << 20))"
    result = run(code, file_mb=2, **kind)
    assert result.status == 1
    assert "File too large" in result.output
    assert run(code, file_mb=4, **kind).ok
    killed = run("open('big', 'wb').write(b'x' * (3 << 20)); print('on')", file_mb=2, **kind)
    assert not killed.ok


@pytest.mark.parametrize("kind", KINDS)
def test_the_number_of_processes_is_bounded(kind: dict[str, Any]) -> None:
    mark = uuid.uuid4().hex
    code = (
        f"import os, time  # {mark}\nfor _ in range(60):\n    if os.fork() == 0:\n        time.sleep(30)\n"
        "print('all', flush=True)\ntime.sleep(30)"
    )
    result = run(code, processes=8, seconds=20, **kind)
    # Root's processes the kernel does not count: they are looked at, and the whole is ended.
    refused = result.status == 1 and "BlockingIOError" in result.output
    assert result.ended_by == "processes" or refused
    assert gone(mark)


@pytest.mark.parametrize("kind", KINDS)
def test_output_is_bounded(kind: dict[str, Any]) -> None:
    result = run("print('begin', 'x' * 3_000_000, 'end')", output_kb=2, **kind)
    assert result.ok
    assert result.output.startswith("begin x")
    assert result.output.endswith("x end\n")
    assert len(result.output) < 2100
    assert result.dropped == 3_000_011 - 2048
    assert result.text.endswith(f"[{result.dropped} bytes more]")


@needs_namespaces
def test_there_is_no_network_unless_it_is_asked_for() -> None:
    code = "import socket\nsocket.create_connection(('127.0.0.1', {port}), timeout=5)\nprint('connected')"
    with listener() as port:
        alone = run(code.format(port=port))
        assert alone.status == 1
        assert "ConnectionRefusedError" in alone.output, "its own loopback, on which nobody listens"
        assert run(code.format(port=port), network=True).output == "connected\n"
    outside = run("import socket\nsocket.create_connection(('192.0.2.1', 80), timeout=5)")
    assert "Network is unreachable" in outside.output
    inside = (
        "import socket\nserver = socket.create_server(('127.0.0.1', 0))\n"
        "socket.create_connection(server.getsockname())\nprint('talks to itself')"
    )
    assert run(inside).output == "talks to itself\n"


@needs_namespaces
def test_nothing_outside_can_be_written_or_signalled(tmp_path: Path) -> None:
    target, device = tmp_path / "outside", "/dev/null"
    target.write_text("before")
    code = (
        "import os\n"
        f"for path in ({str(target)!r}, {str(tmp_path / 'new')!r}, '/proc/sys/kernel/core_pattern'):\n"
        "    try:\n        open(path, 'w').write('after')\n    except OSError as error:\n        print(error.strerror)\n"
        f"open({device!r}, 'w').write('x'); open('mine', 'w').write('x')\n"
        f"try:\n    os.kill({os.getpid()}, 15)\nexcept OSError as error:\n    print(error.strerror)\n"
        "print(os.path.exists('/dev/mem'), os.getpid())"
    )
    result = run(code)
    assert result.output.splitlines()[:3] == ["Read-only file system"] * 3
    assert result.output.splitlines()[3:] == ["No such process", "False 2"]
    assert target.read_text() == "before"
    assert run(f"open({str(target)!r}, 'w').write('after')", read_only=False).ok
    assert target.read_text() == "after"


@needs_namespaces
def test_a_program_cannot_get_its_privileges_back() -> None:
    mounting = (
        "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "print(libc.mount(None, b'/', None, 32 | 4096, None), os.strerror(ctypes.get_errno()))\n"
        "print([line.split()[1] for line in open('/proc/self/status') if line.startswith(('CapPrm', 'CapBnd'))])\n"
        "import resource\ntry:\n    resource.setrlimit(resource.RLIMIT_AS, (-1, -1))\n"
        "except (ValueError, OSError):\n    print('stays')"
    )
    lines = run(mounting).output.splitlines()
    assert lines[0] == "-1 Operation not permitted"
    assert lines[1] == str(["0" * 16] * 2)
    assert lines[2] == "stays"


@needs_namespaces
def test_hidden_files_are_empty(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "admin.key").write_text("secret")
    (tmp_path / "token").write_text("secret")
    code = f"import os\nprint(os.listdir({str(tmp_path / 'keys')!r}), repr(open({str(tmp_path / 'token')!r}).read()))"
    assert run(code).output == "['admin.key'] 'secret'\n"
    assert run(code, hidden=[tmp_path / "keys", tmp_path / "token", tmp_path / "none"]).output == "[] ''\n"


@pytest.mark.parametrize("kind", KINDS)
def test_a_given_folder_stays(kind: dict[str, Any], tmp_path: Path) -> None:
    sandbox = Sandbox(folder=tmp_path / "project", **kind)
    assert sandbox.run_sync([PYTHON, "-c", "open('state', 'a').write('x')"]).ok
    assert sandbox.run_sync([PYTHON, "-c", "open('state', 'a').write('x')"]).ok
    assert (tmp_path / "project" / "state").read_text() == "xx"
    (tmp_path / "project" / "way_out").symlink_to(tmp_path)
    for name in ("../escaped", "way_out/escaped", "/escaped"):
        with pytest.raises(InvalidInput, match="outside"):
            sandbox.run_sync(["true"], files={name: "x"})
    assert not (tmp_path / "escaped").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_cancelling_ends_the_program(kind: dict[str, Any]) -> None:
    mark = uuid.uuid4().hex

    async def main() -> None:
        command = [PYTHON, "-c", f"import time; time.sleep(60) # {mark}"]
        task = asyncio.create_task(Sandbox(**kind).run(command))
        while not processes_with(mark):
            assert not task.done()
            await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert gone(mark)


@pytest.mark.parametrize("kind", KINDS)
def test_a_command_that_does_not_exist(kind: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="cannot be started") as failure:
        Sandbox(**kind).run_sync(["no-such-program"])
    assert "No such file" in failure.value.cause
    with pytest.raises(InvalidInput, match="must be a list"):
        Sandbox(**kind).run_sync("ls -l")


def test_a_bound_that_cannot_be_set_is_an_error_and_never_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # A kernel that allows no user namespaces is played by asking for one that no kernel has.
    broken = (
        Path(sandbox_init.__file__).read_text().replace("NEW_NETWORK = 0x10000000,", "NEW_NETWORK = 0x1,")
    )
    assert "= 0x1," in broken
    (tmp_path / "init.py").write_text(broken)
    monkeypatch.setattr(sandbox_init, "__file__", str(tmp_path / "init.py"))
    with pytest.raises(ConfigError, match="does not give a sandbox its own namespaces") as failure:
        run("print('ran all the same')")
    assert "Invalid argument" in failure.value.cause
    assert 'kind="docker"' in failure.value.hint
    assert 'kind="process"' in failure.value.hint


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"kind": "process"}, UnsupportedOption, "does not have network=False"),
        ({"kind": "process", "network": True}, UnsupportedOption, "does not have read_only=True"),
        ({**OPEN, "hidden": ["/etc"]}, UnsupportedOption, "does not have hidden"),
        ({"kind": "docker", "image": "x", "read_only": False}, UnsupportedOption, "does not have read_only"),
        ({"kind": "docker"}, ConfigError, "no image"),
        ({"image": "python:3.13"}, ConfigError, "an image"),
        ({"kind": "jail"}, InvalidInput, "no sandbox of kind 'jail'"),
        ({"seconds": 0}, InvalidInput, "seconds"),
        ({"memory_mb": float("inf")}, InvalidInput, "memory_mb"),
        ({"processes": True}, InvalidInput, "processes"),
    ],
)
def test_what_a_sandbox_cannot_do_is_refused_by_name(
    options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        Sandbox(**options)


def test_a_container_gets_every_bound(tmp_path: Path) -> None:
    bounds = Bounds(seconds=1, memory=1000, file=2000, tasks=30, output=10)
    runner = DockerRunner(image="image:1", folder=tmp_path, network=False, name="one")
    command = runner.arguments(["python3", "-c", "1"], {"A": "b c"}, bounds)
    line = " ".join(command)
    assert command[:2] == ["docker", "run"]
    for wanted in (
        "--rm", "--network none", "--memory 1000", "--memory-swap 1000", "--pids-limit 30", "--ulimit fsize=2000",
        "--read-only", "--cap-drop ALL", "--security-opt no-new-privileges", f"--user {os.getuid()}:{os.getgid()}",
        f"--volume {tmp_path}:/sandbox", "--workdir /sandbox", "--name one",
    ):  # fmt: skip
        assert f" {wanted} " in line, wanted
    assert command[command.index("A=b c") - 1] == "--env"
    assert command[-4:] == ["python3", "image:1", "-c", "1"]
    open_ = DockerRunner(image="image:1", folder=tmp_path, network=True)
    assert "--network" not in open_.arguments(["true"], {}, bounds)


def test_a_docker_that_fails_and_one_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program in docker's place: what it is asked, and how its failures are told."""
    fake = tmp_path / "docker"
    log = tmp_path / "asked"
    fake.write_text(
        f'#!/bin/sh\necho "$1" >> {log}\n[ "$1" = kill ] && exit 0\n'
        'case "$*" in *broken*) echo no daemon; exit 125;; *slow*) exec sleep 30;; *big*) exit 137;; esac\ncat\n'
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    sandbox = Sandbox(kind="docker", image="python:3", seconds=1, folder=tmp_path / "work")
    monkeypatch.setattr("art.rollouts.sandbox_docker.KILL_SECONDS", 0.2)
    assert sandbox.run_sync(["fine"], stdin="said").output == "said"
    assert sandbox.run_sync(["big"]).ended_by == "memory"
    assert sandbox.run_sync(["slow"]).ended_by == "time"
    with pytest.raises(ConfigError, match="did not start a container of python:3"):
        sandbox.run_sync(["broken"])
    assert log.read_text().split() == ["run", "run", "run", "kill", "run"]


@pytest.mark.absent(docker_is_missing(), reason="docker with a daemon")
def test_a_real_container() -> None:
    image = os.environ.get("ART_TEST_IMAGE", "python:3.13-slim")
    sandbox = Sandbox(kind="docker", image=image, seconds=20)
    code = "import socket\nprint('in')\nsocket.create_connection(('192.0.2.1', 80), timeout=5)"
    result = sandbox.run_sync(["python3", "-c", code])
    assert result.output.startswith("in\n")
    assert "unreachable" in result.output
    assert sandbox.run_sync(["sleep", "60"]).ended_by == "time"


def test_output_keeps_its_beginning_and_its_end() -> None:
    for parts in ([b"abcdefghij"], [b"abc", b"", b"defg", b"hij"], [bytes([one]) for one in b"abcdefghij"]):
        output = Output(4)
        for part in parts:
            output.add(part)
        assert output.kept() == b"ab\n[...]\nij"
        assert output.dropped == 6
    whole = Output(100)
    whole.add(b"x" * 100)
    assert (whole.kept(), whole.dropped) == (b"x" * 100, 0)


@needs_namespaces
def test_sockets_in_the_file_system_are_no_way_out(tmp_path: Path) -> None:
    """Docker's, a key agent's: no network namespace holds them back."""
    code = (
        "import socket\na, b = socket.socketpair(); a.send(b'x'); print(b.recv(1), flush=True)\n"
        "s = socket.socket(socket.AF_UNIX)\ns.connect({path!r})\nprint('connected')"
    )
    with socket.socket(socket.AF_UNIX) as server:
        path = str(tmp_path / "socket")
        server.bind(path)
        server.listen()
        closed = run(code.format(path=path))
        assert closed.output.startswith("b'x'\n")
        assert "PermissionError" in closed.output
        assert closed.status == 1
        assert run(code.format(path=path), network=True).output == "b'x'\nconnected\n"
