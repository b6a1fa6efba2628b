"""Agents as their users write them, each in the environment of its own library, against one real server.

`make test-clients` sets up that environment and names its interpreter in ART_CLIENTS_PYTHON. Every program runs as one
rollout that it knows nothing of: it reads the usual environment variables. Then the rollout is read back and compared
with the engine's own log of the tokens it was given and sampled.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from forwarder import Forwarder
from zoo import ANSWER, PROGRAMS, SCRIPT, Program

import art
from art.rollouts.environment import child_environment
from art.store.blobs import BlobStore
from art.testing.server import ArtServer
from art.testing.tiny import tiny_model
from art.types.explain import Explanation
from art.types.tokens import BlobRef

HERE = Path(__file__).parent
PYTHON = os.environ.get("ART_CLIENTS_PYTHON", "")
TOKEN_LOG = "ART_ENGINE__TOKEN_LOG"
OFFLINE = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
"""LiteLLM fetches a price list when it is imported, and waits for it."""
SECONDS = 120
"""For one program; the slowest library needs ten to be imported."""
CONTEXT = 32_768
"""Tokens, which are bytes here; smolagents opens with a prompt of ten thousand."""
pytestmark = pytest.mark.absent(
    not PYTHON, reason="the clients' own environment, which `make test-clients` makes"
)


@dataclass
class Zoo:
    """A server, the way to it that is watched, and a model."""

    server: ArtServer
    forwarder: Forwarder
    model: art.TrainableModel[Any, Any]

    def api(self, path: str) -> Any:
        headers = {"Authorization": f"Bearer {self.server.admin_key}"}
        response = httpx2.get(f"{self.server.url}/api/v1/{path}", headers=headers, timeout=60)
        assert response.status_code == 200, response.text
        return response.json()

    def tokens(self, call: dict[str, Any]) -> tuple[list[int], list[int]]:
        """Prompt and sampled tokens of a call as the store has them, which is what the trainer reads."""
        blobs = BlobStore(self.server.path / "server" / "blobs")
        arrays = blobs.read(BlobRef.model_validate(call["blob"]))
        return arrays["prompt_token_ids"].tolist(), arrays["c0.token_ids"].tolist()

    def engine_log(self) -> list[tuple[list[int], list[int]]]:
        """Prompt and sampled tokens of every request, written by the engine itself."""
        log = Path(self.server.environment[TOKEN_LOG])
        records = [json.loads(line) for line in log.read_text().splitlines()]
        return [(record["prompt_token_ids"], record["token_ids"]) for record in records]


@contextmanager
def serve(folder: Path, base_model: Path, **options: Any) -> Iterator[Zoo]:
    """A server on a folder, and a model of its own on it."""
    with ArtServer(folder / "art", **options) as server:
        forwarder = Forwarder(server.port)
        with art.RemoteBackend(forwarder.url, server.admin_key) as backend:
            model: art.TrainableModel[Any, Any] = art.TrainableModel(
                name="zoo", project="clients", base_model=str(base_model)
            )
            model.register(backend)
            yield Zoo(server, forwarder, model)
        forwarder.close()


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zoo]:
    """With the scripted engine."""
    folder = tmp_path_factory.mktemp("clients")
    base_model = tiny_model(folder / "model", warm=False, context_length=CONTEXT)
    environment = {TOKEN_LOG: str(folder / "tokens.jsonl")}
    with serve(folder, base_model, script=SCRIPT, environment=environment) as zoo:
        yield zoo


def run(program: Program, *options: str, env: dict[str, str], folder: Path) -> dict[str, Any]:
    """The last line that the program prints. It must end well."""
    file = HERE / program.file
    starter = {".py": [PYTHON], ".mjs": ["node"], ".sh": ["sh"]}[file.suffix]
    done = subprocess.run(
        [*starter, str(file), *program.options, *options],
        env=child_environment({**env, **OFFLINE}),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, f"{program.name}: {done.stdout}\n{done.stderr}"
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def version(package: str) -> str:
    """The installed release."""
    if package == "curl":
        return subprocess.run(["curl", "--version"], capture_output=True, text=True).stdout.split()[1]
    if package.startswith("npm:"):
        manifest = HERE / "node" / "node_modules" / package.removeprefix("npm:") / "package.json"
        return str(json.loads(manifest.read_text())["version"])
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    done = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_program_ends_in_a_trainable_trajectory(
    zoo: Zoo, program: Program, tmp_path: Path, rows: list[dict[str, Any]]
) -> None:
    """Both ways at once: answers as a whole, and as a stream."""
    ways = [Row(program, version(program.package), streaming) for streaming in (False, True)]
    rows += [way.data for way in ways]
    with ThreadPoolExecutor(len(ways)) as pool:
        for done in [pool.submit(check, zoo, way, tmp_path) for way in ways]:
            done.result()


class Row:
    """What is known of one program in one way; a row of the table."""

    def __init__(self, program: Program, version: str, streaming: bool) -> None:
        self.program = program
        self.streaming = streaming
        self.data: dict[str, Any] = {
            "client": program.client,
            "version": version,
            "dialect": program.dialect,
            "streaming": streaming,
            "rewrites_history": program.rewrites,
            **{"calls": 0, "later_turns": 0, "from_memory": 0, "branches": 0, "ok": False},
        }


def check(zoo: Zoo, way: Row, folder: Path) -> None:
    """Run the program as a rollout and read back what was recorded."""
    program, streaming = way.program, way.streaming
    with art.rollout(zoo.model, scenario_id=program.name) as session:
        said = run(program, *(["--stream"] if streaming else []), env=session.env, folder=folder)
        session.reward = 1.0 if said["answer"] == ANSWER else 0.0
    assert said["answer"] == ANSWER
    exchanges = zoo.forwarder.of(session.rollout_id)
    assert [item for item in exchanges if item.status != 200] == []

    info = zoo.api(f"rollouts/{session.rollout_id}")
    calls = sorted(info["calls"], key=lambda call: call["number"])
    way.data |= compare(zoo, calls)
    assert (info["status"], info["reward"]) == ("finished", 1.0)
    assert len(calls) == len(exchanges) == program.calls
    assert {call["dialect"] for call in calls} == {program.dialect}
    assert way.data["branches"] == (program.calls if program.rewrites else 1)
    assert way.data["from_memory"] == (0 if program.rewrites else program.calls - 1)
    assert fates(zoo, session.rollout_id) == [("trainable", 1.0)] * program.calls
    way.data["ok"] = True


def fates(zoo: Zoo, rollout_id: str) -> list[tuple[str, float | None]]:
    """Fate and reward of each choice, as `art explain` tells them."""
    explained = Explanation.model_validate(zoo.api(f"rollouts/{rollout_id}/explain"))
    return [(choice.fate, choice.reward) for call in explained.calls for choice in call.choices]


def compare(zoo: Zoo, calls: list[dict[str, Any]]) -> dict[str, Any]:
    """Hold the recorded tokens against the engine's log and against one another."""
    log = zoo.engine_log()
    known = [zoo.tokens(call) for call in calls]
    for prompt, sampled in known:
        # Behind a stop string the engine may have sampled on.
        found = bool(sampled) and any(
            given == prompt and tokens[: len(sampled)] == sampled for given, tokens in log
        )
        assert found, "the engine never sampled what was recorded"
    reused = 0
    for before, after, earlier, later in zip(calls, calls[1:], known, known[1:], strict=False):
        tokens = earlier[0] + earlier[1]
        if after["reused_token_count"] >= len(tokens):
            assert later[0][: len(tokens)] == tokens
            assert after["parent_call_id"] == before["call_id"]
            reused += 1
    return {
        "calls": len(calls),
        "later_turns": len(calls) - 1,
        "from_memory": reused,
        "branches": len({call["branch"] for call in calls}),
    }


