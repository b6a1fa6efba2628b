"""`art.fit`: the loop, its resumption, and whose failures count."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from client_kit import KEY, FakeGateway

import art
from art.errors import InfraError, InvalidInput
from art.rollouts import fit as fit_module
from art.rollouts.fit import FitStep


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
    result = fit(model, rollout, [1, 2], on_step=told.append, config=art.TrainConfig(learning_rate=1e-3))
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
    assert {body["purpose"] for body in opened} == {"train"}
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
    assert [step.eval_reward for step in result.steps] == [None, 5.0, 5.0]
    rows = [body for body in gateway.bodies("/log") if body["split"] == "val"]
    assert [len(row["groups"][0]["trajectories"]) for row in rows] == [4, 4]
    evaluated = [body for body in gateway.bodies("/api/v1/rollouts") if body["purpose"] == "evaluate"]
    assert len(evaluated) == 8


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
    ("scenarios", "options"), [([], {}), ([1], {"steps": 0}), ([1], {"rollouts_per_group": 0})]
)
def test_nothing_to_do_is_an_error(
    model: art.TrainableModel[Any, Any], scenarios: list[int], options: dict[str, int]
) -> None:
    with pytest.raises(InvalidInput):
        fit(model, rollout, scenarios, **options)
