"""MLflow: a tracking server of its own, and what its client reads back from it."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient
from report_kit import DEADLINE, ROWS, free_port, published, run_info, tell

START_SECONDS = 300.0
"""The server imports some hundred packages, in several processes."""
pytestmark = pytest.mark.timeout(START_SECONDS + 3 * DEADLINE)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("mlflow")
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    command += [
        "--backend-store-uri",
        f"sqlite:///{folder}/runs.db",
        "--artifacts-destination",
        str(folder / "kept"),
    ]
    command += ["--workers", "1"]
    with (folder / "server.out").open("wb") as output:
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output, start_new_session=True)
    try:
        _wait(url, process, folder / "server.out")
        yield url
    finally:
        import os
        import signal

        os.killpg(process.pid, signal.SIGTERM)
        process.wait(DEADLINE)


def _wait(url: str, process: subprocess.Popen[bytes], output: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, output.read_text()[-3000:]
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5) as response:
                if response.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    pytest.fail(f"the MLflow server gave no answer: {output.read_text()[-3000:]}")


def test_figures_come_back_with_step_and_time(server: str, tmp_path: Path) -> None:
    tell({"name": "mlflow", "tracking_uri": server}, tmp_path, rows=ROWS[:2])
    tell({"name": "mlflow", "tracking_uri": server}, tmp_path, rows=ROWS[2:])  # resumed
    client = MlflowClient(tracking_uri=server)
    experiment = client.get_experiment_by_name("weather")
    (run,) = client.search_runs([experiment.experiment_id])
    points = client.get_metric_history(run.info.run_id, "train/reward")
    assert [(one.step, one.value, one.timestamp) for one in points] == [
        (1, 0.25, int(ROWS[0].time * 1000)),
        (2, 0.75, int(ROWS[1].time * 1000)),
    ]
    assert client.get_metric_history(run.info.run_id, "val/reward")[0].value == 0.5
    assert (run.info.run_name, run.info.status) == ("agent-001", "FINISHED")
    assert run.data.params == {"base_model": "tiny", "lora.r": "8"}


def test_an_adapter_is_uploaded_only_when_asked_for(server: str, tmp_path: Path) -> None:
    client = MlflowClient(tracking_uri=server)
    checkpoint = published(tmp_path)
    for name, options in (("plain", {}), ("kept", {"checkpoints": True})):
        run = run_info(tmp_path, name=name, run_id=name, project="adapters")
        tell({"name": "mlflow", "tracking_uri": server, **options}, tmp_path, run=run, checkpoint=checkpoint)
    experiment = client.get_experiment_by_name("adapters")
    runs = {one.info.run_name: one.info.run_id for one in client.search_runs([experiment.experiment_id])}
    assert client.list_artifacts(runs["plain"]) == []
    files = client.list_artifacts(runs["kept"], "checkpoints/0002")
    assert sorted(Path(one.path).name for one in files) == [
        "adapter_config.json",
        "adapter_model.safetensors",
        "manifest.json",
    ]
