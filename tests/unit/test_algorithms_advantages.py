"""Advantages, balance, shaping and step size against formulas written out in plain Python."""

from __future__ import annotations

import math
from statistics import fmean, pstdev

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from art.algorithms.advantages import balance, compare, grpo, has_spread, rank, reinforce_pp, rloo
from art.algorithms.shaping import in_range, overlong
from art.algorithms.step_size import step_size

rewards_of_a_group = st.lists(st.floats(-10, 10).map(lambda value: round(value, 3)), min_size=2, max_size=9)


def f64(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@given(rewards_of_a_group)
def test_dr_grpo_subtracts_the_mean(rewards: list[float]) -> None:
    assume(max(rewards) > min(rewards) + 1e-4)
    mean = fmean(rewards)
    (found,) = compare("dr_grpo", [f64(rewards)], normalize=False)
    assert found.tolist() == pytest.approx([reward - mean for reward in rewards], abs=1e-9)


@given(rewards_of_a_group)
def test_rloo_compares_with_the_others(rewards: list[float]) -> None:
    assume(max(rewards) > min(rewards) + 1e-4)
    expected = [
        reward - fmean(rewards[:i] + rewards[i + 1 :]) for i, reward in enumerate(rewards)
    ]  # Ahmadian et al. 2024: the baseline leaves the rollout itself out
    assert rloo(f64(rewards)).tolist() == pytest.approx(expected, abs=1e-9)
    scaled = [value / pstdev(rewards) for value in expected]
    assert rloo(f64(rewards), normalize=True).tolist() == pytest.approx(scaled, rel=1e-9, abs=1e-9)


@given(rewards_of_a_group)
def test_ranks_are_counted(rewards: list[float]) -> None:
    assume(max(rewards) > min(rewards) + 1e-4)
    expected = []
    for reward in rewards:
        below = sum(other < reward for other in rewards)
        equal = sum(other == reward for other in rewards) - 1
        expected.append(2 * (below + equal / 2) / (len(rewards) - 1) - 1)
    assert rank(f64(rewards)).tolist() == pytest.approx(expected, abs=1e-9)


def test_ranks_ignore_float_residue_and_distances() -> None:
    tenth = 0.1 + 1e-17
    assert rank(f64([0.1, tenth, 0.30000000000000004 / 3])).tolist() == [0, 0, 0]
    assert rank(f64([5.0, 0.1, 0.30000000000000004 / 3])).tolist() == pytest.approx([1, -0.5, -0.5])
    assert rank(f64([0, 1, 100])).tolist() == rank(f64([0, 1, 2])).tolist() == [-1, 0, 1]


@given(st.lists(rewards_of_a_group, min_size=1, max_size=5))
def test_reinforce_pp_is_normalised_over_the_batch(groups: list[list[float]]) -> None:
    assume(all(max(rewards) > min(rewards) + 1e-4 for rewards in groups))
    centred = [[reward - fmean(rewards) for reward in rewards] for rewards in groups]
    everyone = [value for values in centred for value in values]
    mean, deviation = fmean(everyone), pstdev(everyone)  # arXiv:2501.03262: over the global batch
    found = reinforce_pp([f64(rewards) for rewards in groups])
    for values, expected in zip(found, centred, strict=True):
        assert values.tolist() == pytest.approx(
            [(value - mean) / deviation for value in expected], rel=1e-7, abs=1e-7
        )


def test_a_group_that_hardly_differs_stays_small_beside_the_others() -> None:
    quiet, loud = reinforce_pp([f64([0, 0.01]), f64([0, 1])])
    assert quiet.abs().max() < 0.02 * loud.abs().max()
    assert compare("grpo", [f64([0, 0.01])], normalize=True)[0].tolist() == pytest.approx([-1, 1])
    assert compare("reinforce++", [], normalize=False) == []


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "rank", "reinforce++"])
def test_equal_rewards_are_zeros_exactly(name: str) -> None:
    residue = [0.1, 0.1 + 1e-17, 0.30000000000000004 / 3]
    assert not has_spread(f64(residue))
    (found,) = compare(name, [f64(residue)], normalize=True)
    assert found.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("name", ["grpo", "rloo", "rank", "reinforce++"])
@pytest.mark.parametrize("size", [1e-3, 1e200])
def test_advantages_are_finite_and_sum_to_zero_whatever_the_rewards_size(name: str, size: float) -> None:
    (found,) = compare(name, [f64([size, -size, 0.5 * size])], normalize=True)
    assert torch.isfinite(found).all()
    assert float(found.sum()) == pytest.approx(0, abs=1e-9)
    assert float(found[0]) > float(found[2]) > float(found[1])


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=6), st.floats(-1, 1))
def test_balance_weighs_one_sign_down(values: list[float], b: float) -> None:
    expected = []
    for value in values:
        factor = 1.0
        if b > 0 and value < 0:
            factor = 1 - b
        if b < 0 and value > 0:
            factor = 1 + b
        expected.append(value * factor)
    assert balance(f64(values), b).tolist() == pytest.approx(expected)
    assert balance(f64(values), 0.0).tolist() == values


@given(st.integers(0, 300), st.integers(1, 200), st.integers(1, 200))
def test_overlong_is_dapos_three_cases(length: int, max_length: int, buffer: int) -> None:
    assume(buffer <= max_length)
    if length <= max_length - buffer:
        expected = 0.0
    elif length <= max_length:
        expected = ((max_length - buffer) - length) / buffer
    else:
        expected = -1.0
    assert overlong(length, max_length=max_length, buffer=buffer) == pytest.approx(expected)


def test_a_groups_mean_decides_whether_it_is_worth_comparing() -> None:
    rewards = f64([0, 1, 1, 1])
    assert in_range(rewards, None)
    assert in_range(rewards, (0.75, 1.0))
    assert not in_range(rewards, (0.2, 0.7))


def test_the_step_size_grows_with_the_batch_as_asked() -> None:
    assert step_size(1e-3, rollouts=16, power=0.0) == 1e-3
    assert step_size(1e-3, rollouts=16, power=0.5) == pytest.approx(4e-3)
    assert step_size(1e-3, rollouts=16, power=-1.0, reward_deviation=0.5) == pytest.approx(1e-3 / 32)


def test_grpo_is_the_default_of_the_table() -> None:
    rewards = [0.0, 1.0, 1.0]
    (found,) = compare("grpo", [f64(rewards)], normalize=True)
    assert found.tolist() == grpo(f64(rewards)).tolist()
    assert math.isclose(float(found.square().mean()), 1.0)
