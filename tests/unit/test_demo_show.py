"""What the demonstration shows and measures."""

from __future__ import annotations

import io
import random
from pathlib import Path
from statistics import fmean

import pytest
from rich.console import Console

from art.backends.results import TrainResult
from art.demo.live import Display, sparkline, transcript
from art.demo.plot import plot_rewards
from art.demo.run import Outcome, clearest
from art.errors import InvalidInput
from art.evals.intervals import Mean, improved, mean_of


def test_the_interval_covers_the_true_mean_nineteen_times_of_twenty() -> None:
    rng = random.Random(0)
    covered = 0
    for _ in range(1000):
        low, high = mean_of([float(rng.random() < 0.3) for _ in range(128)]).ci95
        covered += low <= 0.3 <= high
    assert 925 <= covered <= 975


def test_a_mean_of_nothing_is_refused_and_of_one_has_no_width() -> None:
    with pytest.raises(InvalidInput):
        mean_of([])
    assert mean_of([2.5]).ci95 == (2.5, 2.5)


def test_the_interval_of_rewards_between_0_and_1_stays_there_and_never_vanishes() -> None:
    assert mean_of([1.0] * 64).ci95 == (pytest.approx(0.9434, abs=1e-4), 1.0)  # Wilson, p = 1, n = 64
    assert mean_of([0.0, 1.0] * 32).ci95 == pytest.approx((0.3810, 0.6190), abs=1e-4)
    assert mean_of([0.0] * 64).ci95[0] == 0.0


def test_improvement_is_more_than_chance() -> None:
    before = mean_of([0.0] * 60 + [1.0] * 40)
    assert not improved(before, mean_of([0.0] * 58 + [1.0] * 42))
    assert improved(before, mean_of([0.0] * 20 + [1.0] * 80))
    assert not improved(before, mean_of([0.0] * 80 + [1.0] * 20))
    assert not improved(mean_of([0.5] * 4), mean_of([0.5] * 4))


def test_lines_where_there_is_no_terminal() -> None:
    out = io.StringIO()
    with Display(Console(file=out, width=200), "title") as display:
        display.phase("loading", 0)
        display.phase("rollouts", 4)
        for reward in (0.0, 1.0):
            display.advance(reward)
        result = TrainResult(step=1, metrics={"parity/mean": 0.012})
        display.trained(1, 4, [0.5], result, 2.0)
        display.trained(2, 4, [0.5, 1.0], TrainResult(step=1, published=False, reason="no spread"), 2.0)
        display.stopped(4, 4, "it does not matter why")
        display.stopped(2, 4, "one more would pass the time budget of 80 s")
        display.evaluated("held-out", mean_of([0.25, 0.75]))
    lines = out.getvalue().splitlines()
    assert lines[0] == "loading"
    assert lines[1] == "step 1/4  reward 0.500 ▅  published step 1  parity 0.0120  2.0 s, about 6 s left"
    assert "nothing published: no spread" in lines[2]
    assert lines[3] == "stopped after step 2 of 4: one more would pass the time budget of 80 s"
    assert lines[4].startswith("held-out: 0.500 (95% ")
    assert len(lines) == 5


def test_the_run_that_is_shown_is_one_that_became_better() -> None:
    assert clearest([0.5, 0.0, 1.0], [0.5, 1.0, 0.0]) == 1
    assert clearest([1.0, 1.0], [0.0, 0.5]) == 1


def test_a_panel_on_a_terminal() -> None:
    out = io.StringIO()
    with Display(Console(file=out, width=100, force_terminal=True), "the title") as display:
        display.phase("rollouts", 2)
        display.advance(1.0)
        display.say("kept")
    assert "the title" in out.getvalue()
    assert "kept" in out.getvalue()


def test_sparkline_spans_its_range() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([-1.0, 2.0]) == "▁█"


def test_transcripts_show_calls() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    shown = transcript(
        [
            {"role": "user", "content": "two\nlines"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
        ]
    )
    assert shown.splitlines() == ["       user: two", "             lines", '  assistant: f({"a": 1})']


def test_the_plot_is_a_png_and_the_summary_has_the_promised_keys(tmp_path: Path) -> None:
    outcome = Outcome(
        "weather", "base", Mean(0.1, 0.02, 64), Mean(0.9, 0.02, 64), 0.2, 3, 12.34, "/c/0003", [0.1, 0.5, 0.9]
    )
    file = plot_rewards(outcome, tmp_path / "deep" / "plot.png")
    assert file.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert outcome.improved
    summary = outcome.summary()
    assert list(summary) == [
        "task",
        "base_model",
        "eval_before",
        "eval_after",
        "ci95_before",
        "ci95_after",
        "best_constant",
        "steps",
        "seconds",
        "checkpoint",
    ]
    assert fmean(summary["ci95_after"]) == pytest.approx(0.9)
