"""MLflow: one run for a model's history, found again by its tag."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from art.config.outside import host_of, is_loopback
from art.config.trackers import MlflowOptions
from art.integrations.tracker import About, PublishedStep, Row, RunInfo

if TYPE_CHECKING:
    from art.integrations.seen import RolloutBatch

TAG = "art.run_id"
MOST_METRICS = 1000
"""Of one request: MLflow's own bound."""
LONGEST_PARAM = 6000
"""Characters: MLflow's own bound on a parameter's value."""


class MlflowTracker:
    """Sends figures and, when asked, adapters. It uses a client of its own and leaves MLflow's global run alone."""

    def __init__(self, options: MlflowOptions) -> None:
        self._options = options
        self._client: Any = None
        self._run_id = ""

    @property
    def about(self) -> About:
        """The tracking server, or where MLflow keeps runs without one."""
        uri = self._options.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or ""
        server = urlsplit(uri).scheme in ("http", "https", "databricks") or uri == "databricks"
        place = host_of(uri) if server else (uri or "MLflow's default store on this machine")
        away = server and not is_loopback(place)
        return About(name="mlflow", place=place, leaves=away, checkpoints=self._options.checkpoints)

    def start(self, run: RunInfo) -> None:
        """Find the run by its tag in the experiment, or begin it."""
        os.environ.setdefault(
            "MLFLOW_DISABLE_TELEMETRY", "true"
        )  # MLflow tells its makers how it is used otherwise
        from mlflow import MlflowClient

        client = self._client = MlflowClient(tracking_uri=self._options.tracking_uri)
        name = self._options.experiment or run.project
        experiment = client.get_experiment_by_name(name)
        experiment_id = client.create_experiment(name) if experiment is None else experiment.experiment_id
        known = client.search_runs([experiment_id], f"tags.`{TAG}` = '{run.run_id}'", max_results=1)
        if known:
            self._run_id = known[0].info.run_id
            client.update_run(self._run_id, status="RUNNING")
            return
        begun = client.create_run(experiment_id, tags={TAG: run.run_id}, run_name=run.name)
        self._run_id = begun.info.run_id
        for key, value in _flat(run.config):
            client.log_param(self._run_id, key, value[:LONGEST_PARAM])

    def log(self, row: Row) -> None:
        """All figures of a row, at its step and time."""
        from mlflow.entities import Metric

        at = int(row.time * 1000)
        metrics = [Metric(name, value, at, row.step) for name, value in row.metrics.items()]
        for start in range(0, len(metrics), MOST_METRICS):
            self._client.log_batch(self._run_id, metrics=metrics[start : start + MOST_METRICS])

    def rollouts(self, batch: RolloutBatch) -> None:
        """Never called."""
        raise AssertionError("MLflow is given no rollouts")

    def artifact(self, checkpoint: PublishedStep) -> None:
        """The adapter's files, below `checkpoints/<step>`."""
        for file in ("adapter_config.json", "adapter_model.safetensors", "manifest.json"):
            if (checkpoint.path / file).exists():
                self._client.log_artifact(
                    self._run_id, str(checkpoint.path / file), f"checkpoints/{checkpoint.step:04d}"
                )

    def close(self, seconds: float) -> None:
        """Mark the run as finished; a later row opens it again."""
        self._client.set_terminated(self._run_id)


def _flat(config: Any, path: str = "") -> list[tuple[str, str]]:
    if not isinstance(config, dict):
        return [(path, str(config))]
    return [item for key, value in config.items() for item in _flat(value, f"{path}.{key}" if path else key)]
