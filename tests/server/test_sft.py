"""Supervised fine-tuning through a real server: rendered there, trained there, served from there."""

from __future__ import annotations

import asyncio
import io
import json
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from train_kit import ENVIRONMENT, Trained

import art
from art.demo import cold
from art.demo.live import Display
from art.demo.run import Runner
from art.errors import InvalidInput

ANSWERS = {"is snow cold?": "yes", "do fish fly?": "no", "will it rain?": "maybe"}


def example(question: str, answer: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"conversations": [{"messages": messages}]}


EXAMPLES = [example(*pair) for pair in ANSWERS.items()]


@pytest.fixture
def pupil(taught: Trained) -> str:
    """A model of the test's own."""
    name = f"sft-{uuid.uuid4().hex[:8]}"
    taught.register(name)
    return name


def submit(taught: Trained, name: str, *, key: str | None = None, **body: Any) -> Any:
    headers = {} if key is None else {"Idempotency-Key": key}
    return taught.raw(
        "POST", "/api/v1/jobs/sft", {"project": "p", "name": name, "examples": EXAMPLES, **body}, **headers
    )


def result(taught: Trained, name: str, **body: Any) -> dict[str, Any]:
    answer = submit(taught, name, **body)
    assert answer.status_code == 200, answer.text
    job = taught.finished(answer.json()["job_id"])
    assert job["status"] == "succeeded", job["error"]
    return dict(job["result"])


def test_after_a_rollback_the_steps_that_were_published_stay(taught: Trained, pupil: str) -> None:
    for step in (1, 2):
        assert result(taught, pupil)["step"] == step
    taught.api("POST", f"models/p/{pupil}/rollback", {"step": 0})
    assert result(taught, pupil)["step"] == 3
    found = taught.api("GET", f"models/p/{pupil}/checkpoints")["checkpoints"]
    assert [one["step"] for one in found] == [0, 1, 2, 3]
    assert all(Path(one["path"], "adapter_model.safetensors").is_file() for one in found)
    assert json.loads(Path(found[3]["path"], "manifest.json").read_text())["parent_step"] == 0


def test_the_client_teaches_answers_and_the_server_gives_them(taught: Trained, pupil: str) -> None:
    async def teach() -> tuple[Any, dict[str, str]]:
        async with art.RemoteBackend(taught.server.url, taught.server.admin_key) as backend:
            model = art.TrainableModel(name=pupil, project="p", base_model=taught.base_model)
            await model.register(backend)
            lessons = [
                art.Trajectory(
                    messages_and_choices=[
                        {"role": "user", "content": question},
                        {"role": "assistant", "content": answer},
                    ]
                )
                for question, answer in ANSWERS.items()
            ]
            done = await model.train_sft(
                lessons * 60, config=art.TrainSFTConfig(learning_rate=1e-2, batch_size=3)
            )
            said = {}
            for question in ANSWERS:
                completion = await model.openai_client().chat.completions.create(
                    model=model.get_inference_name(),
                    messages=[{"role": "user", "content": question}],
                    max_tokens=8,
                    temperature=0,
                )
                said[question] = completion.choices[0].message.content or ""
            assert model.get_inference_name() == f"{pupil}@1"
            return done, said

    done, said = asyncio.run(teach())
    assert (done.step, done.published, done.batch) == (1, True, 1)
    assert done.metrics["data/step_num_gradient_steps"] == 60
    assert done.metrics["data/step_num_trajectories"] == 180
    assert said == ANSWERS
    history = taught.server.path / "p" / "models" / pupil / "history.jsonl"
    (row,) = [json.loads(line) for line in history.read_text().splitlines()]
    assert row["loss/train"] == done.metrics["loss/train"]
    assert row["step"] == 1


def test_a_job_is_idempotent_and_tells_how_it_goes(taught: Trained, pupil: str) -> None:
    first = submit(taught, pupil, key="once", config={"batch_size": 1}).json()
    assert first["kind"] == "sft"
    events = list(taught.events(first["job_id"]))
    assert [event["type"] for event in events][:2] == ["queued", "started"]
    assert events[-1]["type"] == "succeeded"
    assert "progress" in {event["type"] for event in events}
    again = submit(taught, pupil, key="once", config={"batch_size": 1}).json()
    assert again["job_id"] == first["job_id"]
    other = submit(taught, pupil, key="once")
    assert (other.status_code, other.json()["error"]["code"]) == (409, "conflict")
    job = taught.job(first["job_id"])
    assert (job["kind"], job["result"]["step"]) == ("sft", 1)
    assert any(note.startswith("learning_rate 0.001: chosen") for note in job["result"]["notes"])


