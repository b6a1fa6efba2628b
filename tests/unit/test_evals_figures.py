"""The figures of an evaluation: intervals, pass@k, comparison."""

from __future__ import annotations

import json
import random
from itertools import combinations
from statistics import fmean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art.errors import InvalidInput
from art.evals import EvalResult, EvalRun, Prices, ScenarioRuns, compare
from art.evals.bootstrap import bootstrap_ci, pass_at_k, percentile_ci, quantile, sign_flip_p


def result(rewards: dict[str, list[float | None]], **fields: object) -> EvalResult:
    scenarios = [
        ScenarioRuns(
            id=name,
            runs=[EvalRun(reward=value, error="" if value is not None else "E: x") for value in found],
        )
        for name, found in rewards.items()
    ]
    return EvalResult.model_validate(
        {"model": "p/m@1", "scenarios": scenarios, "repeats": max(map(len, rewards.values())), **fields}
    )


@given(runs=st.integers(1, 8), data=st.data())
def test_pass_at_k_is_the_share_of_draws_with_a_pass(runs: int, data: st.DataObject) -> None:
    passed, k = data.draw(st.integers(0, runs)), data.draw(st.integers(1, runs))
    outcomes = [index < passed for index in range(runs)]
    draws = list(combinations(outcomes, k))
    assert pass_at_k(runs, passed, k) == pytest.approx(sum(map(any, draws)) / len(draws))


@pytest.mark.parametrize(("runs", "k"), [(3, 4), (3, 0)])
def test_pass_at_k_needs_k_runs(runs: int, k: int) -> None:
    with pytest.raises(InvalidInput, match="cannot be estimated"):
        pass_at_k(runs, 1, k)


def test_quantiles_are_interpolated() -> None:
    assert [quantile([1.0, 2.0, 4.0], share) for share in (0, 0.25, 0.5, 0.75, 1)] == [1, 1.5, 2, 3, 4]
    assert quantile([7.0], 0.3) == 7


def test_the_bootstrap_is_seeded_and_as_wide_as_the_normal_interval() -> None:
    rng = random.Random(0)
    values = [rng.random() for _ in range(200)]
    low, high = percentile_ci(values, seed=1)
    assert (low, high) == percentile_ci(values, seed=1)
    assert (low, high) != percentile_ci(values, seed=2)
    half = 1.96 * stdev(values) / len(values) ** 0.5
    assert low == pytest.approx(fmean(values) - half, abs=half / 5)
    assert high == pytest.approx(fmean(values) + half, abs=half / 5)


def test_the_bootstrap_covers_the_truth_as_often_as_it_says() -> None:
    rng = random.Random(5)
    hits = 0
    for trial in range(60):
        low, high = percentile_ci([float(rng.random() < 0.6) for _ in range(40)], seed=trial)
        hits += low <= 0.6 <= high
    assert hits >= 50


def test_equal_scenarios_do_not_give_an_interval_without_width() -> None:
    ci95 = bootstrap_ci([1.0] * 10)
    assert ci95 is not None
    assert ci95[0] == pytest.approx(0.7225, abs=1e-3), "Wilson's for 10 of 10"
    assert ci95[1] == pytest.approx(1)
    assert bootstrap_ci([3.0, 3.0]) is None
    with pytest.raises(InvalidInput, match="no scenario"):
        bootstrap_ci([])


def test_the_sign_flip_test_is_exact_for_few_and_close_for_many() -> None:
    assert sign_flip_p([1.0] * 3) == 2 / 8
    assert sign_flip_p([1.0, -1.0]) == 1
    assert sign_flip_p([0.0, 0.0]) == 1
    values = [0.5, 0.2, -0.1, 0.4, 0.3, 0.1, -0.2, 0.6, 0.2, 0.1, 0.3, 0.2]
    exact = sign_flip_p(values)
    sampled = sign_flip_p([*values, 0.0])  # a difference of 0 changes nothing, and 13 are sampled
    assert sampled == pytest.approx(exact, abs=0.01)


def test_each_scenario_counts_once() -> None:
    found = result({"a": [1.0, 1.0, 1.0, 0.0], "b": [0.0, None]})
    assert found.mean == pytest.approx((0.75 + 0) / 2)
    assert found.rewards == {"a": [1, 1, 1, 0], "b": [0]}
    assert (found.failures, found.infra_failures) == (1, 0)
    assert found.pass_at_k == {1: pytest.approx(0.375)}, "b was judged once"
    assert found.pass_at(4) == 1
    with pytest.raises(InvalidInput, match="repeats=5"):
        found.pass_at(5)
    even = result({"a": [1.0, 0.0, 0.0], "b": [0.5, 0.5, 0.5]}, success_at=0.5)
    assert even.pass_at_k == {1: pytest.approx(2 / 3), 2: pytest.approx(5 / 6), 3: 1}


def test_a_result_survives_json_and_tells_its_figures() -> None:
    run = EvalRun(reward=1.0, seconds=2.0, calls=1, prompt_tokens=500, completion_tokens=100)
    found = EvalResult(
        model="gpt",
        scenarios=[ScenarioRuns(id="a", runs=[run, run])],
        repeats=2,
        prices=Prices(prompt=2.0, completion=10.0),
    )
    assert found.cost == pytest.approx((1000 * 2 + 200 * 10) / 1e6)
    assert found.latency is not None
    assert (found.latency.mean, found.latency.p95) == (2, 2)
    back = EvalResult.load(json.loads(json.dumps(found.summary())))
    assert back == found
    text = "\n".join(found.lines())
    assert "gpt: mean reward 1 (95 %" in text
    assert "1000 prompt and 200 completion tokens, cost 0.004" in text
    for wrong in ({"model": "a"}, [1]):
        with pytest.raises(InvalidInput):
            EvalResult.load(wrong)


def test_a_result_without_rewards_has_no_mean() -> None:
    with pytest.raises(InvalidInput, match="no run ended with a reward") as failed:
        _ = result({"a": [None]}).mean
    assert failed.value.cause == "E: x"


def test_a_comparison_pairs_by_scenario() -> None:
    names = [f"s{number}" for number in range(20)]
    a = result({name: [number / 20] for number, name in enumerate(names)})
    b = result(
        {name: [number / 20 + (0.1 if number % 4 else 0.05)] for number, name in enumerate(names)}
        | {"new": [0.0]}
    )
    found = compare(a, b)
    assert found.difference == pytest.approx(0.0875)
    assert (found.scenarios, found.unpaired, found.wins, found.losses) == (20, 1, 20, 0)
    assert found.ci95 is not None
    assert 0.07 < found.ci95[0] < 0.0875 < found.ci95[1] < 0.1
    assert found.significant
    assert found.p_value < 0.01
    back = compare(b, a)
    assert back.difference == pytest.approx(-found.difference)
    assert not compare(a, a).significant
    assert "+0.0875 (95 %" in found.lines()[0]
    assert json.loads(json.dumps(found.summary()))["significant"]


def test_few_scenarios_prove_nothing() -> None:
    found = compare(result({"a": [0.0], "b": [0.0]}), result({"a": [1.0], "b": [1.0]}))
    assert (found.difference, found.ci95, found.p_value) == (1, None, 0.5)
    assert not found.significant
    with pytest.raises(InvalidInput, match="different scenarios"):
        compare(result({"a": [0.0]}), result({"b": [0.0]}))
