"""`art.evaluate` and `art eval` against a real server, as its own model and as any OpenAI-compatible service."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from chat_kit import FRUITS, Served

import art
from art.errors import InvalidInput
from art.evals import EvalResult

SCENARIOS = [{"id": "fruit", "ask": "a fruit"}, {"id": "greet", "ask": "greet"}]


async def rollout(model: art.Model[Any, Any], scenario: dict[str, str]) -> float:
    completion = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=[{"role": "user", "content": scenario["ask"]}]
    )
    return float(completion.choices[0].message.content in FRUITS)


def agent(task: dict[str, str], client: Any, model_name: str) -> str:
    """Synchronous, and handed a client."""
    completion = client.chat.completions.create(
        model=model_name, messages=[{"role": "user", "content": task["ask"]}]
    )
    return str(completion.choices[0].message.content)


def plain(served: Served) -> art.Model[Any, Any]:
    """The server as a service that is only known by its URL."""
    return art.Model(
        name="service",
        project="p",
        inference_base_url=f"{served.server.url}/v1",
        inference_api_key=served.server.admin_key,
        inference_model_name="tests/alpha",
    )


def evaluate(served: Served, function: Any, scenarios: Sequence[Any], **options: Any) -> EvalResult:
    async def run() -> EvalResult:
        async with art.RemoteBackend(served.server.url, served.server.admin_key) as backend:
            model = art.TrainableModel(name="alpha", project="tests", base_model=served.base_model)
            await model.register(backend)
            return await art.evaluate(model, function, scenarios, **options)

    return asyncio.run(run())


def test_runs_are_evaluation_rollouts_with_their_tokens(served: Served) -> None:
    found = evaluate(served, rollout, SCENARIOS, repeats=3)
    assert found.model == "tests/alpha@0"
    assert found.rewards == {"fruit": [1, 1, 1], "greet": [0, 0, 0]}
    assert (found.mean, found.pass_at_k) == (0.5, {1: 0.5, 2: 0.5, 3: 0.5})
    assert found.ci95 == (0, 1), "two scenarios say little"
    for run in found.runs:
        record = served.api("GET", f"rollouts/{run.rollout_id}")
        assert (record["purpose"], record["status"], record["reward"]) == (
            "evaluate",
            "evaluated",
            run.reward,
        )
        assert (run.calls, run.prompt_tokens) == (1, record["calls"][0]["prompt_token_count"])
        assert run.completion_tokens > 0
        assert run.seconds > 0
    history = served.api("GET", "models/tests/alpha/history")["rows"]
    assert history[-1]["val/reward"] == 0.5


def test_any_service_is_evaluated_by_the_same_agent(served: Served) -> None:
    async def run(function: Any, **options: Any) -> EvalResult:
        return await art.evaluate(plain(served), function, SCENARIOS, split=None, **options)

    first = asyncio.run(run(rollout, repeats=2))
    second = asyncio.run(run(agent, reward=lambda answer: float(answer in FRUITS)))
    assert first.model == second.model == "tests/alpha"
    assert first.means == second.means == {"fruit": 1, "greet": 0}
    for found in (first, second):
        assert all(run.calls == 1 for run in found.runs)
        assert all(run.prompt_tokens > 0 and run.completion_tokens > 0 for run in found.runs)
    comparison = art.evals.compare(first, second)
    assert (comparison.difference, comparison.significant) == (0, False)
    with pytest.raises(InvalidInput, match="has no steps"):
        asyncio.run(run(rollout, step=1))


def test_an_agent_that_raises_is_counted_and_does_not_count_as_zero(served: Served) -> None:
    async def breaks(model: art.Model[Any, Any], scenario: dict[str, str]) -> float:
        if scenario["id"] == "greet":
            raise RuntimeError("no idea")
        return await rollout(model, scenario)

    found = evaluate(served, breaks, SCENARIOS, max_exceptions=1)
    assert (found.mean, found.failures) == (1, 1)
    assert "RuntimeError: no idea" in "\n".join(found.lines())
    with pytest.raises(RuntimeError, match="no idea"):
        evaluate(served, breaks, SCENARIOS, max_exceptions=0)


@pytest.mark.parametrize(
    ("scenarios", "options", "said"),
    [
        ([], {}, "at least one scenario"),
        ("text", {}, "was given a str"),
        (SCENARIOS, {"repeats": 0}, "repeats is 0"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(
    served: Served, scenarios: Any, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidInput, match=said):
        asyncio.run(art.evaluate(plain(served), rollout, scenarios, **options))


# -- the command

AGENT = f"""
    FRUITS = {FRUITS!r}

    async def rollout(model, scenario):
        completion = await model.openai_client().chat.completions.create(
            model=model.get_inference_name(), messages=[{{"role": "user", "content": scenario["ask"]}}]
        )
        return float(completion.choices[0].message.content in FRUITS)
"""


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "eval_agent.py").write_text(textwrap.dedent(AGENT))
    (folder / "held_out.jsonl").write_text("".join(json.dumps(one) + "\n" for one in SCENARIOS))
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "art.cli",
            "eval",
            "eval_agent:rollout",
            "--scenarios",
            "held_out.jsonl",
            *arguments,
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_command_prints_compares_and_fails(served: Served, tmp_path: Path) -> None:
    key = served.server.admin_key
    ours = ["--url", served.server.url, "--key", key, "--model", "tests/alpha@0"]
    first = command(tmp_path, *ours, "--repeats", "2", "--json")
    assert first.returncode == 0, first.stderr
    figures = json.loads(first.stdout)
    assert (figures["mean"], figures["model"], len(figures["scenarios"])) == (0.5, "tests/alpha@0", 2)
    (tmp_path / "first.json").write_text(first.stdout)

    service = ["--base-url", f"{served.server.url}/v1", "--api-key", key, "--model", "tests/alpha"]
    second = command(tmp_path, *service, "--against", "first.json", "--fail-under", "0.6")
    assert second.returncode == 3, second.stderr
    assert "tests/alpha: mean reward 0.5 (95 % 0 to 1) over 2 scenarios, 2 runs" in second.stdout
    assert "tests/alpha against tests/alpha@0: +0, within what chance explains" in second.stdout
    assert "is under 0.6" in second.stderr


def test_the_command_says_what_is_wrong(served: Served, tmp_path: Path) -> None:
    for arguments, said, status in (
        (["--base-url", "http://127.0.0.1:1/v1"], "--base-url needs --model", 2),
        (["--base-url", "http://127.0.0.1:1/v1", "--path", "x"], "--path would be ignored", 2),
        (["--against", "none.json"], "holds no evaluation", 1),
        (["--reward", "nowhere:reward"], "cannot be imported", 1),
    ):
        done = command(tmp_path, *arguments)
        assert (done.returncode, said in done.stderr) == (status, True), done.stderr
