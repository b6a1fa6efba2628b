"""TensorBoard, read back by its own EventAccumulator."""

from __future__ import annotations

import sys
from pathlib import Path

from report_kit import ROWS, tell
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def read(folder: Path) -> dict[str, list[tuple[int, float, float]]]:
    events = EventAccumulator(str(folder))
    events.Reload()
    return {
        tag: [(point.step, point.value, point.wall_time) for point in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_figures_come_back_with_step_and_time(tmp_path: Path) -> None:
    tell({"name": "tensorboard"}, tmp_path)
    found = read(tmp_path / "tensorboard")
    assert found["train/reward"] == [(1, 0.25, ROWS[0].time), (2, 0.75, ROWS[1].time)]
    assert found["val/reward"] == [(2, 0.5, ROWS[2].time)]
    assert set(found) == {"train/reward", "val/reward", "loss/train", "costs/all"}
    assert "torch" not in sys.modules
    assert "tensorflow" not in sys.modules


def test_a_resumed_run_goes_on_in_the_same_folder(tmp_path: Path) -> None:
    folder = tmp_path / "events"
    tell({"name": "tensorboard", "dir": str(folder)}, tmp_path, rows=ROWS[:1])
    tell({"name": "tensorboard", "dir": str(folder)}, tmp_path, rows=ROWS[1:])
    assert [step for step, *_ in read(folder)["loss/train"]] == [1, 2]