def test_a_refusal_would_be_seen(zoo: Zoo) -> None:
    """What the programs are held to: the forwarder notes the status of each answer."""
    with art.rollout(zoo.model) as session:
        headers = {"Authorization": f"Bearer {session.api_key}"}
        body = {"model": "gpt-4o", "messages": [{"role": "user", "content": "warmer"}]}
        for options in ({}, {"no_such_option": 1}):
            url = f"{session.base_url}/chat/completions"
            httpx2.post(url, json={**body, **options}, headers=headers, timeout=60)
    assert [item.status for item in zoo.forwarder.of(session.rollout_id)] == [200, 400]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["openai_chat", "anthropic_messages"])
def test_the_key_alone_says_which_rollout_it_is(zoo: Zoo, name: str, tmp_path: Path) -> None:
    """An agent whose base URL is the server's own."""
    (program,) = (item for item in PROGRAMS if item.name == name)
    with art.rollout(zoo.model) as session:
        root = {"OPENAI_BASE_URL": f"{zoo.server.url}/v1", "ANTHROPIC_BASE_URL": zoo.server.url}
        assert run(program, env={**session.env, **root}, folder=tmp_path) == {"answer": ANSWER}
    assert fates(zoo, session.rollout_id) == [("trainable", None)] * program.calls


@pytest.mark.slow
def test_what_a_program_said_is_trained(tmp_path: Path) -> None:
    """A real model behind the same program: a group of four runs, one step, every sampled token in it."""
    (program,) = (item for item in PROGRAMS if item.name == "openai_chat")
    with serve(tmp_path, tiny_model(tmp_path / "model"), engine="torch") as zoo:

        def one(reward: float) -> art.Trajectory:
            with art.rollout(zoo.model, scenario_id="warmer", limits={"max_calls": 4}) as session:
                assert isinstance(run(program, env=session.env, folder=tmp_path)["answer"], str)
                session.reward = reward
            return session.trajectory

        group = art.TrajectoryGroup([one(reward) for reward in (0.0, 1.0, 0.0, 1.0)])
        result = asyncio.run(zoo.model.train([group], config=art.TrainConfig(learning_rate=1e-4)))
        assert (result.step, result.published) == (1, True)
        for trajectory in group:
            explained = Explanation.model_validate(zoo.api(f"rollouts/{trajectory.rollout_id}/explain"))
            assert explained.status == "trained"
            choices = [choice for call in explained.calls for choice in call.choices]
            assert [(choice.fate, choice.trained_step) for choice in choices] == [("trained", 1)] * len(
                choices
            )
            assert all(choice.trained_tokens == choice.token_count > 0 for choice in choices)
