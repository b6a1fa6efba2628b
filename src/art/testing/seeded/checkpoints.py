"""Checkpoints of a seeded run: rows of all its steps, and files of those that a server would have kept."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from art.store import model_rows
from art.store.records import ModelRow
from art.store.sql import Conn
from art.types.jobs import CheckpointInfo

KEPT = 8
"""The newest steps."""
PROBE = [1, 2, 3, 4]


class Checkpoints:
    """Of one run."""

    def __init__(self, conn: Conn, model: ModelRow, *, steps: int) -> None:
        self._conn = conn
        self._model = model
        self._steps = steps

    def publish(self, step: int, *, at: float, metrics: dict[str, float], job_id: str | None) -> None:
        """The row of a step, and its files where it is kept."""
        path = Path(self._model.model_dir) / "checkpoints" / f"{step:04d}"
        body = save({"lora": np.full(2, step, dtype=np.float32)})
        probe = [] if step == 0 else [-0.25 * (step + place) for place in range(1, len(PROBE))]
        info = CheckpointInfo(
            project=self._model.project,
            name=self._model.name,
            step=step,
            path=str(path),
            is_base=step == 0,
            probe_token_ids=PROBE if step else [],
            probe_logprobs=probe,
            sha256=hashlib.sha256(body).hexdigest(),
            created_at=at,
        )
        model_rows.put_checkpoint(self._conn, info, metrics, job_id)
        if step and step <= self._steps - KEPT:
            return
        path.mkdir(parents=True)
        (path / "adapter_model.safetensors").write_bytes(body)
        manifest = {"step": step, "job_id": job_id, "probe_logprobs": probe}
        (path / "manifest.json").write_text(json.dumps(manifest, indent=1))

    def tidy(self) -> None:
        """Mark the steps that have no files as deleted."""
        folder = Path(self._model.model_dir) / "checkpoints"
        there = {int(path.name) for path in folder.iterdir()}
        for row in model_rows.list_checkpoints(self._conn, self._model.project, self._model.name):
            if row.info.step not in there:
                self._conn.execute(
                    "UPDATE checkpoints SET deleted_at = ? WHERE project = ? AND name = ? AND step = ?",
                    (row.info.created_at + 600.0, self._model.project, self._model.name, row.info.step),
                )
