"""No tracker may reach for a network, or leave anything outside of its test's folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# The libraries live in an environment of their own, which `make test-trackers` makes. Two need nothing that is not here.
collect_ignore = (
    []
    if "ART_TRACKERS" in os.environ
    else [f"test_{name}.py" for name in ("wandb", "weave", "langfuse", "mlflow", "trackio", "tensorboard")]
)


@pytest.fixture(autouse=True)
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("WANDB_", "MLFLOW_", "LANGFUSE_", "OTEL_", "WF_", "WEAVE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
