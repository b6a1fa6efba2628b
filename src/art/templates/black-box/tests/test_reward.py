from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from reward import score


@pytest.mark.parametrize(
    ("output", "worth"), [("Yes.\n", 1.0), ("maybe", 0.3), ("no", 0.1), ("Lovely!", 0.0)]
)
def test_the_right_word_is_worth_most(output: str, worth: float) -> None:
    assert score(output, {"positive": "yes"}) == worth


def test_it_reads_the_transcript_and_prints_the_reward() -> None:
    transcript = {"output": "no\n", "scenario": {"positive": "no"}, "calls": 1, "messages": []}
    done = subprocess.run(
        [sys.executable, "reward.py"],
        cwd=Path(__file__).parent.parent,
        input=json.dumps(transcript),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert json.loads(done.stdout) == {"reward": 1.0, "metrics": {"calls": 1}}
