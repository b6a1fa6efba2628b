"""Trackio, read back from its own store on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from report_kit import ROWS, tell


def test_figures_come_back_with_their_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trackio.sqlite_storage import SQLiteStorage

    tell({"name": "trackio"}, tmp_path, rows=ROWS[:2])
    tell({"name": "trackio"}, tmp_path, rows=ROWS[2:])  # resumed
    assert SQLiteStorage.get_runs("weather") == ["agent-001"]
    logged = SQLiteStorage.get_logs("weather", "agent-001")
    assert [(one["step"], one.get("train/reward"), one.get("val/reward")) for one in logged] == [
        (1, 0.25, None),
        (2, 0.75, None),
        (2, None, 0.5),
    ]
