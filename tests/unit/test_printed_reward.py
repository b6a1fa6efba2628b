"""The reward that a program prints: what counts, and what was meant to and does not."""

from __future__ import annotations

import json

import pytest

from art.errors import InvalidInput, InvalidReward
from art.rollouts.printed import printed_reward


@pytest.mark.parametrize(
    ("output", "reward"),
    [
        ("0.5", 0.5),
        ("talk\n-2", -2.0),
        ('{"reward": 1, "metrics": {"turns": 3}}\ndone', 1.0),
        # JSON holds these line separators as they are, and so do the writers of JavaScript and Python.
        (json.dumps({"reward": 0.25, "note": "a\u2028b\u2029c\u0085d"}, ensure_ascii=False), 0.25),
    ],
)
def test_a_printed_reward_is_found(output: str, reward: float) -> None:
    found = printed_reward(output.encode(), "agent")
    assert found is not None
    assert found.reward == reward


@pytest.mark.parametrize("output", ["", "done", "True", "0,5", "score: 0.7", "[" * 100_000, '{"rewrad": 1}'])
def test_what_is_no_reward_is_none(output: str) -> None:
    assert printed_reward(output.encode(), "agent") is None


@pytest.mark.parametrize(
    "output",
    [
        "{'reward': 0.5}",
        '{"reward": }',
        '{"reward": NaN}',
        '{"reward": ' + "9" * 400 + "}",
        "9" * 400,
        "9" * 6000,
    ],
)
def test_a_reward_that_cannot_be_one_is_an_error_and_no_exit_status(output: str) -> None:
    with pytest.raises(InvalidReward):
        printed_reward(output.encode(), "agent")


@pytest.mark.parametrize(
    "metrics",
    ['{"loss": NaN}', '{"loss": 1e999}', '{"n": ' + "9" * 400 + "}", '{"\\ud800": 1}', "[1]", '{"a": "x"}'],
)
def test_metrics_that_cannot_be_kept_are_named(metrics: str) -> None:
    with pytest.raises(InvalidInput, match="metrics"):
        printed_reward(f'{{"reward": 1, "metrics": {metrics}}}'.encode(), "agent")