def test_sft_and_rewards_follow_one_another(taught: Trained, pupil: str) -> None:
    assert result(taught, pupil)["step"] == 1
    group = taught.group([0.0, 1.0], model=f"p/{pupil}")
    assert taught.train([group], name=pupil)["step"] == 2
    assert result(taught, pupil)["step"] == 3


def test_what_is_too_long_is_left_out_and_said(taught: Trained, pupil: str) -> None:
    long = example("x" * 2000, "yes")
    done = result(taught, pupil, examples=[EXAMPLES[0], long], order=[0, 1, 0], config={"batch_size": 1})
    assert [(item["index"], item["status"]) for item in done["trajectories"]] == [(1, "overlong")]
    assert "the limit is 1024" in done["trajectories"][0]["reason"]
    assert done["metrics"]["data/step_num_dropped_trajectories"] == 1
    assert done["metrics"]["data/step_num_gradient_steps"] == 2
    nothing = result(taught, pupil, examples=[long])
    assert (nothing["published"], nothing["step"]) == (False, 1)
    assert "too long" in nothing["reason"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"examples": [EXAMPLES[0], {"conversations": [{"messages": [{"role": "user", "content": "a"}]}]}]}, "example 1: no message of it"),
        ({"examples": [{"conversations": [{"messages": []}]}]}, "example 0: `messages` must be"),
        ({"examples": []}, "cannot be right"),
        ({"order": [0, 3]}, "`order` names an example"),
        ({"order": [-1]}, "`order` names an example"),
        ({"config": {"learning_rate": [0.1], "batch_size": 1}}, "1 learning rates for 3 updates"),
        ({"config": {"learning_rate": 0}}, "cannot be right"),
        ({"config": {"epochs": 3}}, "cannot be right"),
        ({"name": "nobody"}, "nobody"),
    ],
)  # fmt: skip
def test_what_cannot_be_trained_is_refused_at_once(taught: Trained, body: dict[str, Any], said: str) -> None:
    answer = submit(taught, body.pop("name", "m"), **body)
    assert answer.status_code in (400, 404, 422), answer.text
    assert said in answer.json()["error"]["message"]


def test_the_client_says_which_trajectory_cannot_be_rendered(taught: Trained, pupil: str) -> None:
    async def teach() -> None:
        async with art.RemoteBackend(taught.server.url, taught.server.admin_key) as backend:
            model = art.TrainableModel(name=pupil, project="p", base_model=taught.base_model)
            await model.register(backend)
            await model.train_sft(
                [art.Trajectory(messages_and_choices=[{"role": "assistant", "content": "hi"}])]
            )

    with pytest.raises(InvalidInput, match="example 0: a trained answer is the first message"):
        asyncio.run(teach())


@pytest.mark.slow
def test_a_job_that_the_server_did_not_end_is_taken_up_again(
    start_art_server: Any, tiny_model_dir: Path
) -> None:
    server = start_art_server(engine="torch", environment=ENVIRONMENT)
    trained = Trained(server, tiny_model_dir)
    trained.register()
    job = submit(trained, "m", order=[0, 1, 2] * 100, config={"learning_rate": 1e-3}).json()
    for event in trained.events(job["job_id"]):
        if event["type"] == "progress" and event["data"]["phase"] in ("forward", "update"):
            break
    server.kill()
    server.start()
    again = Trained(server, tiny_model_dir)
    ended = again.finished(job["job_id"])
    assert (ended["status"], ended["attempts"]) == ("succeeded", 2)
    assert ended["result"]["step"] == 1
    assert ended["result"]["metrics"]["data/step_num_gradient_steps"] == 150
    assert again.steps() == [0, 1]
    server.stop()


def test_a_cold_start_publishes_nothing_before_the_demonstrations(taught: Trained, pupil: str) -> None:
    """A tiny model calls no tool, before and after: the stages, their figures, and what is trained when."""

    async def start() -> tuple[cold.ColdOutcome, int]:
        async with art.RemoteBackend(taught.server.url, taught.server.admin_key) as backend:
            model = art.TrainableModel(name=pupil, project="p", base_model=taught.base_model)
            await model.register(backend)
            few = replace(cold.TASK, groups_per_step=1, rollouts_per_group=2)
            with Display(Console(file=io.StringIO()), "test") as display:
                outcome = await cold.climb(Runner(few, model, 0, display), 1, 2, None)
            return outcome, await model.get_step()

    outcome, step = asyncio.run(start())
    assert [one.groups_with_signal for one in (outcome.base, outcome.taught, outcome.after)] == [0, 0, 0]
    assert outcome.base.groups == cold.PROBE_GROUPS
    assert outcome.refused.startswith("no signal: 16 zero_variance (")
    assert outcome.fine_tuning["data/step_num_gradient_steps"] == cold.DEMONSTRATIONS * cold.EPOCHS / 2
    assert step == 1, "the demonstrations alone"
    assert [record.published for record in outcome.records] == [False]
