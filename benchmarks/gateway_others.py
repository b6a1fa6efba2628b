"""Other open gateways beside ours in bench_gateway: each installed from the package index into an environment of its own.

They pass requests through to the same fake upstream. None of them renders prompts, samples, or records tokens, so
the comparison is with our pass-through (`server.upstreams`), which captures request and answer.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

INSTALL_SECONDS = 900
START_SECONDS = 60
KEY = "sk-bench"


@dataclass(frozen=True)
class Other:
    """A gateway: what to install, and how to start it before an upstream."""

    name: str
    requirement: str
    command: Callable[[Path, int, str], list[str]]
    """(folder to write its settings into, port, base URL of the upstream) -> what follows the environment's bin/."""


def _litellm(folder: Path, port: int, upstream: str) -> list[str]:
    file = folder / "litellm.yaml"
    params = {"model": "openai/fake", "api_base": upstream, "api_key": "none"}
    settings = {
        "model_list": [{"model_name": "fake", "litellm_params": params}],
        "general_settings": {"master_key": KEY},
        "litellm_settings": {"telemetry": False},
    }
    file.write_text(json.dumps(settings))  # JSON is YAML
    return ["litellm", "--config", str(file), "--host", "127.0.0.1", "--port", str(port)]


def _lm_proxy(folder: Path, port: int, upstream: str) -> list[str]:
    file = folder / "lm-proxy.toml"
    file.write_text(
        f'host = "127.0.0.1"\nport = {port}\n'
        f'[connections.fake]\napi_type = "open_ai"\napi_base = "{upstream}/"\napi_key = "none"\n'
        '[routing]\n"*" = "fake.*"\n'
        f'[groups.default]\napi_keys = ["{KEY}"]\n'
    )
    return ["llm-proxy-server", "--config", str(file)]


OTHERS = (
    Other("litellm", "litellm[proxy]", _litellm),
    Other("lm-proxy", "llm-proxy-server", _lm_proxy),
)


class Unavailable(Exception):
    """It cannot be installed or started here; the reason is reported in its place."""


def environment(other: Other, root: Path) -> Path:
    """The bin folder of its environment, made at the first use. Unavailable with pip's last line."""
    place = root / other.name
    if not (place / ".installed").exists():
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", other.requirement]
        try:
            subprocess.run(pip, check=True, capture_output=True, text=True, timeout=INSTALL_SECONDS)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            words = str(error.stderr or error).strip().splitlines()
            raise Unavailable(f"pip install {other.requirement}: {words[-1] if words else error}") from error
        (place / ".installed").touch()
    return place / "bin"


class Running:
    """A started gateway; `url` is its `.../v1`."""

    def __init__(self, other: Other, root: Path, scratch: Path, upstream: str) -> None:
        bin_folder = environment(other, root)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        program, *arguments = other.command(scratch, port, upstream)
        self.output = scratch / f"{other.name}.out"
        self.url = f"http://127.0.0.1:{port}/v1"
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [str(bin_folder / program), *arguments],
                cwd=scratch,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "NO_PROXY": "127.0.0.1"},
            )
        self._wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        body = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}
        while time.monotonic() < deadline and self.process.poll() is None:
            request = urllib.request.Request(
                f"{self.url}/chat/completions",
                data=json.dumps(body).encode(),
                headers={"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"},
            )
            try:
                with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.5)
        self.close()
        words = self.output.read_text(errors="replace").strip().splitlines()
        raise Unavailable(f"it gave no answer: {words[-1][:200] if words else 'without a word'}")

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
