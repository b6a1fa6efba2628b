"""`art.wrap`: every kind of agent, unchanged."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from client_kit import KEY, FakeGateway

import art
from art.errors import ConfigError, Conflict, InvalidInput, InvalidReward, UnsupportedOption
from art.rollouts.held_clients import held_clients

TASK = "Find the capital of France"


class PlainAgent:
    """Knows nothing of ART."""

    def run(self, task: str) -> list[dict[str, Any]]:
        return [
            {"type": "reasoning", "content": f"I need to: {task}"},
            {"type": "tool_call", "name": "search", "arguments": {"query": "capital of France"}},
            {"type": "tool_result", "content": "Paris"},
            {"type": "final_answer", "content": "Paris"},
        ]


def reward(trajectory: list[dict[str, Any]]) -> float:
    return 1.0 if trajectory[-1]["content"] == "Paris" else 0.0


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    with FakeGateway() as running:
        yield running


@pytest.fixture
def model(gateway: FakeGateway) -> art.TrainableModel[Any, Any]:
    made: art.TrainableModel[Any, Any] = art.TrainableModel(name="m", project="p", base_model="base")
    made.register(art.RemoteBackend(gateway.url, KEY))
    return made


@pytest.mark.parametrize(
    "agent", [PlainAgent(), PlainAgent, lambda: PlainAgent(), lambda task: PlainAgent().run(task)]
)
def test_a_plain_agent_gives_its_steps_and_its_reward(agent: Any) -> None:
    collected = art.wrap(agent, reward).collect_trajectory(TASK)
    assert collected["task"] == TASK
    assert len(collected["trajectory"]) == 4
    assert collected["reward"] == 1.0


def test_collecting_works_inside_a_running_loop() -> None:
    async def cell() -> float:
        return art.wrap(PlainAgent(), reward).collect_trajectory(TASK)["reward"]

    assert asyncio.run(cell()) == 1.0


class AsyncAgent:
    async def invoke(self, question: str) -> str:
        await asyncio.sleep(0)
        return question.upper()


async def async_reward(answer: str, question: str) -> float:
    await asyncio.sleep(0)
    return float(answer == question.upper())


def by_keyword(result: str, *, task: str) -> float:
    return float(task in result.lower())


def task_first(task: str, steps: str) -> float:
    return float(task in steps.lower())


@pytest.mark.parametrize("judge", [async_reward, by_keyword, task_first, lambda answer: len(answer) == 5])
def test_async_agents_and_rewards_that_take_the_task(judge: Any) -> None:
    assert art.wrap(AsyncAgent(), judge).collect_trajectory("paris")["reward"] == 1.0


def test_the_entry_can_be_named() -> None:
    class Solver:
        def solve(self, task: str) -> int:
            return len(task)

    assert art.wrap(Solver(), float, entry="solve").collect_trajectory("abc")["reward"] == 3
    with pytest.raises(ConfigError, match="entry="):
        art.wrap(Solver(), float)


@pytest.mark.parametrize("bad", [None, float("nan"), "high"])
def test_a_reward_that_is_no_number_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidReward, match="reward of PlainAgent"):
        art.wrap(PlainAgent(), lambda steps: bad).collect_trajectory(TASK)


def test_without_a_reward_the_agent_must_return_one() -> None:
    assert art.wrap(lambda task: 0.25).collect_trajectory("x")["reward"] == 0.25
    with pytest.raises(InvalidInput, match="without a reward"):
        art.wrap(PlainAgent()).collect_trajectory(TASK)


def test_a_reward_that_is_no_function_is_refused_at_once() -> None:
    with pytest.raises(InvalidInput, match="the reward is a float"):
        art.wrap(PlainAgent(), 1.0)  # type: ignore[arg-type]


def test_a_wrapped_agent_shows_what_it_wraps(model: art.TrainableModel[Any, Any]) -> None:
    assert repr(art.wrap(PlainAgent, reward)) == "WrappedAgent(factory PlainAgent, reward=reward)"
    assert repr(art.wrap(PlainAgent(), model=model)) == "WrappedAgent(agent PlainAgent, model=m)"


def test_an_unknown_isolation_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedOption, match="isolate='thread'"):
        art.wrap(PlainAgent, reward, isolate="thread")


def test_what_cannot_be_filled_is_named() -> None:
    class NeedsDatabase:
        def __init__(self, database: object, client: object) -> None: ...

        def run(self, task: str) -> str:
            return task

    with pytest.raises(ConfigError, match="database"):
        art.wrap(NeedsDatabase, reward)
    with pytest.raises(ConfigError, match="second"):
        art.wrap(lambda task, second: 0)
    with pytest.raises(ConfigError, match="asks for a client, but no model is attached"):
        art.wrap(lambda task, client: 0.0).collect_trajectory("x")
    with pytest.raises(ConfigError, match="asks for an async client, but"):
        art.wrap(with_async_client).collect_trajectory("x")


# -- with a model


def ask(client: openai.OpenAI, model: str = "gpt-4o") -> str:
    answer = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "well?"}])
    return answer.choices[0].message.content or ""


class EnvironmentAgent:
    """Makes its client from the environment, as most agents do."""

    def __init__(self) -> None:
        self.client = openai.OpenAI()

    def run(self, task: str) -> str:
        return ask(self.client)


class LazyAgent:
    def run(self, task: str) -> str:
        return ask(openai.OpenAI())


def with_client(task: str, client: openai.OpenAI) -> str:
    return ask(client)


async def with_async_client(task: str, client: Any, model_name: str) -> str:
    answer = await client.chat.completions.create(
        model=model_name, messages=[{"role": "user", "content": task}]
    )
    return answer.choices[0].message.content


def with_address(task: str, base_url: str, api_key: str) -> str:
    return ask(openai.OpenAI(base_url=base_url, api_key=api_key))


async def with_model(model: art.TrainableModel[Any, Any], scenario: str) -> str:
    answer = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=[{"role": "user", "content": scenario}]
    )
    return answer.choices[0].message.content or ""


AGENTS = [
    EnvironmentAgent,
    lambda: EnvironmentAgent(),
    lambda base_url, api_key: _Held(openai.OpenAI(base_url=base_url, api_key=api_key)),
    LazyAgent(),
    with_client,
    with_async_client,
    with_address,
    with_model,
]


class _Held:
    def __init__(self, client: openai.OpenAI) -> None:
        self.client = client

    def run(self, task: str) -> str:
        return ask(self.client)


@pytest.mark.parametrize("agent", AGENTS)
def test_every_kind_of_agent_calls_its_own_rollout(
    gateway: FakeGateway, model: art.TrainableModel[Any, Any], agent: Any
) -> None:
    before = dict(os.environ)
    wrapped = art.wrap(agent, lambda answer: float(answer == "yes"))
    trajectory = asyncio.run(wrapped.rollout(model, "well?"))
    assert trajectory.reward == 1.0
    assert trajectory.selects_rollout
    [call] = [
        (path, headers.get("x-art-rollout"))
        for _, path, _, headers in gateway.requests
        if path.endswith("/chat/completions")
    ]
    assert trajectory.rollout_id in {call[1], call[0].split("/")[2]}
    assert dict(os.environ) == before


@pytest.mark.parametrize("agent", [EnvironmentAgent, with_client, with_async_client, with_model])
def test_agents_told_by_argument_or_made_anew_run_in_parallel(
    gateway: FakeGateway, model: art.TrainableModel[Any, Any], agent: Any
) -> None:
    wrapped = art.wrap(agent, lambda answer: 1.0)
    assert not wrapped.exclusive

    async def run() -> list[art.Trajectory]:
        result: list[art.Trajectory] = await art.gather_trajectories(
            wrapped.rollout(model, f"task {i}") for i in range(6)
        )
        return result

    trajectories = asyncio.run(run())
    calls = [
        headers.get("x-art-rollout") or path.split("/")[2]
        for _, path, _, headers in gateway.requests
        if path.endswith("/chat/completions")
    ]
    assert sorted(calls) == sorted(str(trajectory.rollout_id) for trajectory in trajectories)


def test_an_instance_that_made_its_client_must_point_at_the_server(
    gateway: FakeGateway, model: art.TrainableModel[Any, Any]
) -> None:
    elsewhere = _Held(openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="k"))
    with pytest.raises(ConfigError, match="does not point at ART") as caught:
        asyncio.run(art.wrap(elsewhere, float).rollout(model, "x"))
    assert gateway.url in caught.value.hint

    here = _Held(openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=KEY))
    trajectory = asyncio.run(art.wrap(here, lambda answer: 1.0).rollout(model, "x"))
    assert gateway.headers(f"/r/{trajectory.rollout_id}/v1/chat/completions")
    assert str(here.client.base_url) == f"{gateway.url}/v1/"
    assert here.client.api_key == KEY


def test_an_instance_runs_one_at_a_time_and_says_so(model: art.TrainableModel[Any, Any]) -> None:
    running, go_on = threading.Event(), threading.Event()

    class Slow:
        def run(self, task: str) -> float:
            running.set()
            assert go_on.wait(20)
            return 1.0

    wrapped = art.wrap(Slow())
    assert wrapped.exclusive

    async def run() -> tuple[art.Trajectory, float]:
        first = asyncio.create_task(wrapped.rollout(model, "a"))
        await asyncio.to_thread(running.wait, 20)
        with pytest.raises(Conflict, match="already running") as caught:
            await wrapped.rollout(model, "b")
        assert "factory" in caught.value.hint
        go_on.set()
        return await first, (await wrapped.rollout(model, "c")).reward

    first, second = asyncio.run(run())
    assert (first.reward, second) == (1.0, 1.0)


def test_clients_are_found_where_agents_keep_them() -> None:
    client = openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="k")

    class Outer:
        def __init__(self) -> None:
            self.parts = {"llm": _Held(client)}
            self.me = self

    def closure(task: str) -> str:
        return ask(client)

    assert held_clients(Outer()) == [client]
    assert held_clients(closure) == [client]
    assert held_clients(PlainAgent()) == []


def test_a_failing_agent_raises_its_own_exception_and_is_recorded(
    gateway: FakeGateway, model: art.TrainableModel[Any, Any]
) -> None:
    def broken(task: str) -> float:
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        asyncio.run(art.wrap(broken).rollout(model, "x"))
    assert [body["status"] for body in gateway.bodies("/finish")] == ["agent_error"]


def test_a_returned_trajectory_selects_by_its_choices(model: art.TrainableModel[Any, Any]) -> None:
    async def rollout(model: art.TrainableModel[Any, Any], scenario: str) -> art.Trajectory:
        messages: list[Any] = [{"role": "user", "content": scenario}]
        answer = await model.openai_client().chat.completions.create(model="m", messages=messages)
        return art.Trajectory(
            messages_and_choices=[*messages, answer.choices[0]], reward=0.25, metrics={"turns": 1}
        )

    trajectory = asyncio.run(art.wrap(rollout).rollout(model, "x"))
    assert (trajectory.reward, trajectory.selects_rollout) == (0.25, False)
    assert trajectory.rollout_id
    assert trajectory.metrics["turns"] == 1


def test_collecting_with_a_model_gives_what_was_said_when_the_agent_returns_nothing(
    model: art.TrainableModel[Any, Any],
) -> None:
    def silent(task: str, client: openai.OpenAI) -> None:
        ask(client)

    collected = art.wrap(silent, lambda result: 0.5, model=model).collect_trajectory("x")
    assert [message["role"] for message in collected["trajectory"]] == ["user", "assistant"]
    assert collected["reward"] == 0.5
