"""The server that LocalBackend shares with every other program on its folder.

Found by `server/server.json`, started under a lock when it is not there, kept alive by a locked file in
`server/clients/`. Locks are `flock`s: the kernel drops them when a process dies, however it dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import httpx2

from art.backends.http import Endpoint
from art.errors import ConfigError, ServerStartFailed
from art.utils.console import say

START_SECONDS = 120.0
"""Deadline of a start: importing and opening the store takes about two seconds, on a busy machine many more."""
HEALTH_SECONDS = 2.0
MAX_STARTS = 5
"""Starts within START_WINDOW_SECONDS after which a server that keeps dying is given up."""
START_WINDOW_SECONDS = 600.0
_POLL_SECONDS = 0.05
_LOG_LINES = 15


class ChildServer:
    """Finds or starts the server of one folder. Thread-safe; all methods block."""

    def __init__(
        self,
        root: Path,
        *,
        serve_args: Sequence[str] = (),
        start_seconds: float = START_SECONDS,
        deterministic: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`deterministic`: the server must be; one that runs already and is not is refused (ConfigError).

        `environment`: variables for a server that is started, beside ours.
        """
        self.root = root
        self._folder = root / "server"
        self._serve_args = [*serve_args, *(["--deterministic"] if deterministic else [])]
        self._deterministic = deterministic
        self._start_seconds = start_seconds
        self._lock = threading.Lock()
        self._claim: tuple[Path, IO[str]] | None = None
        self._port = 0
        self._starts: list[float] = []
        self._environment = dict(environment or {})
        self.started = False
        """Whether the server that was found is one that this object started."""
        self._endpoint: Endpoint | None = None

    def endpoint(self) -> Endpoint:
        """Where the server answers; found or started the first time."""
        with self._lock:
            if self._endpoint is None:
                self._endpoint = self._find_or_start()
            return self._endpoint

    def recover(self) -> None:
        """Make sure that a server runs, on the same port where that is free. ServerStartFailed when it keeps dying."""
        with self._lock:
            self._endpoint = self._find_or_start()

    def release(self) -> None:
        """Let go: the server stops by itself once nobody holds it. Idempotent."""
        with self._lock:
            self._endpoint = None
            if self._claim is not None:
                path, file = self._claim
                path.unlink(missing_ok=True)
                file.close()
                self._claim = None

    def _find_or_start(self) -> Endpoint:
        clients = self._folder / "clients"
        clients.mkdir(parents=True, exist_ok=True)
        self._hold(clients)
        give_up = time.monotonic() + self._start_seconds
        with _locked(self._folder / "start.lock", give_up, self.root):
            found = self._running()
            return found if found is not None else self._start(give_up)

    def _hold(self, clients: Path) -> None:
        if self._claim is not None:
            return
        # Made under another name and locked before it appears, so that nobody sees it unlocked.
        name = f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
        hidden = clients / f".{name}.tmp"
        claim = hidden.open("w")
        fcntl.flock(claim, fcntl.LOCK_EX)
        claim.write(f"{os.getpid()}\n")
        claim.flush()
        self._claim = (hidden.rename(clients / name), claim)

    def _running(self) -> Endpoint | None:
        """The endpoint of a live server on this folder, or None."""
        info = self._server_info()
        if info is None or not _alive(info["pid"]):
            return None
        try:
            key = (self._folder / "admin.key").read_text().strip()
            answer = httpx2.get(
                f"{info['url']}/api/v1/health",
                headers={"Authorization": f"Bearer {key}"},
                timeout=HEALTH_SECONDS,
                trust_env=False,
            )
        except (OSError, httpx2.TransportError):
            return None
        if not answer.is_success or answer.json().get("pid") != info["pid"]:
            return None
        if self._deterministic and not answer.json().get("deterministic"):
            raise ConfigError(
                f"the server on {self.root} is not deterministic",
                cause=f"another program started it (pid {info['pid']}) without that option",
                hint="end the other program, or use another folder: LocalBackend(path=..., deterministic=True)",
            )
        self._port = httpx2.URL(info["url"]).port or 0
        return Endpoint(info["url"].rstrip("/"), key)

    def _server_info(self) -> dict[str, Any] | None:
        try:
            info = json.loads((self._folder / "server.json").read_text())
        except (OSError, ValueError):
            return None
        return info if isinstance(info, dict) and "pid" in info and "url" in info else None

    def _start(self, give_up: float) -> Endpoint:
        while True:
            self._count_start()
            process, log = self._spawn()
            while process.poll() is None:
                found = self._running()
                if found is not None:
                    self.started = True
                    threading.Thread(target=process.wait, name="art-serve-reaper", daemon=True).start()
                    if len(self._starts) == 1:
                        say(f"dashboard: {found.url}/  (art ui {self.root} opens it)", style="dim")
                    return found
                if time.monotonic() >= give_up:
                    process.terminate()
                    raise self._failed(f"it did not answer within {self._start_seconds:.0f} s", log)
                time.sleep(_POLL_SECONDS)
            # It ended: somebody else's server may hold the folder (starting, or about to stop).
            found = self._running()
            if found is not None:
                return found
            if not self._held_by_other() or time.monotonic() >= give_up:
                raise self._failed(f"it ended with exit status {process.returncode}", log)
            self._starts.pop()
            time.sleep(_POLL_SECONDS * 4)

    def _spawn(self) -> tuple[subprocess.Popen[bytes], Path]:
        logs = self._folder / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        log = logs / "serve.log"
        command = [sys.executable, "-m", "art.cli.main", "serve", "--path", str(self.root)]
        port = self._port if _is_free(self._port) else 0
        command += ["--port", str(port), "--stop-with-clients", *self._serve_args]
        with log.open("wb") as output:
            # A session of its own: Ctrl-C in the program must not stop a server that others share.
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self._environment},
                start_new_session=True,
            )
        return process, log

    def _count_start(self) -> None:
        now = time.monotonic()
        self._starts = [moment for moment in self._starts if now - moment < START_WINDOW_SECONDS]
        if len(self._starts) >= MAX_STARTS:
            raise self._failed(
                f"it was started {MAX_STARTS} times within {START_WINDOW_SECONDS / 60:.0f} minutes and died each time",
                self._folder / "logs" / "serve.log",
            )
        self._starts.append(now)

    def _held_by_other(self) -> bool:
        """True when a process holds the server lock of this folder."""
        try:
            with (self._folder / "server.lock").open("r") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def _failed(self, cause: str, log: Path) -> ServerStartFailed:
        tail = ""
        with contextlib.suppress(OSError):
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_LINES:])
        hint = f"its output is in {log}; `art serve --path {self.root}` shows it directly"
        if "ModuleNotFoundError" in tail:
            hint = "a server needs more packages: pip install 'agent-reinforcement-trainer[server]'"
        return ServerStartFailed(
            f"the server on {self.root} did not come up", cause=f"{cause}\n{tail}".strip(), hint=hint
        )


def running_server(root: Path) -> Endpoint | None:
    """Of the server that runs on a folder; None where none does. Starts nothing, and writes nothing."""
    return ChildServer(root)._running()


@contextlib.contextmanager
def _locked(path: Path, give_up: float, root: Path) -> Iterator[None]:
    """Hold an exclusive lock on `path`; ServerStartFailed when `give_up` passes first."""
    with path.open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= give_up:
                    raise ServerStartFailed(
                        f"another program has been starting the server on {root} for too long",
                        cause=f"{path} is locked",
                        hint="end that program, or use another folder: LocalBackend(path=...)",
                    ) from None
                time.sleep(_POLL_SECONDS)
        yield


def _is_free(port: int) -> bool:
    """True when a server could listen there; port 0 always is."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _alive(pid: object) -> bool:
    if not isinstance(pid, int):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
