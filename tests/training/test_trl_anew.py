"""TRL itself on the stored cases and on new ones. `make test-trl` names TRL's interpreter in ART_TRL_PYTHON."""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from trl_kit import ours, theirs

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "peers" / "trl_losses.py"
STORED = ROOT / "tests" / "data" / "trl" / "cases.json"
DRAWS = 25
SECONDS = 600

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.timeout(SECONDS)]


def ask_trl(out: Path, *, seed: int, draws: int) -> dict[str, Any]:
    command = [os.environ["ART_TRL_PYTHON"], str(SCRIPT), "--seed", str(seed), "--draws", str(draws)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [*command, "--out", str(out)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    report: dict[str, Any] = json.loads(out.read_text())
    return report


def test_the_stored_cases_are_what_trl_gives(tmp_path: Path) -> None:
    stored = json.loads(STORED.read_text())
    draws = len(stored["cases"]) // len({case["kind"] for case in stored["cases"]})
    fresh = ask_trl(tmp_path / "cases.json", seed=stored["seed"], draws=draws)
    for before, now in zip(stored["cases"], fresh["cases"], strict=True):
        assert before["inputs"] == now["inputs"]
        assert before["options"] == now["options"]
        for (name, value), (_, other) in zip(theirs(before).figures(), theirs(now).figures(), strict=True):
            torch.testing.assert_close(other, value, rtol=1e-12, atol=1e-14, msg=f"{before['kind']}: {name}")


def test_new_draws_agree(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**31)
    fresh = ask_trl(tmp_path / "cases.json", seed=seed, draws=DRAWS)
    for case in fresh["cases"]:
        expected = dict(theirs(case).figures())
        found = dict(ours(case, max_completion_length=fresh["max_completion_length"]).figures())
        assert found.keys() == expected.keys()
        for name, value in found.items():
            what = f"seed {seed}, {case['kind']}: {name} differs for {case['inputs']}"
            torch.testing.assert_close(value, expected[name], rtol=1e-10, atol=1e-12, msg=what)
