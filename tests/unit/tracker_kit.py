"""A tracker that does as it is told: it notes what it gets, and is slow, wrong or stuck where a test says so."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from art.integrations.seen import RolloutBatch
from art.integrations.tracker import About, PublishedStep, Row, RunInfo

DEADLINE = 30.0
"""Seconds that a test waits for what has to come; nothing here takes that long unless it is broken."""


class NotingTracker:
    """`does[method]` is called in the place of the method's own work, with its argument."""

    def __init__(self, name: str = "noting", **about: Any) -> None:
        self._about = About(name=name, place="a test", leaves=False, **about)
        self.does: dict[str, Callable[[Any], None]] = {}
        self.runs: list[RunInfo] = []
        self.rows: list[Row] = []
        self.batches: list[RolloutBatch] = []
        self.checkpoints: list[PublishedStep] = []
        self.closed = threading.Event()
        self.threads: set[str] = set()

    @property
    def about(self) -> About:
        return self._about

    def _do(self, method: str, given: Any) -> None:
        self.threads.add(threading.current_thread().name)
        self.does.get(method, lambda _: None)(given)

    def start(self, run: RunInfo) -> None:
        self._do("start", run)
        self.runs.append(run)

    def log(self, row: Row) -> None:
        self._do("log", row)
        self.rows.append(row)

    def rollouts(self, batch: RolloutBatch) -> None:
        self._do("rollouts", batch)
        self.batches.append(batch)

    def artifact(self, checkpoint: PublishedStep) -> None:
        self._do("artifact", checkpoint)
        self.checkpoints.append(checkpoint)

    def close(self, seconds: float) -> None:
        self._do("close", seconds)
        self.closed.set()


class MadeByName(NotingTracker):
    """What the tests' import path names."""

    def __init__(self, *, colour: str = "grey") -> None:
        super().__init__(f"{__name__}:MadeByName")
        self.colour = colour


class Gate:
    """`wait` blocks until `open`; `reached` is set when somebody does."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._open = threading.Event()

    def wait(self, _: Any = None) -> None:
        self.reached.set()
        assert self._open.wait(DEADLINE)

    def open(self) -> None:
        self._open.set()


def run_info(folder: Path) -> RunInfo:
    return RunInfo(project="p", name="m", run_id="m", folder=folder, config={"base_model": "base"})


def row(step: int, **metrics: float) -> Row:
    return Row(step, "train", {f"train/{name}": value for name, value in metrics.items()}, 1000.0 + step)
