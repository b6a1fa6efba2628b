"""`art.fit`: the loop, its resumption, and whose failures count."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from client_kit import KEY, FakeGateway

import art
from art.config.budget import Budget
from art.errors import ConfigError, InfraError, InvalidInput
from art.rollouts import fit as fit_module
from art.rollouts.fit_report import FitStep, nothing_learned, why
from art.types.wire import TrajectoryOutcome


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    with FakeGateway() as running:
        running.job_result = {"step": 1, "published": True, "batch": 0}
        yield running


@pytest.fixture
def model(gateway: FakeGateway) -> art.TrainableModel[Any, Any]:
    made: art.TrainableModel[Any, Any] = art.TrainableModel(name="m", project="p", base_model="base")
    made.register(art.RemoteBackend(gateway.url, KEY))
    return made


async def rollout(model: art.TrainableModel[Any, Any], scenario: int) -> float:
    await asyncio.sleep(0)
    return float(scenario)


def fit(model: art.TrainableModel[Any, Any], agent: Any, scenarios: Any, **options: Any) -> art.FitResult:
    options = {"steps": 2, "groups_per_step": 2, "rollouts_per_group": 3, "verbose": False, **options}
    return asyncio.run(art.fit(model, agent, scenarios, **options))


def test_it_runs_trains_logs_and_tells(gateway: FakeGateway, model: art.TrainableModel[Any, Any]) -> None:
    told: list[FitStep] = []
    result = fit(
        model, rollout, [1, 2], on_step=told.append, config=art.TrainConfig(learning_rate=1e-3), seed=5
    )
    assert (result.batch, result.step, result.checkpoint_path) == (2, 1, "/1")
    assert result.steps == told
    assert [step.batch for step in told] == [1, 2]
    assert [step.reward for step in told] == [1.5, 1.5]
    jobs = gateway.bodies("/jobs")
    assert [job["config"]["learning_rate"] for job in jobs] == [1e-3, 1e-3]
    for job in jobs:
        assert sorted({one["reward"] for group in job["groups"] for one in group["trajectories"]}) == [1, 2]
        assert [len(group["trajectories"]) for group in job["groups"]] == [3, 3]
        assert all(one["selects_rollout"] for group in job["groups"] for one in group["trajectories"])
    opened = gateway.bodies("/api/v1/rollouts")
    assert sorted(body["member"] for body in opened) == sorted([0, 1, 2] * 4)
    assert len({(body["group_id"], body["member"]) for body in opened}) == 12
    assert {(body["purpose"], body["run_seed"]) for body in opened} == {("train", 5)}
    assert len(gateway.bodies("/log")) == 2


def test_it_resumes_at_the_batch_the_server_has_counted(
    gateway: FakeGateway, model: art.TrainableModel[Any, Any]
) -> None:
    fit(model, rollout, list(range(10)), steps=1)
    first = gateway.bodies("/jobs")
    fit(model, rollout, list(range(10)), steps=3)
    later = gateway.bodies("/jobs")[1:]
    assert len(later) == 2
    fit(model, rollout, list(range(10)), steps=3)  # nothing is left to do
    assert len(gateway.bodies("/jobs")) == 3

    def ids(jobs: list[dict[str, Any]]) -> list[str]:
        return [group["metadata"]["scenario_id"] for job in jobs for group in job["groups"]]

    assert len(set(ids(first + later))) == 6  # no scenario comes again within the epoch


def test_evaluation_runs_apart_and_is_logged_as_val(
    gateway: FakeGateway, model: art.TrainableModel[Any, Any]
) -> None:
    result = fit(model, rollout, [1, 2], steps=3, eval_scenarios=[4, 6], eval_every=2, eval_rollouts=2)
    assert result.eval_reward_before == 5.0
    assert [step.eval_reward for step in result.steps] == [None, 5.0, 5.0]
    rows = [body for body in gateway.bodies("/log") if body["split"] == "val"]
    assert [[len(group["trajectories"]) for group in row["groups"]] for row in rows] == [[2, 2]] * 3
    assert all(row["metrics"]["time/step_eval_s"] >= 0 for row in rows)
    evaluated = [body for body in gateway.bodies("/api/v1/rollouts") if body["purpose"] == "evaluate"]
    assert len(evaluated) == 12
    again = fit(model, rollout, [1, 2], steps=4, eval_scenarios=[4, 6])  # the model has batches behind it
    assert again.eval_reward_before is None


def test_an_infrastructure_failure_is_retried_and_never_a_reward(
    gateway: FakeGateway, model: art.TrainableModel[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit_module, "RETRY_SECONDS", 0.0)
    failures = iter([True, False, True, True])

    async def flaky(model: art.TrainableModel[Any, Any], scenario: int) -> float:
        if next(failures, False):
            raise InfraError("the engine died")
        return float(scenario)

    fit(model, flaky, [1, 2], steps=1, max_exceptions=0)
    [job] = gateway.bodies("/jobs")
    assert [[one["reward"] for one in group["trajectories"]] for group in job["groups"]] in (
        [[1, 1, 1], [2, 2, 2]],
        [[2, 2, 2], [1, 1, 1]],
    )
    statuses = [body["status"] for body in gateway.bodies("/finish")]
    assert sorted(statuses) == ["finished"] * 6 + ["infra_error"] * 3
    assert len(gateway.bodies("/reward")) == 6
    # What runs in the place of a failed run says that it is the same one, so that it draws the same.
    places = [(body["seed_key"], body["member"]) for body in gateway.bodies("/api/v1/rollouts")]
    assert (len(places), len(set(places))) == (9, 6)


def test_an_infrastructure_that_stays_broken_ends_the_fit(
    gateway: FakeGateway, model: art.TrainableModel[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit_module, "RETRY_SECONDS", 0.0)

    async def broken(model: art.TrainableModel[Any, Any], scenario: int) -> float:
        raise InfraError("the engine died")

    with pytest.raises(InfraError, match="engine died"):
        fit(model, broken, [1], groups_per_step=1, rollouts_per_group=1, infra_retries=2)
    assert len(gateway.bodies("/api/v1/rollouts")) == 3
    assert gateway.bodies("/jobs") == []


def test_an_agents_own_exceptions_are_kept_up_to_the_bound(
    gateway: FakeGateway, model: art.TrainableModel[Any, Any]
) -> None:
    async def fails_once(model: art.TrainableModel[Any, Any], scenario: int) -> float:
        if scenario == 2 and not failed:
            failed.append(1)
            raise ValueError("cannot parse")
        return float(scenario)

    failed: list[int] = []
    [step] = fit(model, fails_once, [1, 2], steps=1).steps
    assert step.exceptions == 1
    [job] = gateway.bodies("/jobs")
    assert sorted(len(group["trajectories"]) for group in job["groups"]) == [2, 3]
    failed.clear()
    with pytest.raises(ValueError, match="cannot parse"):
        fit(model, fails_once, [1, 2], steps=2, max_exceptions=0)


def test_any_agent_will_do(gateway: FakeGateway, model: art.TrainableModel[Any, Any]) -> None:
    class Agent:
        def run(self, task: int) -> list[int]:
            return [task] * 3

    async def odd_names(m: Any, s: int) -> list[int]:
        return [s] * 3

    for agent in (Agent, Agent(), odd_names, art.wrap(Agent, len)):
        before = len(gateway.bodies("/jobs"))
        reward = None if not isinstance(agent, type | Agent) and agent is not odd_names else len
        fit(model, agent, [1, 2], steps=before + 1, reward=reward)
        assert {
            one["reward"] for group in gateway.bodies("/jobs")[-1]["groups"] for one in group["trajectories"]
        } == {3}


@pytest.mark.parametrize(
    ("scenarios", "options"),
    [
        ([], {}),
        ("one scenario", {}),
        ((number for number in range(3)), {}),
        ([1], {"steps": 0}),
        ([1], {"rollouts_per_group": 0}),
        ([1], {"eval_rollouts": 0}),
        ([1], {"reward": 1.0}),
    ],
)
def test_nothing_to_do_is_an_error(
    gateway: FakeGateway, model: art.TrainableModel[Any, Any], scenarios: Any, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInput):
        fit(model, rollout, scenarios, **options)
    assert gateway.requests == []  # the arguments are looked at before the server is asked


def test_a_first_batch_in_which_nobody_called_the_model_ends_the_fit(
    gateway: FakeGateway, model: art.TrainableModel[Any, Any]
) -> None:
    gateway.called = False
    with pytest.raises(InvalidInput, match=r"none of the first 6 runs called m"):
        fit(model, rollout, [1, 2])
    assert gateway.bodies("/jobs") == []  # nothing was trained, so nothing counts


def test_what_cannot_be_trained_is_refused_before_anything_runs(
    gateway: FakeGateway, model: art.TrainableModel[Any, Any]
) -> None:
    with pytest.raises(InvalidInput, match="not trainable"):
        fit(art.Model(name="gpt", project="p"), rollout, [1])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="config is a dict"):
        fit(model, rollout, [1], config={"learning_rate": 1e-3})
    assert gateway.requests == []


# -- what a person reads


def outcomes(*statuses: str) -> list[dict[str, Any]]:
    return [
        {"group": 0, "index": index, "rollout_id": None, "status": status}
        for index, status in enumerate(statuses)
    ]


def test_a_fit_that_is_stopped_says_where_it_goes_on(
    gateway: FakeGateway, model: art.TrainableModel[Any, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    gateway.batch = 1

    async def stop(model: Any, scenario: Any) -> float:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        fit(model, stop, [1], steps=5, verbose=True)
    assert "m: stopped after batch 1 of 5; run again, it goes on there\n" in capsys.readouterr().err


def test_a_fit_with_nothing_left_to_do_says_so(
    gateway: FakeGateway, model: art.TrainableModel[Any, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    gateway.batch = 2
    result = fit(model, rollout, [1], verbose=True)
    assert capsys.readouterr().err == (
        "m: all 2 batches are done already, and nothing was learned from them (step 0 is published); "
        "steps=3 or more goes on, another model name is a fresh start\n"
    )
    assert (result.steps, result.published, result.note) == ([], 0, "")
    fit(model, rollout, [1], steps=1, verbose=True)
    assert "m: 2 batches, more than steps=1, are done already" in capsys.readouterr().err
    fit(model, rollout, [1], steps=3, verbose=True)
    assert "m: resuming after batch 2 of 3, at step 0\n" in capsys.readouterr().err


def test_a_run_that_taught_nothing_is_explained_once_at_the_end(
    gateway: FakeGateway,
    model: art.TrainableModel[Any, Any],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    gateway.job_result = {
        "step": 0,
        "published": False,
        "batch": 0,
        "reason": "no signal: 6 zero_variance",
        "trajectories": outcomes(*["zero_variance"] * 6),
    }

    async def never_right(model: art.TrainableModel[Any, Any], scenario: int) -> float:
        return 0.0

    result = fit(model, never_right, [1, 2], verbose=True)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3  # none is folded
    assert lines[0].startswith("m: batch 1/2  step 0 (nothing published: all 6 runs got the same reward (0))")
    assert lines[2] == result.note
    assert "m: nothing was learned in 2 batches: all 12 runs got the same reward (0)." in result.note
    assert "The answer was always the like of 'yes'." in result.note
    assert "give part of the reward" in result.note
    assert result.published == 0
    assert result.steps[0].examples == ["yes"]
    assert repr(result) == (
        "FitResult(step=0, batch=2, published=0/2, reward=0.000->0.000, checkpoint_path='/0')"
    )
    assert "zero_variance" not in "".join(lines)


def test_a_step_is_one_short_line(gateway: FakeGateway, model: art.TrainableModel[Any, Any]) -> None:
    result = fit(model, rollout, [1, 2], steps=1)
    assert (result.published, result.note) == (1, "")
    line = repr(result.steps[0])
    assert line.startswith(
        "FitStep(batch=1, step=1, published=True, reward=1.500, trajectories=0, exceptions=0"
    )
    assert "\n" not in line


@pytest.mark.parametrize(
    ("statuses", "said"),
    [
        (["no_calls"] * 2, "2 runs made no call that can be trained"),
        (["zero_variance", "overlong"], "1 run longer than the model's context"),
        (["zero_variance"], "a group of one run has nothing to compare its reward with"),
        ([], "the server's own words"),
    ],
)
def test_why_nothing_was_published_is_said_in_words(statuses: list[str], said: str) -> None:
    report = FitStep(
        batch=1,
        step=0,
        published=False,
        reason="the server's own words",
        reward=0.0,
        reward_std_dev=0.0,
        exceptions=0,
        seconds=1.0,
        trajectories=[TrajectoryOutcome.model_validate(one) for one in outcomes(*statuses)],
    )
    assert said in why(report)
    assert said in nothing_learned("m", [report])


def test_equal_rewards_within_each_group_are_told_apart_from_one_reward_for_all() -> None:
    reports = [
        FitStep(
            batch=batch,
            step=0,
            published=False,
            reason="",
            reward=0.5,
            reward_std_dev=spread,
            exceptions=0,
            seconds=1.0,
            trajectories=[TrajectoryOutcome.model_validate(one) for one in outcomes(*["zero_variance"] * 4)],
            examples=["Yes.", "No."],
        )
        for batch, spread in ((1, 0.0), (2, 0.5))
    ]
    assert why(reports[0]) == "all 4 runs got the same reward (0.5)"
    assert why(reports[1]) == "the runs of each scenario got the same reward"
    note = nothing_learned("m", reports)
    assert "the runs of each scenario got the same reward" in note
    assert "Two of the answers: 'Yes.' and 'No.'." in note


COUNTED = {"time/step_trainer_s": 1.0, "data/step_actor_tokens": 40.0}
"""Of each train call."""


@pytest.mark.parametrize(
    ("budget", "batches", "told"),
    [
        ({"tokens": 80}, 2, "the budget of 80 tokens is used up: the run has sampled 80"),
        (Budget(tokens=81), 3, "sampled 120"),
        ({"seconds": 1e-9}, 1, "the run's steps took"),
        ({"usd": 1e-12}, 1, "the budget of 1e-12 USD is used up"),
        ({"tokens": 10**9}, 4, ""),
    ],
)
def test_a_budget_ends_the_run_after_the_batch_that_reaches_it(
    gateway: FakeGateway, budget: Any, batches: int, told: str
) -> None:
    gateway.job_result = {**gateway.job_result, "metrics": COUNTED}
    model: art.TrainableModel[Any, Any] = art.TrainableModel(name="m", project="p", base_model="base")
    model.register(art.RemoteBackend(gateway.url, KEY, gpu_cost_per_hour_usd=3600.0))
    result = fit(model, rollout, [1, 2], steps=4, budget=budget)
    assert len(result.steps) == batches
    assert told in result.stopped_by
    assert bool(result.stopped_by) == bool(told)


def test_a_budget_that_nothing_counts_against_is_said_once(
    gateway: FakeGateway, model: art.TrainableModel[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(fit_module, "say", told.append)
    gateway.job_result = {**gateway.job_result, "metrics": COUNTED}
    result = fit(model, rollout, [1, 2], steps=3, budget={"usd": 1.0}, verbose=True)
    assert (len(result.steps), result.stopped_by) == (3, "")
    assert len([line for line in told if "nothing of this run has a price" in line]) == 1


@pytest.mark.parametrize("budget", [{"euro": 1}, {"usd": 0}, {"tokens": 1.5}, {"seconds": -1}, 5])
def test_a_budget_that_cannot_be_is_refused_before_anything_runs(
    gateway: FakeGateway, model: art.TrainableModel[Any, Any], budget: Any
) -> None:
    with pytest.raises(ConfigError, match="budget"):
        fit(model, rollout, [1, 2], budget=budget)
    assert not gateway.bodies("/api/v1/rollouts")


def test_paid_models_are_counted_for_the_model_that_is_trained(
    gateway: FakeGateway, model: art.TrainableModel[Any, Any], tmp_path: Path
) -> None:
    model.base_path = str(tmp_path)
    gateway.job_result = {**gateway.job_result, "metrics": COUNTED}

    @art.metrics.track_api_cost(source="judge", provider="acme", model_name="m")
    async def judge(scenario: int) -> dict[str, Any]:
        return {"score": float(scenario), "usage": {"cost": 0.5}}

    async def judged(model: art.TrainableModel[Any, Any], scenario: int) -> float:
        return float((await judge(scenario))["score"])

    result = fit(model, judged, [1, 2], steps=1, eval_scenarios=[3])
    assert result.steps[0].metrics["costs/train/judge"] == 3.0  # six runs
    before, after = [row for row in gateway.bodies("/log") if row["split"] == "val"]
    assert before["metrics"]["costs/eval/judge"] == after["metrics"]["costs/eval/judge"] == 0.5
