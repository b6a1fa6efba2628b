"""The client against a real server with a real (tiny) model: the loop, bad input, loops, processes, crashes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

import art
from art.errors import Conflict, InvalidReward, NotFound, Unauthorized
from art.testing.tiny import tiny_model

# Servers are started again and again; a machine busy with other work takes its time over that.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

SERVE = ["--engine", "torch"]
QUESTION: list[Any] = [{"role": "user", "content": "yes or no?"}]


@pytest.fixture(scope="module")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Random weights: what the model says does not matter here."""
    return str(tiny_model(tmp_path_factory.mktemp("model") / "tiny", warm=False, context_length=256))


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[art.LocalBackend]:
    with art.LocalBackend(path=tmp_path_factory.mktemp("art"), serve_args=SERVE) as running:
        yield running


@pytest.fixture(scope="module")
def model(backend: art.LocalBackend, base_model: str) -> art.TrainableModel[Any, Any]:
    made: art.TrainableModel[Any, Any] = art.TrainableModel(name="m", project="p", base_model=base_model)
    asyncio.run(made.register(backend))
    return made


def server_pid(path: Path) -> int:
    return int(json.loads((path / "server" / "server.json").read_text())["pid"])


async def ask(model: art.TrainableModel[Any, Any], **options: Any) -> Any:
    answer = await model.openai_client().chat.completions.create(
        **{
            "model": model.get_inference_name(),
            "messages": QUESTION,
            "max_tokens": 4,
            "temperature": 1.0,
            **options,
        }
    )
    return answer.choices[0]


async def rollout(model: art.TrainableModel[Any, Any], reward: float) -> art.Trajectory:
    choice = await ask(model)
    return art.Trajectory(messages_and_choices=[*QUESTION, choice], reward=reward)


async def gathered(model: art.TrainableModel[Any, Any], *rewards: float) -> list[art.TrajectoryGroup]:
    return await art.gather_trajectory_groups(
        [art.TrajectoryGroup(rollout(model, reward) for reward in rewards)], max_exceptions=0
    )


def test_gather_train_log_and_the_new_version_is_served(model: art.TrainableModel[Any, Any]) -> None:
    async def run() -> None:
        before = await model.get_step()
        groups = await gathered(model, 0.0, 1.0, 0.0)
        result = await model.train(groups, config=art.TrainConfig(learning_rate=1e-3))
        assert (result.step, result.published) == (before + 1, True)
        assert [outcome.status for outcome in result.trajectories] == ["trained"] * 3
        assert {outcome.rollout_id for outcome in result.trajectories} == {
            trajectory.rollout_id for trajectory in groups[0]
        }
        assert model.get_inference_name() == f"m@{before + 1}"
        choice = await ask(model)
        assert choice.art["version"] == f"p/m@{before + 1}"
        await model.log(await gathered(model, 0.25, 0.75), split="val")
        rows = await model.backend().connection.api.history("p", "m")
        assert rows[-2]["train/reward"] == pytest.approx(1 / 3)
        assert (rows[-1]["val/reward"], rows[-1]["step"]) == (0.5, before + 1)
        assert isinstance(result, art.LocalTrainResult)
        assert (Path(str(result.checkpoint_path)) / "adapter_model.safetensors").exists()

    asyncio.run(run())


def test_one_program_in_two_event_loops_and_from_synchronous_code(
    model: art.TrainableModel[Any, Any],
) -> None:
    assert asyncio.run(ask(model)).art["call_id"] != asyncio.run(ask(model)).art["call_id"]

    async def cell() -> float | None:
        """A notebook's cell: the loop runs already, and the code in it is synchronous."""
        with art.rollout(model) as session:
            session.sync_openai_client().chat.completions.create(
                model="gpt-4o", messages=QUESTION, max_tokens=3
            )
            session.reward = 1
        return session.trajectory.reward

    assert asyncio.run(cell()) == 1


def test_a_session_is_trained_by_its_record(model: art.TrainableModel[Any, Any]) -> None:
    wrapped = art.wrap(lambda task, client: _say(client, task), lambda text, task: float(task))

    async def run() -> art.TrainResult:
        group = await art.TrajectoryGroup(wrapped.rollout(model, str(reward)) for reward in range(3))
        return await model.train([group], config=art.TrainConfig(learning_rate=1e-3))

    result = asyncio.run(run())
    assert [outcome.status for outcome in result.trajectories] == ["trained"] * 3


def _say(client: openai.OpenAI, task: str) -> str | None:
    message: list[Any] = [{"role": "user", "content": task}]
    answer = client.chat.completions.create(model="gpt-4o", messages=message, max_tokens=4, temperature=0)
    return answer.choices[0].message.content


