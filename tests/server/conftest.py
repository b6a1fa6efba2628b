"""Servers that several test modules share: with the scripted engine, and one that trains the tiny model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from chat_kit import SCRIPT as CHAT_SCRIPT
from chat_kit import THINKER, Served
from train_kit import ENVIRONMENT, Trained

from art.testing.tiny import tiny_model

if TYPE_CHECKING:
    from hostile_kit import Watched


@pytest.fixture(scope="session")
def served(start_art_server: Any, tiny_model_dir: Any) -> Iterator[Served]:
    """Models: `tests/alpha`, `tests/beta`, `other/alpha`. The tests share it, so they use rollouts of their own."""
    server = start_art_server(script=CHAT_SCRIPT)
    served = Served(server, str(tiny_model_dir))
    for project, name in (("tests", "alpha"), ("tests", "beta"), ("other", "alpha")):
        served.register(project, name)
    yield served
    server.stop()


@pytest.fixture(scope="session")
def watched(start_art_server: Any, tmp_path_factory: Any) -> Iterator[Watched]:
    """A server whose engine writes down what it was given and sampled. Models: `tests/alpha` keeps its history,
    `tests/stock` serves what its template makes of it; both think."""
    from hostile_kit import CONTEXT, SCRIPT, Watched  # with the trainer it loads torch

    folder = tmp_path_factory.mktemp("hostile")
    log = folder / "tokens.jsonl"
    base = tiny_model(folder / "model", warm=False, context_length=CONTEXT)
    server = start_art_server(script=SCRIPT, environment={"ART_ENGINE__TOKEN_LOG": str(log)})
    served = Watched(server, str(base), log)
    served.register("tests", "alpha", chat_template=THINKER, reasoning_parser="think")
    served.register("tests", "stock", chat_template=THINKER, reasoning_parser="think", history="template")
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
