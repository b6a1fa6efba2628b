"""`make study` is killed and started again: what was done stays, the rest is made."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 120
FIRST, SECOND = "tictactoe-defaults-seed0", "tictactoe-defaults-seed1"


def command(folder: Path, tiny: Path, *more: str) -> list[str]:
    """A trial of two runs, of one step each."""
    options = ["--only", FIRST, SECOND, "--steps", "1", "--held-out", "4", "--base-model", str(tiny)]
    options += ["--results", str(folder / "study"), "--scratch", str(folder / "scratch")]
    return [sys.executable, str(ROOT / "benchmarks" / "study.py"), *options, *more]


def ended(folder: Path, tiny: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(folder, tiny, *more), capture_output=True, text=True, timeout=SECONDS, check=False
    )


def wait_for(file: Path, study: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + SECONDS
    while not file.exists():
        assert study.poll() is None, study.communicate()
        assert time.monotonic() < deadline, f"no {file.name}"
        time.sleep(0.02)


@pytest.mark.extended
def test_a_killed_study_goes_on_with_the_run_it_was_at(tmp_path: Path, tiny_model_dir: Path) -> None:
    study = subprocess.Popen(
        command(tmp_path, tiny_model_dir),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    results = tmp_path / "study"
    try:
        wait_for(results / f"{FIRST}.json", study)
        wait_for(tmp_path / "scratch" / SECOND / "server" / "server.json", study)
    finally:
        os.killpg(study.pid, signal.SIGKILL)
        study.communicate()
    kept = (results / f"{FIRST}.json").read_bytes()
    assert not (results / f"{SECOND}.json").exists()

    done = ended(tmp_path, tiny_model_dir)
    assert done.returncode == 1, "a trial lacks most runs, and says so"
    assert f"{SECOND}: 2 of 2" in done.stdout, done.stderr
    assert f"{FIRST}: 1 of 2" not in done.stdout
    assert (results / f"{FIRST}.json").read_bytes() == kept
    for run in (FIRST, SECOND):
        check(json.loads((results / f"{run}.json").read_text()))
    check_summary(tmp_path)
    listed = ended(tmp_path, tiny_model_dir, "--list").stdout
    assert listed.splitlines() == [f"{FIRST}  done", f"{SECOND}  done"]
    other = ended(tmp_path, tiny_model_dir, "--list", "--steps", "2").stdout
    assert other.splitlines() == [f"{FIRST}  -", f"{SECOND}  -"], "other settings are another run"


def check(result: dict[str, Any]) -> None:
    """What is kept of a run."""
    (step,) = result["steps"]
    assert {"reward", "spread", "group_spread", "groups_with_signal", "seconds", "metrics"} <= step.keys()
    for moment in ("before", "after"):
        assert result["evaluations"][moment]["runs"] == 4
        assert len(result["evaluations"][moment]["ci95"]) == 2
    assert step["metrics"]["loss/learning_rate"] > 0
    assert {"python", "torch"} <= result["versions"].keys()
    assert result["seconds"] == pytest.approx(step["seconds"])


def check_summary(folder: Path) -> None:
    report = json.loads((folder / "study.json").read_text())
    assert set(report["figures"]) == {"tictactoe defaults"}
    assert report["figures"]["tictactoe defaults"]["seeds"] == [0, 1]
    missing = next(bar for bar in report["bars"] if bar["name"] == "runs that are missing")
    assert not missing["ok"]
    pictures = {file.name for file in (folder / "study").glob("*.png")}
    assert pictures == {"tictactoe.png"}
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in (folder / "study").glob("*.png"))
