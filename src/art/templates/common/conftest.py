"""A model that answers from a script, on a real server of ART: the agent is tested without training anything."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import art
import pytest

Model = art.TrainableModel[Any, Any]


@pytest.fixture(scope="session")
def scripted(start_art_server: Any, tiny_model_dir: Path) -> Callable[..., Model]:
    """`scripted((pattern, reply), ...)`: a model that gives the first reply whose pattern is in what it was asked."""

    def start(*rules: tuple[str, str], default: str = "I do not know.") -> Model:
        script = {
            "rules": [{"match": match, "replies": [reply]} for match, reply in rules],
            "default": default,
        }
        server = start_art_server(script=script)
        model: Model = art.TrainableModel(name="agent", project="tests", base_model=str(tiny_model_dir))
        model.register(art.RemoteBackend(server.url, server.admin_key))
        return model

    return start
