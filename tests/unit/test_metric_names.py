"""types/metrics is the one source of metric names: whatever the code logs is known to it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from art.server.outcome import STATUSES
from art.types.cumulative import cumulative_name, is_cumulative
from art.types.metrics import METRICS, SECTIONS, full_name, info, state_of

SOURCE = Path(__file__).resolve().parents[2] / "src" / "art"
NAME = re.compile(rf"({'|'.join(SECTIONS)})/[a-z0-9_]+(/[a-z0-9_]+)*")
NO_METRIC = re.compile(r"data/(purge|retention|flow)")
INVENTORY = [
    "train/reward",
    "train/reward_std_dev",
    "train/exception_rate",
    "train/group_score",
    "loss/train",
    "loss/entropy",
    "loss/kl_policy_ref",
    "loss/kl_div",
    "loss/grad_norm",
    "loss/learning_rate",
    "data/step_num_scenarios",
    "data/step_num_trajectories",
    "data/step_num_groups_submitted",
    "data/step_num_groups_trainable",
    "data/step_trainer_tokens",
    "data/step_num_gradient_steps",
    "data/step_num_datums",
    "data/step_num_dropped_trajectories",
    "data/step_actor_tokens",
    "data/cum/num_unique_scenarios",
    "data/cum/num_trajectories",
    "time/wall_clock_sec",
    "time/step_wall_s",
    "time/step_trainer_s",
    "time/step_actor_s",
    "time/step_eval_s",
    "time/cum/trainer_s",
    "throughput/step_trainer_idle_s",
    "throughput/step_actor_idle_s",
    "throughput/cum/trainer_idle_s",
    "throughput/avg_trainer_tok_per_s",
    "throughput/avg_actor_tok_per_s",
    "costs/gpu",
    "costs/train/llm",
    "costs/eval/llm",
    "costs/train/tinker_prefill",
    "costs/train/judge/ruler",
    "costs/all",
    "costs/cum/all",
    "costs/cum/train/judge/ruler",
    "train/discarded_stale_groups",
    "train/steps_off_policy",
    "discarded/groups",
    "checkpoint/saved",
    "checkpoint/eval_completed",
    "checkpoint/created_at_unix",
    "val/reward",
    "val/reward_ci_low",
    "val/reward_ci_high",
    "val/reward_std_dev",
    "test/exception_rate",
]
"""Names that programs for openpipe-art know."""


def literals() -> set[str]:
    """Text in the code that has the form of a metric's name."""
    found = set()
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and NAME.fullmatch(node.value):
                found.add(node.value)
    return {name for name in found if not NO_METRIC.fullmatch(name)}


def test_every_name_in_the_code_is_known() -> None:
    names = literals()
    assert {"data/step_num_gradient_steps", "parity/k3", "time/step_trainer_s"} <= names, "they are found"
    names |= {f"data/step_num_{status.value}" for status in STATUSES}
    assert not sorted(name for name in names if info(name) is None)


@pytest.mark.parametrize("name", INVENTORY)
def test_what_programs_for_openpipe_art_know_is_known(name: str) -> None:
    found = info(name)
    assert found is not None
    assert found.name == name
    assert found.title
    assert found.meaning


def test_names_and_meanings_are_fit_to_be_shown() -> None:
    names = [metric.name for metric in METRICS]
    assert len(names) == len(set(names))
    for metric in METRICS:
        assert metric.name.partition("/")[0] in {*SECTIONS, "*"}, metric.name
        assert metric.meaning.endswith("."), metric.name
        assert "\n" not in metric.meaning
        banded = metric.warn_below is not None or metric.warn_above is not None
        assert banded == bool(metric.warning), f"{metric.name}: a band says what to do, and only a band does"
        seconds = metric.name.endswith(("_s", "_sec", "duration")) and not metric.name.endswith("_per_s")
        assert not seconds or metric.unit == "s", metric.name


def test_what_is_summed_has_its_sum_beside_it() -> None:
    for metric in METRICS:
        total = cumulative_name(metric.name)
        if total is None or "*" in total:
            continue
        summed = info(total)
        assert summed is not None, metric.name
        assert summed.unit == metric.unit
        assert is_cumulative(total)


def test_a_family_takes_the_name_and_its_longest_member_wins() -> None:
    own = info("train/turns")
    assert own is not None
    assert (own.name, own.title, own.unit) == ("train/turns", "turns (train)", "")
    grouped = info("train/group_turns")
    assert grouped is not None
    assert "group" in grouped.meaning
    judge = info("costs/train/judge")
    assert judge is not None
    assert (judge.title, judge.unit) == ("Judges", "USD")
    held_out = info("holdout/reward")
    assert held_out is not None
    assert held_out.direction == "up"
    assert info("holdout/turns") is None, "a program's own section is its own"
    assert info("train/a/b") is None


@pytest.mark.parametrize(
    ("name", "split", "expected"),
    [
        ("reward", "val", "val/reward"),
        ("loss/train", "val", "loss/train"),
        ("tools/calls", "train", "train/tools/calls"),
        ("holdout/reward", "holdout", "holdout/reward"),
        ("loss", "val", "val/loss"),
        ("parity/mean", "train", "parity/mean"),
    ],
)
def test_a_section_stands_for_itself_and_a_split_is_put_before_the_rest(
    name: str, split: str, expected: str
) -> None:
    assert full_name(name, split) == expected


def test_bands() -> None:
    assert state_of("loss/clip_fraction", 0.1) == "ok"
    assert state_of("loss/clip_fraction", 0.9) == "warning"
    assert state_of("loss/entropy", 0.0) == "warning"
    assert state_of("holdout/turns", 1e9) == "ok"
