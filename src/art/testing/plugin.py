"""pytest fixtures for programs that use ART: a tiny model and a real server. Loaded by pytest itself.

    def test_my_agent(art_server, tiny_model_dir):
        backend = art.RemoteBackend(art_server.url, art_server.admin_key)

Nothing heavy is imported until a fixture is used: pytest loads this module in every run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from art.testing.server import ArtServer

StartServer = Callable[..., "ArtServer"]


@pytest.fixture(scope="session")
def tiny_model_dir(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a warmed tiny model (art.testing.tiny), built once and kept in pytest's cache."""
    from art.testing import tiny

    digest = hashlib.sha256(Path(tiny.__file__).read_bytes()).hexdigest()[:12]
    cache = getattr(request.config, "cache", None)  # absent under `-p no:cacheprovider`
    root = Path(cache.mkdir("art-tiny-model")) if cache else tmp_path_factory.mktemp("art")
    return tiny.tiny_model(root / digest)


@pytest.fixture(scope="session")
def start_art_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartServer]:
    """Start real `art serve` processes: `start_art_server(engine="torch", script=..., path=...)`.

    Takes ArtServer's arguments; without a path each server gets a folder of its own. All of them are
    stopped when the session ends.
    """
    from art.testing.server import ArtServer

    with ExitStack() as running:

        def start(path: str | Path | None = None, **options: Any) -> ArtServer:
            server = ArtServer(path or tmp_path_factory.mktemp("art-server"), **options)
            running.callback(server.stop)
            return server.start()

        yield start


@pytest.fixture
def art_server(start_art_server: StartServer) -> Iterator[ArtServer]:
    """A server with the scripted engine, of this test's own."""
    server = start_art_server()
    yield server
    server.stop()