def test_fit_is_the_whole_loop_and_resumes(backend: art.LocalBackend, base_model: str) -> None:
    model: art.TrainableModel[Any, Any] = art.TrainableModel(name="fit", project="p", base_model=base_model)
    model.register(backend)
    wrapped = art.wrap(_say_async, lambda text: float(len(text or "") % 3))

    async def run(steps: int) -> art.FitResult:
        return await art.fit(
            model,
            wrapped,
            ["a", "b", "c"],
            steps=steps,
            groups_per_step=2,
            rollouts_per_group=4,
            config=art.TrainConfig(learning_rate=1e-3),
            eval_scenarios=["d"],
            verbose=False,
        )

    first = asyncio.run(run(1))
    assert (first.batch, len(first.steps)) == (1, 1)
    assert first.steps[0].eval_reward is not None
    second = asyncio.run(run(2))
    assert (second.batch, len(second.steps)) == (2, 1)
    assert asyncio.run(run(2)).steps == []


async def _say_async(task: str, client: openai.AsyncOpenAI) -> str | None:
    message: list[Any] = [{"role": "user", "content": task}]
    answer = await client.chat.completions.create(model="gpt-4o", messages=message, max_tokens=4)
    return answer.choices[0].message.content


# -- bad input


def handmade() -> dict[str, Any]:
    return {
        "index": 0,
        "finish_reason": "stop",
        "message": {"role": "assistant", "content": "I was never said"},
    }


def test_what_cannot_train_gets_a_status_and_a_reason_beside_what_can(
    model: art.TrainableModel[Any, Any],
) -> None:
    async def run() -> tuple[art.TrainResult, int]:
        good = (await gathered(model, 0.0, 1.0))[0]
        equal = (await gathered(model, 0.5, 0.5))[0]
        one = (await gathered(model, 1.0))[0]
        silent = art.TrajectoryGroup(
            [art.Trajectory(messages_and_choices=QUESTION, reward=r) for r in (0, 1)]
        )
        made_up = art.TrajectoryGroup(
            [art.Trajectory(messages_and_choices=[*QUESTION, handmade()], reward=r) for r in (0, 1)]
        )
        before = await model.get_step()
        groups = [art.TrajectoryGroup([]), good, equal, one, silent, made_up]
        return await model.train(groups, config=art.TrainConfig(learning_rate=1e-3)), before

    result, before = asyncio.run(run())
    assert (result.step, result.published) == (before + 1, True)
    statuses = [(outcome.group, str(outcome.status)) for outcome in result.trajectories]
    assert statuses[:4] == [(1, "trained"), (1, "trained"), (2, "zero_variance"), (2, "zero_variance")]
    assert [status for group, status in statuses if group >= 4] == ["no_calls"] * 4
    assert all(outcome.reason for outcome in result.trajectories if outcome.status != "trained")
    reasons = " ".join(outcome.reason for outcome in result.trajectories if outcome.group == 5)
    assert "no call of this server produced this choice" in reasons


def test_a_batch_without_signal_counts_and_publishes_nothing(model: art.TrainableModel[Any, Any]) -> None:
    async def run() -> None:
        before = await model.info()
        result = await model.train([art.TrajectoryGroup([]), *(await gathered(model, 1.0, 1.0))])
        after = await model.info()
        assert (result.step, result.published) == (before.step, False)
        assert result.reason
        assert (after.step, after.batch) == (before.step, before.batch + 1)

    asyncio.run(run())


def test_an_unknown_base_model_is_named(backend: art.LocalBackend) -> None:
    model: art.TrainableModel[Any, Any] = art.TrainableModel(
        name="x", project="p", base_model="/no/such/model"
    )
    with pytest.raises(NotFound, match="/no/such/model"):
        asyncio.run(model.register(backend))


def test_another_configuration_under_the_same_name_is_refused(
    backend: art.LocalBackend, model: art.TrainableModel[Any, Any], base_model: str
) -> None:
    other: art.TrainableModel[Any, Any] = art.TrainableModel(
        name="m", project="p", base_model=base_model, lora={"r": 2}
    )
    with pytest.raises(Conflict):
        asyncio.run(other.register(backend))


def test_a_prompt_over_the_context_is_refused_at_once(model: art.TrainableModel[Any, Any]) -> None:
    long: list[Any] = [{"role": "user", "content": "word " * 500}]
    with pytest.raises(openai.BadRequestError) as caught:
        asyncio.run(ask(model, messages=long))
    assert caught.value.code == "context_length_exceeded"
    assert "256" in str(caught.value)


def test_a_wrong_key_is_refused_everywhere(backend: art.LocalBackend, base_model: str) -> None:
    url = asyncio.run(backend.connection.endpoint()).url
    model: art.TrainableModel[Any, Any] = art.TrainableModel(name="m", project="p", base_model=base_model)
    with pytest.raises(Unauthorized) as caught:
        asyncio.run(model.register(art.RemoteBackend(url, "art-wrong")))
    assert caught.value.hint
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="art-wrong")
    with pytest.raises(openai.AuthenticationError):
        client.chat.completions.create(model="m", messages=QUESTION)


