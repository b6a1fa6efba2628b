"""No tracker may reach for a network, or leave anything outside of its test's folder."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

# The libraries live in environments of their own, which `make test-trackers` makes and names in ART_TRACKERS. Two
# trackers need nothing that is not here.
HERE = os.environ.get("ART_TRACKERS", "").split(",")
OTHERS = ("wandb", "weave", "langfuse", "mlflow", "trackio", "tensorboard")
collect_ignore = [f"test_{name}.py" for name in OTHERS if name not in HERE]
if "trackio" in HERE:
    os.environ["TRACKIO_DIR"] = tempfile.mkdtemp(prefix="trackio-")  # read once, when it is imported
THEIRS = ("WANDB_", "MLFLOW_", "LANGFUSE_", "OTEL_", "WF_", "WEAVE_", "TRACKIO_SPACE", "TRACKIO_SERVER")


@pytest.fixture(autouse=True)
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(THEIRS):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))  # no netrc, no cache of an earlier test
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
