"""`art.wrap(agent, reward, isolate="process")`: agents in processes of their own."""

from __future__ import annotations

import asyncio
import os
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from client_kit import KEY, FakeGateway

import art
from art.errors import AgentFailed, ConfigError, InfraError, InvalidInput

AGENTS = """
    import dataclasses, os, sys, time, openai, art

    CLIENT = openai.OpenAI() if "OPENAI_BASE_URL" in os.environ else None
    HERE = []

    class Global:
        "Keeps its client in a global and its state in the process."
        def run(self, task):
            HERE.append(task)
            answer = CLIENT.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": task}])
            return {"pid": os.getpid(), "state": HERE, "says": answer.choices[0].message.content}

    class Told:
        def __init__(self, client, model_name: str):
            self.client, self.model_name = client, model_name
        def solve(self, task):
            self.client.chat.completions.create(model=self.model_name, messages=[{"role": "user", "content": task}])
            return self.model_name

    async def judged(task, client):
        answer = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": task}])
        return art.Trajectory(messages_and_choices=[{"role": "user", "content": task}, answer.choices[0]],
                              reward=0.5, metrics={"turns": 1})

    @dataclasses.dataclass
    class Answer:
        text: str

    def odd(task):
        print("this is on stdout and harms nothing")
        if task == "raise":
            raise KeyError("lost")
        if task == "infra":
            raise ConnectionError("the line is dead")
        if task == "exit":
            sys.exit(3)
        if task == "kill":
            os.kill(os.getpid(), 9)
        if task == "object":
            return object()
        if task == "key":
            return "ART_API_KEY" in os.environ
        if task == "sleep":
            open(os.environ["PID_FILE"], "w").write(str(os.getpid()))
            time.sleep(600)
        return Answer("fine")

    def needs_model(model: "art.Model", scenario):
        return 1.0
"""


@pytest.fixture(autouse=True)
def agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module of the user's own, found through sys.path alone."""
    (tmp_path / "my_agents.py").write_text(textwrap.dedent(AGENTS))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    yield "my_agents"
    sys.modules.pop("my_agents", None)


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    with FakeGateway() as running:
        yield running


@pytest.fixture
def model(gateway: FakeGateway) -> art.TrainableModel[Any, Any]:
    made: art.TrainableModel[Any, Any] = art.TrainableModel(name="m", project="p", base_model="base")
    made.register(art.RemoteBackend(gateway.url, KEY))
    return made


def isolated(name: str, reward: Any = None, **options: Any) -> Any:
    return art.wrap(f"my_agents:{name}", reward, isolate="process", **options)


def test_runs_side_by_side_share_nothing(gateway: FakeGateway, model: art.TrainableModel[Any, Any]) -> None:
    seen: list[dict[str, Any]] = []

    def reward(result: dict[str, Any], task: str) -> float:
        seen.append(result)
        return float(result["state"] == [task] and result["says"] == "yes")

    wrapped = isolated("Global", reward)
    assert not wrapped.exclusive

    async def run() -> list[art.Trajectory]:
        return await asyncio.gather(*(wrapped.rollout(model, f"task {n}") for n in range(3)))

    trajectories = asyncio.run(run())
    assert [trajectory.reward for trajectory in trajectories] == [1.0] * 3
    assert len({result["pid"] for result in seen} | {os.getpid()}) == 4
    calls = [path for _, path, _, _ in gateway.requests if path.endswith("/chat/completions")]
    assert sorted(calls) == sorted(f"/r/{t.rollout_id}/v1/chat/completions" for t in trajectories)
    assert repr(wrapped) == "WrappedAgent(process Global, reward=reward)"


def test_an_agent_is_given_what_it_asks_for(model: art.TrainableModel[Any, Any]) -> None:
    collected = isolated("Told", lambda name: 1.0, entry="solve", model=model).collect_trajectory("x")
    assert collected["trajectory"] == "p/m@0"


