"""Sums over a run: each figure once, whatever is logged twice."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art.types.cumulative import advance, averages, cumulative_name, rolled_up

PART = st.sampled_from(["train", "eval", "gpu", "judge", "ruler", "llm"])
COSTS = st.dictionaries(
    st.lists(PART, min_size=1, max_size=4).map(lambda parts: "costs/" + "/".join(parts)),
    st.floats(0, 1e6),
    max_size=8,
)
FIGURES = st.dictionaries(
    st.sampled_from(
        [
            "data/step_actor_tokens",
            "time/step_wall_s",
            "throughput/step_actor_idle_s",
            "costs/gpu",
            "loss/train",
        ]
    ),
    st.floats(0, 1e6),
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("data/step_num_calls", "data/cum/num_calls"),
        ("time/step_wall_s", "time/cum/wall_s"),
        ("throughput/step_actor_idle_s", "throughput/cum/actor_idle_s"),
        ("throughput/step_actor_idle_share", None),
        ("throughput/avg_actor_tok_per_s", None),
        ("costs/train/judge/ruler", "costs/cum/train/judge/ruler"),
        ("costs/cum/all", None),
        ("data/cum/num_calls", None),
        ("time/wall_clock_sec", None),
        ("train/reward", None),
        ("costs", None),
        ("costs/", None),
    ],
)
def test_what_is_summed_under_which_name(name: str, expected: str | None) -> None:
    assert cumulative_name(name) == expected


def test_costs_are_added_up_from_the_leaves() -> None:
    row = {"costs/train/judge/ruler": 1.0, "costs/train/llm": 2.0, "costs/gpu": 4.0, "train/reward": 9.0}
    assert rolled_up(row) == {"costs/train/judge": 1.0, "costs/train": 3.0, "costs/all": 7.0}


def test_a_sum_that_a_row_gives_itself_stands() -> None:
    assert rolled_up({"costs/train": 5.0, "costs/train/judge": 1.0}) == {"costs/all": 5.0}
    assert rolled_up({"costs/all": 5.0}) == {}


@given(COSTS)
def test_all_costs_are_the_sum_of_those_that_are_under_no_other(costs: dict[str, float]) -> None:
    added = rolled_up(costs)
    outer = [
        value for name, value in costs.items()
        if not any(name.startswith(f"{other}/") for other in costs if other != "costs/all")
    ]  # fmt: skip
    if costs:
        assert added["costs/all"] == pytest.approx(math.fsum(outer))
    assert not added.keys() & costs.keys()


@given(st.lists(FIGURES, max_size=6))
def test_sums_are_those_of_all_rows(rows: list[dict[str, float]]) -> None:
    totals: dict[str, float] = {}
    for row in rows:
        totals, added = advance(totals, row)
        for name, value in added.items():
            if name.partition("/")[2].startswith("cum/"):
                assert totals[name] == value
    for name in ("data/step_actor_tokens", "time/step_wall_s", "costs/gpu"):
        expected = sum(row.get(name, 0.0) for row in rows)
        assert totals.get(str(cumulative_name(name)), 0.0) == pytest.approx(expected)
    assert totals.get("costs/cum/all", 0.0) == pytest.approx(sum(row.get("costs/gpu", 0.0) for row in rows))


@given(FIGURES, FIGURES)
def test_a_row_with_its_sums_is_counted_once_however_often_it_is_logged(
    first: dict[str, float], second: dict[str, float]
) -> None:
    totals, added = advance({}, first)
    whole = {**first, **added}
    after, again = advance(totals, whole)
    assert after == totals
    assert not {name for name in again if "/cum/" in name}
    # A later row that comes before an earlier one takes nothing back.
    later, _ = advance(totals, second)
    assert advance(later, whole)[0] == later


def test_speeds_are_those_of_the_whole_run() -> None:
    totals, _ = advance({}, {"data/step_actor_tokens": 100.0, "time/step_actor_s": 1.0})
    totals, added = advance(totals, {"data/step_actor_tokens": 100.0, "time/step_actor_s": 3.0})
    assert added["throughput/avg_actor_tok_per_s"] == 50.0
    assert advance(totals, {"train/reward": 1.0})[1] == {}, "nothing that it is made of has changed"
    assert averages({"data/cum/actor_tokens": 1.0, "time/cum/actor_s": 0.0}, {"time/cum/actor_s"}) == {}


def test_a_sum_past_all_numbers_stays_where_it_was() -> None:
    totals, _ = advance({}, {"data/step_x": 1.7e308})
    after, added = advance(totals, {"data/step_x": 1.7e308})
    assert after == totals
    assert added == {}
