"""A real `art serve` process for a test: started on a free port, stopped by process id.

Standard library only, so that a test suite pays nothing for having it at hand.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from art.errors import ServerStartFailed

START_SECONDS = 60.0
"""A cold start imports the web framework and opens the store; on two busy cores that takes seconds."""
STOP_SECONDS = 30.0
"""How long a server may take to end its running calls before it is killed."""
POLL_SECONDS = 0.05


class ArtServer:
    """One `art serve` on a folder. A context manager; `kill()` is SIGKILL, `start()` again resumes the folder.

    `script` is the scripted engine's rules (see `art.engine.scripted`); `arguments` are further flags of
    `art serve`. The second start uses the first one's port, as a restarted service would.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        engine: str = "scripted",
        script: Mapping[str, Any] | None = None,
        port: int = 0,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.path = Path(path).absolute()
        self.engine = engine
        self.port = port
        self.arguments = list(arguments)
        self.environment = dict(environment or {})
        self.process: subprocess.Popen[bytes] | None = None
        if script is not None:
            self.path.mkdir(parents=True, exist_ok=True)
            file = self.path / "script.json"
            file.write_text(json.dumps(script))
            self.environment["ART_ENGINE__SCRIPT"] = str(file)

    @property
    def url(self) -> str:
        """`http://127.0.0.1:<port>`."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def admin_key(self) -> str:
        """The key that the server made at its first start."""
        return (self.path / "server" / "admin.key").read_text().strip()

    @property
    def output(self) -> Path:
        """What the process wrote to stdout and stderr."""
        return self.path / "serve.out"

    def start(self) -> ArtServer:
        """Start the process and wait until it answers. ServerStartFailed with its last words otherwise."""
        self.path.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "art.cli.main", "serve", "--path", str(self.path)]
        command += ["--port", str(self.port), "--engine", self.engine, *self.arguments]
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.environment},
                start_new_session=True,  # Ctrl-C in the test runner is not the server's
            )
        self._wait_until_ready(self.process)
        return self

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise ServerStartFailed(
                    f"art serve ended with status {process.returncode} while it started",
                    cause=self._last_words(),
                )
            port = self._announced_port(process.pid)
            if port and _answers(f"http://127.0.0.1:{port}/api/v1/health", self.admin_key):
                self.port = port
                return
            time.sleep(POLL_SECONDS)
        self.stop()
        raise ServerStartFailed(
            f"art serve gave no answer within {START_SECONDS:.0f} s", cause=self._last_words()
        )

    def _announced_port(self, pid: int) -> int | None:
        try:
            state = json.loads((self.path / "server" / "server.json").read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return None
        # A killed server leaves its file behind; only this process's own word counts.
        return int(str(state["url"]).rsplit(":", 1)[1].strip("/")) if state.get("pid") == pid else None

    def _last_words(self) -> str:
        return self.output.read_text(errors="replace")[-3000:] if self.output.exists() else ""

    def stop(self) -> int | None:
        """SIGTERM, then SIGKILL past the deadline; the exit status. Does nothing when it is not running."""
        if self.process is None:
            return None
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._kill_group(self.process.pid)
        return self.process.wait(STOP_SECONDS)

    def kill(self) -> None:
        """SIGKILL the gateway alone: its workers must notice by themselves."""
        assert self.process is not None, "the server was never started"
        self.process.kill()
        self.process.wait(STOP_SECONDS)

    def _kill_group(self, pid: int) -> None:
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    def __enter__(self) -> ArtServer:
        return self if self.process is not None and self.process.poll() is None else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _answers(url: str, key: str) -> bool:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # loopback is never proxied
    try:
        with opener.open(request, timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False
