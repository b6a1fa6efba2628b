"""A reward that pays for the wrong thing is told, and one that pays for the task is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from readers_kit import asker

from art.store import rollout_lists, series
from art.store.reward_check import reward_check
from art.store.rollout_lists import Asked
from art.testing.seeded import Plan, seed
from art.types.wire_views import RewardCheck

RUN = ("shop", "desk-01")


@pytest.fixture(scope="module")
def cheated(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Callable[[Any], Any]], Any]:
    plan = Plan(runs=1, steps=12, groups=3, group_size=6, reward_bug="length")
    return asker(seed(tmp_path_factory.mktemp("cheated") / "art", plan))


def test_a_reward_that_pays_for_length_is_told(cheated: Any) -> None:
    found: RewardCheck = cheated(lambda conn: reward_check(conn, *RUN))
    told = {warning.kind: warning for warning in found.warnings}
    assert set(told) == {"length", "flat_metric", "same_judge"}
    length, right = (
        next(link for link in found.links if link.name == name)
        for name in ("sampled_tokens", "metrics.right")
    )
    assert length.r is not None
    assert length.r > 0.7
    assert f"{length.r:+.2f}" in told["length"].message
    assert right.r is not None
    assert abs(right.r) < 0.3
    assert told["flat_metric"].name == "metrics.right"
    assert told["same_judge"].name == "ruler_score"


def test_a_reward_for_the_task_is_not(tmp_path: Path) -> None:
    ask = asker(seed(tmp_path / "art", Plan(runs=1, steps=12, groups=3, group_size=6)))
    found: RewardCheck = ask(lambda conn: reward_check(conn, *RUN))
    assert [warning.kind for warning in found.warnings] == ["same_judge"]
    assert {link.name for link in found.links} >= {"sampled_tokens", "tool_errors", "metrics.right"}


def test_a_batch_of_equal_rewards_is_in_the_figures(cheated: Any) -> None:
    """Its step has the figures of the train call before it."""
    names = ["data/step_num_zero_variance", "train/reward_std_dev", "train/reward"]
    found = cheated(lambda conn: series.series_set(conn, *RUN, names, max_points=500)).series
    listed = cheated(lambda conn: rollout_lists.page(conn, *RUN, Asked(status="zero_variance")))
    assert listed.total > 0
    assert sum(found[names[0]].value) == listed.total
    assert min(found[names[1]].value) == 0.0
    assert min(found[names[2]].value) > 0.2, "the reward is that of the call that published the step"


def test_what_the_judge_said_is_found_by_the_search(cheated: Any) -> None:
    asked = Asked(search='"names another state than the record"')
    found = cheated(lambda conn: rollout_lists.page(conn, *RUN, asked))
    assert found.total > 0
    assert all("names" in line.hit for line in found.rollouts)
    assert {line.metrics["right"] for line in found.rollouts} == {0.0}