@pytest.mark.parametrize("bad", [float("nan"), None])
def test_a_reward_that_is_no_number_loses_nothing(model: art.TrainableModel[Any, Any], bad: Any) -> None:
    async def run() -> str:
        async with art.rollout(model) as session:
            await session.openai_client().chat.completions.create(model="m", messages=QUESTION, max_tokens=2)
            with pytest.raises(InvalidReward):
                session.reward = bad
            session.reward = 1.0
        info = await model.backend().connection.api.rollout(session.rollout_id)
        assert info.reward == 1.0
        return str(info.status)

    assert asyncio.run(run()) == "finished"


# -- processes


PROGRAM = """
import asyncio, json, sys, time
import art
backend = art.LocalBackend(path=sys.argv[1], serve_args=["--engine", "torch"])
model = art.TrainableModel(name=sys.argv[3], project="p", base_model=sys.argv[2])
async def main():
    await model.register(backend)
    answer = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=[{"role": "user", "content": "?"}], max_tokens=2)
    health = await backend.connection.api.health()
    print(json.dumps({"pid": health.pid, "version": answer.choices[0].art["version"]}), flush=True)
asyncio.run(main())
sys.stdin.read()  # hold the server until told
"""


def started(path: Path, base_model: str, name: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(path), base_model, name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_two_programs_started_at_once_share_a_server_that_stops_with_the_last(
    tmp_path: Path, base_model: str
) -> None:
    programs = [started(tmp_path, base_model, name) for name in ("a", "b")]
    said = [json.loads(program.stdout.readline()) for program in programs if program.stdout]
    assert said[0]["pid"] == said[1]["pid"] == server_pid(tmp_path)
    assert [one["version"] for one in said] == ["p/a@0", "p/b@0"]
    pid = said[0]["pid"]
    programs[0].kill()  # even one that cannot say goodbye
    programs[0].wait(10)
    time.sleep(4)  # longer than the server waits for its last client
    assert is_running(pid)
    programs[1].communicate("", timeout=10)
    wait_until(lambda: not is_running(pid))
    assert not (tmp_path / "server" / "server.json").exists()


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_until(true: Any, seconds: float = 30) -> None:
    give_up = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < give_up, "it did not happen"
        time.sleep(0.1)


def test_a_killed_server_is_started_again_and_the_program_goes_on(tmp_path: Path, base_model: str) -> None:
    async def run(backend: art.LocalBackend) -> None:
        model: art.TrainableModel[Any, Any] = art.TrainableModel(name="m", project="p", base_model=base_model)
        await model.register(backend)
        groups = await gathered(model, 0.0, 1.0)
        before = await backend.connection.endpoint()
        os.kill(server_pid(tmp_path), signal.SIGKILL)
        # The very next thing is a train call on what was gathered before.
        result = await model.train(groups, config=art.TrainConfig(learning_rate=1e-3))
        assert (result.step, result.published) == (1, True)
        assert await backend.connection.endpoint() == before
        assert (await ask(model)).art["version"] == "p/m@1"
        # And during a gather: what was in flight is lost, named, and run again.
        opened: list[str] = []
        ended: list[str] = []

        async def agent(task: str, session: Any) -> float:
            opened.append(session.rollout_id)
            if len(opened) == 3:
                os.kill(server_pid(tmp_path), signal.SIGKILL)
            await _say_async(task, session.openai_client())
            ended.append(session.rollout_id)
            return float(len(ended))

        result = await art.fit(
            model,
            agent,
            ["a"],
            steps=2,
            groups_per_step=1,
            rollouts_per_group=4,
            max_exceptions=0,
            verbose=False,
        )
        [step] = result.steps
        trained = [str(outcome.rollout_id) for outcome in step.trajectories]
        assert [str(outcome.status) for outcome in step.trajectories] == ["trained"] * 4
        api = backend.connection.api
        lost = {
            rollout_id: await api.rollout(rollout_id) for rollout_id in opened if rollout_id not in trained
        }
        assert len(lost) >= 2
        assert {str(info.status) for info in lost.values()} == {"infra_error"}
        assert {info.reward for info in lost.values()} == {None}

    with art.LocalBackend(path=tmp_path, serve_args=SERVE) as backend:
        asyncio.run(run(backend))


def test_a_folder_that_cannot_serve_says_why(tmp_path: Path, base_model: str) -> None:
    backend = art.LocalBackend(path=tmp_path, serve_args=["--no-such-flag"])
    model: art.TrainableModel[Any, Any] = art.TrainableModel(name="m", project="p", base_model=base_model)
    with pytest.raises(art.errors.ServerStartFailed) as caught:
        asyncio.run(model.register(backend))
    assert "no-such-flag" in caught.value.cause
    backend.close()
