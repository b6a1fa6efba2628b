"""Whether a run takes the server that it finds on its folder: by what that server runs with, whoever started it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from art.backends.local import LocalBackend
from art.config.load import Loaded, load_config
from art.errors import ConfigError
from art.run.server import backend_of, settle


def settings(folder: Path, text: str) -> Loaded:
    """Of a file with these sections, for a server in the folder beside it."""
    file = folder / "run.toml"
    file.write_text(f'[server]\npath = "{folder / "store"}"\n{text}')
    return load_config(file=file)


async def taken(loaded: Loaded) -> None:
    """ConfigError where the server that runs is not."""
    backend = backend_of(loaded, None)
    assert isinstance(backend, LocalBackend)
    async with backend:
        await settle(backend, loaded)


def test_a_server_that_was_started_again_is_known_by_its_settings(tmp_path: Path) -> None:
    async def main() -> None:
        held = LocalBackend(path=tmp_path / "store", serve_environment={"ART_ENGINE__THREADS": "1"})
        async with held:
            await held.connection.endpoint()
            same = settings(tmp_path, "[engine]\nthreads = 1\n")
            await taken(same)  # no run started it
            state = tmp_path / "store" / "server" / "server.json"
            pid = json.loads(state.read_text())["pid"]
            os.kill(pid, signal.SIGKILL)
            await held.connection.request("GET", "/api/v1/health")  # which starts it again
            assert json.loads(state.read_text())["pid"] != pid
            await taken(same)
            await taken(settings(tmp_path, ""))
            with pytest.raises(ConfigError) as refused:
                await taken(settings(tmp_path, "call_seconds = 5\n[engine]\nthreads = 2\n"))
        assert (
            refused.value.cause == "engine.threads is 1, and not 2; server.call_seconds is 600.0, and not 5.0"
        )
        assert "end the programs that use it" in refused.value.hint

    asyncio.run(main())
