"""Losses and weights against formulas written out in plain Python and in float64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from art.algorithms.advantages import grpo, has_spread, mean_and_deviation
from art.algorithms.aggregation import token_weights
from art.algorithms.correction import truncation_factor
from art.algorithms.losses import LossInputs, ppo, ppo_stopped


def f64(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def given_tokens(logprobs: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor) -> LossInputs:
    """A completion of its own for each token, clipped to [0.8, 1.28]."""
    return LossInputs(
        logprobs_N=logprobs,
        ratio_N=torch.exp(logprobs - old),
        advantages_N=advantages,
        owner_N=torch.arange(len(logprobs)),
        epsilon=0.2,
        epsilon_high=0.28,
    )


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=10))
def test_grpo_is_the_standard_score(rewards: list[float]) -> None:
    found = grpo(f64(*rewards)).tolist()
    mean = sum(rewards) / len(rewards)
    deviation = math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / len(rewards))
    if max(rewards) - min(rewards) <= 1e-6 * max(1.0, *(abs(reward) for reward in rewards)):
        assert found == [0.0] * len(rewards)
    else:
        assert found == pytest.approx([(reward - mean) / deviation for reward in rewards], abs=1e-9)


def test_without_normalisation_only_the_mean_goes() -> None:
    assert grpo(f64(1, 2, 6), normalize=False).tolist() == pytest.approx([-2, -1, 3])


@pytest.mark.parametrize(
    ("rewards", "spread"),
    [
        ([0.1, 0.1, 0.30000000000000004 / 3], False),  # equal but for float residue
        ([1e6, 1e6 + 0.5, 1e6], False),
        ([0.0, 1e-5], True),
        ([0.5], False),
        ([0.0, 1.0], True),
    ],
)
def test_zero_spread_is_relative(rewards: list[float], spread: bool) -> None:
    assert has_spread(f64(*rewards)) is spread
    assert bool(grpo(f64(*rewards)).any()) is spread


@pytest.mark.parametrize("size", [1e-4, 1.0, 1e200, 1e308, 1.7e308])
def test_advantages_do_not_depend_on_the_rewards_size(size: float) -> None:
    """Squares and sums of large rewards would overflow; the score itself is a number of ordinary size."""
    assert grpo(f64(size, -size)).tolist() == [1.0, -1.0]
    expected = [math.sqrt(1.5), -math.sqrt(1.5), 0.0]
    assert grpo(f64(size, -size, 0.0)).tolist() == pytest.approx(expected, rel=1e-12)
    assert grpo(f64(size, size, size)).tolist() == [0.0, 0.0, 0.0]
    assert mean_and_deviation(f64(size, size)) == pytest.approx((size, 0.0))
    mean, deviation = mean_and_deviation(f64(size, -size))
    assert (mean, deviation) == pytest.approx((0.0, size))


def test_weights_of_any_size_sum_to_one() -> None:
    for size in (1.0, 1e200, 1.7e308):
        weights = token_weights(
            torch.tensor([0, 0, 1]), f64(size, size, size), f64(size, size), aggregation="rollout"
        )
        assert weights.tolist() == pytest.approx([0.25, 0.25, 0.5])


def reference_ppo(logprob: float, old: float, advantage: float) -> float:
    ratio = math.exp(logprob - old)
    return -min(ratio * advantage, min(max(ratio, 0.8), 1.28) * advantage)


@given(st.floats(-5, 0), st.floats(-5, 0), st.floats(-3, 3))
def test_ppo_clip_is_its_formula(logprob: float, old: float, advantage: float) -> None:
    found = ppo(given_tokens(f64(logprob), f64(old), f64(advantage)))
    assert float(found) == pytest.approx(reference_ppo(logprob, old, advantage), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize(
    ("ratio", "advantage", "slope"),
    [
        (1.0, 2.0, -2.0),  # on policy: the policy gradient
        (1.2, 2.0, -2.4),
        (1.3, 2.0, 0.0),  # pushed up far enough
        (1.3, -2.0, 2.6),
        (0.7, -2.0, 0.0),  # pushed down far enough
        (0.7, 2.0, -1.4),
    ],
)
def test_the_gradient_stops_where_the_clip_holds(ratio: float, advantage: float, slope: float) -> None:
    logprob = f64(math.log(ratio)).requires_grad_()
    ppo(given_tokens(logprob, f64(0.0), f64(advantage))).sum().backward()
    assert float(logprob.grad) == pytest.approx(slope)  # type: ignore[arg-type]
    stopped = ppo_stopped(given_tokens(logprob.detach(), f64(0.0), f64(advantage)))
    assert bool(stopped) is (slope == 0.0)


def test_the_correction_bounds_a_tokens_weight_and_changes_nothing_below() -> None:
    logprobs, old = f64(0.0, -1.0, -0.5).requires_grad_(), f64(-3.0, -1.0, -1.0)
    factor = truncation_factor(torch.exp(logprobs - old), bound=2.0)
    assert not factor.requires_grad
    assert factor.tolist() == pytest.approx([2.0 / math.exp(3.0), 1.0, 1.0])
    (ppo(given_tokens(logprobs, old, f64(-1, -1, -1))) * factor).sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([2.0, 1.0, math.exp(0.5)])


def test_rollout_weights_ignore_length_and_branches() -> None:
    rollouts = torch.tensor([0, 0, 0, 1])
    weights = token_weights(rollouts, torch.ones(4), torch.ones(2), aggregation="rollout")
    assert weights.tolist() == pytest.approx([1 / 6, 1 / 6, 1 / 6, 1 / 2])


def test_token_weights_are_even() -> None:
    rollouts = torch.tensor([0, 0, 0, 1])
    assert token_weights(rollouts, torch.ones(4), torch.ones(2), aggregation="token").tolist() == [0.25] * 4


def test_weights_of_rollouts_and_calls() -> None:
    rollouts = torch.tensor([0, 0, 1])
    found = token_weights(rollouts, f64(3, 1, 1), f64(1, 3), aggregation="rollout")
    assert found.tolist() == pytest.approx([3 / 16, 1 / 16, 3 / 4])
    found = token_weights(rollouts, f64(3, 1, 1), f64(1, 3), aggregation="token")
    assert found.tolist() == pytest.approx([3 / 7, 1 / 7, 3 / 7])


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=20),
    st.lists(st.floats(0.1, 5), min_size=4, max_size=4),
    st.sampled_from(["rollout", "token"]),
)
def test_weights_sum_to_one_whatever_is_absent(rollouts: list[int], weights: list[float], kind: str) -> None:
    found = token_weights(torch.tensor(rollouts), torch.ones(len(rollouts)), f64(*weights), aggregation=kind)  # type: ignore[arg-type]
    assert float(found.sum()) == pytest.approx(1.0)


def test_weights_of_zero_are_no_division_by_zero() -> None:
    found = token_weights(
        torch.tensor([0, 1]), torch.tensor([0.0, 1.0]), torch.ones(2), aggregation="rollout"
    )
    assert found.tolist() == [0.0, 1.0]
