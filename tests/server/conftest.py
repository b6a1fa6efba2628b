"""One server with the scripted engine for the tests of the inference routes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from chat_kit import SCRIPT, Served
from train_kit import ENVIRONMENT, Trained


@pytest.fixture(scope="session")
def served(start_art_server: Any, tiny_model_dir: Any) -> Iterator[Served]:
    """Models: `tests/alpha`, `tests/beta`, `other/alpha`. The tests share it, so they use rollouts of their own."""
    server = start_art_server(script=SCRIPT)
    served = Served(server, str(tiny_model_dir))
    for project, name in (("tests", "alpha"), ("tests", "beta"), ("other", "alpha")):
        served.register(project, name)
    yield served
    server.stop()


@pytest.fixture(scope="session")
def taught(start_art_server: Any, tiny_model_dir: Any) -> Iterator[Trained]:
    """A server that samples from and trains the tiny model `p/m`; its tests use rollouts of their own."""
    server = start_art_server(engine="torch", environment=ENVIRONMENT)
    taught = Trained(server, tiny_model_dir)
    taught.register()
    yield taught
    server.stop()
