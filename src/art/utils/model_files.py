"""A model's files on this side: the program's state, and the log of a model that no server keeps."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from art.types import wire
from art.types.cumulative import advance, totals_in
from art.utils.files import append_line, read_json, write_json


class ModelFiles:
    """`<base_path>/<project>/models/<name>`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._state = folder / "state.json"

    def read_state(self) -> Any:
        """The state, or None when never written."""
        return read_json(self._state)

    def write_state(self, state: Mapping[str, Any]) -> None:
        """Replace the state, atomically."""
        write_json(self._state, state)

    def merge_state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Merge into the state, nested dicts key by key; returns the whole."""
        merged = _merged(self.read_state() or {}, state)
        self.write_state(merged)
        return merged

    def log(self, request: wire.LogRequest) -> dict[str, Any]:
        """What a server does with a log request: trajectories to a file of their split, a row to history.jsonl; the row."""
        for group in request.groups:
            line = {"split": request.split, "step": request.step, **group.model_dump(mode="json")}
            append_line(self._folder / "trajectories" / f"{request.split}.jsonl", line)
        position = {
            "step": request.step,
            "training_step": request.step,
            "recorded_at": request.recorded_at,
        }
        _, added = advance(self._totals(), request.metrics)
        row = {**request.metrics, **added, **position}
        append_line(self._folder / "history.jsonl", row)
        return row

    def history(self) -> list[dict[str, Any]]:
        """The rows of history.jsonl. A line that was cut short is none."""
        rows = []
        for line in _lines(self._folder / "history.jsonl"):
            try:
                row = json.loads(line)
            except ValueError:
                continue
            rows += [row] if isinstance(row, dict) else []
        return rows

    def _totals(self) -> dict[str, float]:
        """The run's sums, from its newest rows that hold them."""
        totals: dict[str, float] = {}
        for row in self.history():
            totals |= totals_in(row)
        return totals


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except FileNotFoundError:
        return []


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(old)
    for key, value in new.items():
        before = result.get(key)
        both = isinstance(before, Mapping) and isinstance(value, Mapping)
        result[key] = _merged(before, value) if both else value  # type: ignore[arg-type]
    return result
