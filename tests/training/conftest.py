"""What the trainer's tests start from."""

from __future__ import annotations

from pathlib import Path

import pytest

from art.testing.tiny import tiny_model
from art.trainer.jobs import Trainer


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny model that has learned nothing."""
    return tiny_model(tmp_path_factory.mktemp("tiny") / "model", warm=False)


@pytest.fixture(scope="module")
def trainer() -> Trainer:
    return Trainer(dtype="fp32")