def test_a_trajectory_comes_back_as_one(model: art.TrainableModel[Any, Any]) -> None:
    trajectory = asyncio.run(isolated("judged").rollout(model, "x"))
    assert (trajectory.reward, trajectory.metrics["turns"]) == (0.5, 1)
    assert trajectory.messages_and_choices[1]["art"]["version"] == "p/m@0"


def test_a_class_is_sent_by_its_name(model: art.TrainableModel[Any, Any]) -> None:
    import my_agents  # type: ignore[import-not-found]

    assert my_agents.CLIENT is None
    wrapped = art.wrap(my_agents.Global, lambda result: 1.0, isolate="process")
    assert asyncio.run(wrapped.rollout(model, "x")).reward == 1.0
    assert my_agents.HERE == []


def test_without_a_model_it_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ART_API_KEY", "secret")
    assert isolated("odd", lambda answer: answer["text"] == "fine").collect_trajectory("x")["reward"] == 1.0
    assert isolated("odd", lambda has_key: not has_key).collect_trajectory("key")["reward"] == 1.0


@pytest.mark.parametrize(
    ("task", "kind", "said"),
    [
        ("raise", AgentFailed, "odd raised KeyError: 'lost'"),
        ("infra", InfraError, "the line is dead"),
        ("exit", AgentFailed, "exit status 3"),
        ("kill", AgentFailed, "killed by SIGKILL"),
        ("object", InvalidInput, "a object is no plain data"),
    ],
)
def test_what_goes_wrong_there_is_said_here(
    gateway: FakeGateway, model: art.TrainableModel[Any, Any], task: str, kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said):
        asyncio.run(isolated("odd", lambda answer: 1.0).rollout(model, task))
    status = "infra_error" if kind is InfraError else "agent_error"
    assert [body["status"] for body in gateway.bodies("/finish")] == [status]


def test_a_cancelled_rollout_ends_its_process(
    model: art.TrainableModel[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "pid"
    monkeypatch.setenv("PID_FILE", str(file))

    async def run() -> None:
        task = asyncio.create_task(isolated("odd", lambda answer: 1.0).rollout(model, "sleep"))
        while not file.exists() or not file.read_text():
            assert not task.done()
            await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(asyncio.wait_for(run(), 60))
    with pytest.raises(ProcessLookupError):
        os.kill(int(file.read_text()), 0)


def test_what_cannot_move_is_refused_with_what_to_do(model: art.TrainableModel[Any, Any]) -> None:
    class Local: ...

    for agent, cause in ((Local, "defined in a function"), (lambda task: 1.0, "defined in a function")):
        with pytest.raises(ConfigError, match=cause):
            art.wrap(agent, isolate="process")
    with pytest.raises(ConfigError, match="a Local cannot move"):
        art.wrap(Local(), isolate="process")
    with pytest.raises(ConfigError, match="no import path"):
        art.wrap("my_agents.Global", isolate="process")
    with pytest.raises(InvalidInput, match="it is no JSON"):
        isolated("odd", lambda answer: 1.0).collect_trajectory({1, 2})
    for path, said in (("my_agents:nobody", "does not exist"), ("no_such_module:A", "cannot be imported")):
        with pytest.raises(ConfigError, match=said):
            art.wrap(path, isolate="process", reward=lambda answer: 1.0).collect_trajectory("x")
    with pytest.raises(ConfigError, match="cannot be given the model object"):
        asyncio.run(isolated("needs_model").rollout(model, "x"))


def test_an_import_path_without_isolation_is_imported_here(model: art.TrainableModel[Any, Any]) -> None:
    wrapped = art.wrap("my_agents:Told", lambda name: float(name == "p/m@0"), entry="solve")
    assert asyncio.run(wrapped.rollout(model, "x")).reward == 1.0
    assert "my_agents" in sys.modules
    with pytest.raises(ConfigError, match="does not exist"):
        art.wrap("my_agents:nobody")
