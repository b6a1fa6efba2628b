"""Training jobs against a live server with the real engine, the real trainer and the tiny model."""

from __future__ import annotations

import json
import os
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from train_kit import ENVIRONMENT, MODEL, Trained


@pytest.fixture(scope="module")
def trained(start_art_server: Any, tiny_model_dir: Path) -> Iterator[Trained]:
    """The tests share one model, so they look at its step and batch before and after."""
    server = start_art_server(engine="torch", environment=ENVIRONMENT)
    trained = Trained(server, tiny_model_dir)
    trained.register()
    yield trained
    server.stop()


def status(result: dict[str, Any]) -> list[tuple[int, int, str]]:
    return [(item["group"], item["index"], item["status"]) for item in result["trajectories"]]


def fates(trained: Trained, rollout_id: str) -> list[str]:
    calls = trained.rollout(rollout_id)["calls"]
    return [choice["fate"] for call in calls for choice in call["choices"]]


def test_one_step_from_recorded_calls_to_a_served_version(trained: Trained) -> None:
    before = trained.api("GET", f"models/{MODEL}")
    group = trained.group([0.0, 1.0, 0.0, 1.0])
    # A call that nobody selects, in a rollout that is trained.
    first = group["trajectories"][0]["rollout_id"]
    trained.chat(first)
    response = trained.submit([group], key="one-step")
    job = response.json()
    events = list(trained.events(job["job_id"]))
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["queued", "started"]
    assert kinds[-1] == "succeeded"
    assert "progress" in kinds
    assert [event["id"] for event in events] == list(range(1, len(events) + 1))
    assert [event["id"] for event in trained.events(job["job_id"], after=2)] == list(
        range(3, len(events) + 1)
    )
    assert list(trained.events(job["job_id"], after=len(events))) == []

    result = trained.job(job["job_id"])["result"]
    assert (result["published"], result["step"]) == (True, before["step"] + 1)
    assert result["batch"] == before["batch"] + 1
    assert status(result) == [(0, index, "trained") for index in range(4)]
    assert any(note.startswith("learning_rate") for note in result["notes"]), "automatic choices are told"
    assert result["metrics"]["parity/mean"] < 1e-3
    after = trained.api("GET", f"models/{MODEL}")
    assert (after["step"], after["batch"]) == (result["step"], result["batch"])
    assert trained.chat()["art"]["version"] == f"{MODEL}@{result['step']}"
    assert fates(trained, first) == ["trained", "filtered"]
    row = trained.rollout(first)
    assert (row["status"], row["reward"]) == ("trained", 0.0)
    manifest = json.loads(Path(result["checkpoint_path"], "manifest.json").read_text())
    assert manifest["job_id"] == job["job_id"]
    listed = trained.api("GET", f"models/{MODEL}/checkpoints")["checkpoints"][-1]
    assert listed["metrics"]["parity/mean"] == result["metrics"]["parity/mean"]

    again = trained.submit([group], key="one-step").json()
    assert again["job_id"] == job["job_id"], "the same key is the same job"
    other = trained.submit([group, group], key="one-step")
    assert (other.status_code, other.json()["error"]["code"]) == (409, "conflict")
    assert trained.api("GET", f"models/{MODEL}")["batch"] == result["batch"]


def test_what_cannot_train_is_left_out_with_its_reason(trained: Trained) -> None:
    before = trained.api("GET", f"models/{MODEL}")
    good = trained.group([0.0, 1.0])
    handmade = {
        "index": 0,
        "finish_reason": "stop",
        "message": {"role": "assistant", "content": "never said"},
    }
    forged = {**handmade, "art": {"call_id": "call-forged", "choice": 0, "version": f"{MODEL}@0"}}
    nothing = {
        "trajectories": [
            {"messages_and_choices": [{"role": "user", "content": "x"}], "reward": 1.0},
            {"messages_and_choices": [handmade], "reward": 0.0},
            {"messages_and_choices": [forged], "reward": 0.5},
            {"messages_and_choices": [{"role": "assistant", "content": "no choice"}], "reward": 0.5},
        ]
    }
    alone = trained.group([1.0])
    flat = trained.group([0.5, 0.5, 0.5])
    result = trained.train([good, nothing, {"trajectories": []}, alone, flat])
    assert result["published"]
    assert result["step"] == before["step"] + 1
    found = {(item["group"], item["index"]): item for item in result["trajectories"]}
    assert [found[0, index]["status"] for index in range(2)] == ["trained"] * 2
    assert [found[1, index]["status"] for index in range(4)] == ["no_calls"] * 4
    assert "keep response.choices" in found[1, 0]["reason"]
    assert "no call of this server produced this choice" in found[1, 1]["reason"]
    assert "no call of this server produced this choice" in found[1, 2]["reason"]
    assert found[3, 0]["status"] not in ("trained", "finished")
    assert found[3, 0]["reason"]
    assert [found[4, index]["status"] for index in range(3)] == ["zero_variance"] * 3
    assert any("group 2 is empty" in note for note in result["notes"])
    flat_id = flat["trajectories"][0]["rollout_id"]
    assert trained.rollout(flat_id)["status"] == "zero_variance"


@pytest.mark.parametrize("kind", ["flat", "nothing", "no groups"])
def test_a_batch_without_signal_is_counted_and_publishes_nothing(trained: Trained, kind: str) -> None:
    before = trained.api("GET", f"models/{MODEL}")
    groups = {
        "flat": lambda: [trained.group([0.1, 0.1, 0.1])],
        "nothing": lambda: [{"trajectories": [{"messages_and_choices": [], "reward": 1.0}] * 2}],
        "no groups": list,
    }[kind]()
    result = trained.train(groups)
    assert not result["published"]
    assert result["reason"]
    assert (result["step"], result["batch"]) == (before["step"], before["batch"] + 1)
    after = trained.api("GET", f"models/{MODEL}")
    assert (after["step"], after["batch"]) == (before["step"], before["batch"] + 1)


def test_a_choice_that_lost_its_field_is_found_by_its_log_probabilities(trained: Trained) -> None:
    # Prompts of their own: the tiny model says little, and equal calls could not be told apart.
    prompts = [f"is {uuid.uuid4().hex} even?" for _ in range(2)]
    pair = [
        trained.trajectory(float(index), messages=[{"role": "user", "content": prompt}])
        for index, prompt in enumerate(prompts)
    ]
    rollouts = [trajectory.pop("rollout_id") for trajectory in pair]
    for trajectory in pair:
        for name in ("art", "token_ids"):
            trajectory["messages_and_choices"][1].pop(name)
    result = trained.train([{"trajectories": pair}])
    assert [item["rollout_id"] for item in result["trajectories"]] == rollouts
    assert {item["status"] for item in result["trajectories"]} == {"trained"}


def test_a_choice_that_could_be_several_calls_is_refused(trained: Trained) -> None:
    same = [trained.trajectory(reward, temperature=0.0) for reward in (0.0, 1.0)]
    for trajectory in same:
        for name in ("art", "token_ids", "logprobs"):
            trajectory["messages_and_choices"][1].pop(name)
        trajectory.pop("rollout_id")
    before = trained.api("GET", f"models/{MODEL}")
    response = trained.submit([{"trajectories": same}])
    assert response.status_code == 400
    error = response.json()["error"]
    assert "fits" in error["message"]
    assert "keep response.choices[0]" in error["hint"]
    assert trained.api("GET", f"models/{MODEL}") == before


def test_a_choice_in_two_trajectories_is_trained_once(trained: Trained) -> None:
    group = trained.group([0.0, 1.0])
    twin = {**group["trajectories"][0], "reward": 0.5}
    result = trained.train([{"trajectories": [*group["trajectories"], twin]}])
    assert [item["status"] for item in result["trajectories"]] == ["trained", "trained", "no_calls"]
    assert "earlier trajectory" in result["trajectories"][2]["reason"]
    row = trained.rollout(group["trajectories"][0]["rollout_id"])
    assert row["status"] == "trained", "what was trained stays so"


def test_a_rollout_is_selected_whole_without_its_choices(trained: Trained) -> None:
    group = trained.group([0.0, 1.0])
    for trajectory in group["trajectories"]:
        trained.chat(trajectory["rollout_id"], n=2)
        trajectory.update(messages_and_choices=[], selects_rollout=True)
    result = trained.train([group])
    assert status(result) == [(0, 0, "trained"), (0, 1, "trained")]
    for trajectory in group["trajectories"]:
        assert sorted(fates(trained, trajectory["rollout_id"])) == ["filtered", "trained", "trained"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"groups": [{"trajectories": [{"reward": None}]}]}, "invalid_reward"),
        ({"groups": [{"trajectories": [{"reward": 1.0, "rewrad": 2}]}]}, "invalid_input"),
        ({"config": {"learning_rte": 1e-3}}, "invalid_input"),
        ({"config": {"learning_rate": -1}}, "invalid_input"),
        ({"name": "ghost"}, "not_found"),
    ],
)
def test_bad_input_is_refused_before_anything_is_queued(trained: Trained, body: Any, code: str) -> None:
    (jobs,) = trained.query("SELECT COUNT(*) FROM jobs")
    response = trained.raw("POST", "/api/v1/jobs", {"project": "p", "name": "m", "groups": [], **body})
    assert response.status_code in (400, 404)
    assert response.json()["error"]["code"] == code
    assert trained.query("SELECT COUNT(*) FROM jobs") == [jobs]


def wait_for(trained: Trained, job_id: str, wanted: str) -> None:
    deadline = time.monotonic() + 60
    while trained.job(job_id)["status"] != wanted:
        assert time.monotonic() < deadline, trained.job(job_id)
        time.sleep(0.02)


def test_a_cancelled_job_publishes_nothing_and_the_next_one_runs(trained: Trained) -> None:
    before = trained.api("GET", f"models/{MODEL}")
    group = trained.group([0.0, 1.0])
    pid = trained.trainer_pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        running = trained.submit([group]).json()["job_id"]
        queued = trained.submit([group]).json()["job_id"]
        wait_for(trained, running, "running")
        assert trained.api("POST", f"jobs/{queued}/cancel")["status"] == "cancelled"
        # The cancellation waits for the trainer, which is stopped: it is heard when the trainer goes on.
        with pytest.raises(httpx2.ReadTimeout):
            trained.http.post(
                f"{trained.server.url}/api/v1/jobs/{running}/cancel",
                headers={"Authorization": f"Bearer {trained.server.admin_key}"},
                timeout=0.5,
            )
    finally:
        os.kill(pid, signal.SIGCONT)
    job = trained.finished(running)
    assert job["status"] in ("cancelled", "succeeded")
    published = int(job["status"] == "succeeded")
    assert trained.api("GET", f"models/{MODEL}")["step"] == before["step"] + published
    result = trained.train([group])
    assert result["step"] == before["step"] + published + 1
    assert trained.finished(queued)["status"] == "cancelled"


@pytest.mark.parametrize(
    ("base_model", "status", "code"),
    [
        ("/etc", 400, "invalid_input"),
        ("a" * 5000, 404, "not_found"),
        ("/" + "a" * 5000, 404, "not_found"),
        ("/nul\0byte", 404, "not_found"),
    ],
)
def test_a_base_model_that_is_none_is_refused(
    trained: Trained, base_model: str, status: int, code: str
) -> None:
    body = {"project": "p", "name": "none", "config": {"base_model": base_model}}
    answer = trained.raw("POST", "/api/v1/models", body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert answer.json()["error"]["hint"]


def test_a_latest_step_that_was_damaged_fails_the_job_and_says_what_is_there(trained: Trained) -> None:
    group = trained.group([0.0, 1.0])
    step = trained.train([group])["step"]
    optimizer = trained.checkpoints_folder() / f"{step:04d}" / "optimizer.safetensors"
    saved = optimizer.read_bytes()
    optimizer.write_bytes(saved[:-1])
    job = trained.finished(trained.submit([group]).json()["job_id"])
    assert (job["status"], job["error"]["code"]) == ("failed", "invalid_input")
    assert "are there" in job["error"]["hint"]
    assert f"art checkpoint rollback {step - 1} --model {MODEL}" in job["error"]["hint"]
    optimizer.write_bytes(saved)
    assert trained.train([group])["step"] == step + 1


@pytest.mark.slow
def test_cancelling_a_job_ends_a_trainer_that_does_not_answer(trained: Trained) -> None:
    before = trained.api("GET", f"models/{MODEL}")
    group = trained.group([0.0, 1.0])
    pid = trained.trainer_pid()
    os.kill(pid, signal.SIGSTOP)
    running = trained.submit([group]).json()["job_id"]
    wait_for(trained, running, "running")
    assert trained.api("POST", f"jobs/{running}/cancel")["status"] == "cancelled"
    assert trained.api("GET", f"models/{MODEL}")["step"] == before["step"]
    assert trained.train([group])["step"] == before["step"] + 1
    assert trained.trainer_pid() != pid


@pytest.mark.parametrize("size", [1e200, 1e308])
def test_rewards_of_any_finite_size_train_and_do_no_harm(trained: Trained, size: float) -> None:
    before = trained.api("GET", f"models/{MODEL}")["step"]
    result = trained.train([trained.group([size, -size])])
    assert (result["step"], result["published"]) == (before + 1, True)
    assert all(isinstance(value, float) for value in result["metrics"].values())
    assert trained.train([trained.group([0.0, 1.0])])["step"] == before + 2


def test_advantages_that_are_no_numbers_fail_the_job_and_nothing_else(trained: Trained) -> None:
    before = trained.api("GET", f"models/{MODEL}")["step"]
    group = trained.group([1e308, -1e308])
    answer = trained.submit([group], config={"normalize_advantages": False})
    job = trained.finished(answer.json()["job_id"])
    assert (job["status"], job["error"]["code"]) == ("failed", "training_failed")
    assert "not finite" in job["error"]["message"]
    assert trained.train([group])["step"] == before + 1


def test_a_killed_trainer_is_started_again_and_the_job_goes_on(trained: Trained) -> None:
    before = trained.api("GET", f"models/{MODEL}")
    group = trained.group([0.0, 1.0, 0.5])
    pid = trained.trainer_pid()
    os.kill(pid, signal.SIGSTOP)
    job_id = trained.submit([group]).json()["job_id"]
    wait_for(trained, job_id, "running")
    os.kill(pid, signal.SIGKILL)
    job = trained.finished(job_id)
    assert job["status"] == "succeeded", job["error"]
    assert job["attempts"] == 1, "the one that was killed had not taken it up"
    assert "restarted" in [event["type"] for event in trained.events(job_id)]
    assert job["result"]["step"] == before["step"] + 1
    assert job["result"]["batch"] == before["batch"] + 1
    assert trained.workers()["trainer"]["pid"] != pid


def test_retention_keeps_the_latest_and_the_last_few(trained: Trained) -> None:
    while trained.api("GET", f"models/{MODEL}")["step"] < 7:
        trained.train([trained.group([0.0, 1.0])])
    steps = trained.steps()
    latest = trained.api("GET", f"models/{MODEL}")["step"]
    assert steps[-5:] == list(range(latest - 4, latest + 1))
    on_disk = sorted(int(path.name) for path in trained.checkpoints_folder().iterdir())
    assert on_disk == steps
    missing = trained.raw("POST", "/v1/chat/completions", {"model": f"{MODEL}@1", "messages": []})
    assert missing.status_code in (400, 404)


def test_a_runs_figures_are_summed_up_once(trained: Trained) -> None:
    """What a batch's rollouts took is in its result, with what the run has come to; rows of it add nothing twice."""
    group = trained.group([0.0, 1.0, 0.0, 1.0])
    group["metadata"] = {"scenario_id": f"scenario {uuid.uuid4().hex}"}
    first = trained.finished(trained.submit([group]).json()["job_id"])["result"]["metrics"]
    other = trained.group([0.0, 1.0])
    other["metadata"] = group["metadata"]
    second = trained.finished(trained.submit([other]).json()["job_id"])["result"]["metrics"]

    calls = [call for item in group["trajectories"] for call in trained.rollout(item["rollout_id"])["calls"]]
    tokens = sum(choice["token_count"] for call in calls for choice in call["choices"])
    assert first["data/step_actor_tokens"] == tokens > 0
    assert first["data/step_num_calls"] == len(calls) == 4
    assert first["offpolicy/max_steps"] == 0
    began, ended = (f(call[at] for call in calls) for f, at in ((min, "started_at"), (max, "finished_at")))
    assert 0 < first["time/step_actor_s"] <= ended - began + 1e-6
    assert (
        second["data/cum/actor_tokens"] == first["data/cum/actor_tokens"] + second["data/step_actor_tokens"]
    )
    assert second["data/cum/num_trajectories"] == first["data/cum/num_trajectories"] + 2
    assert second["data/cum/num_unique_scenarios"] == first["data/cum/num_unique_scenarios"]
    trainer = second["data/cum/trainer_tokens"] / second["time/cum/trainer_s"]
    assert second["throughput/avg_trainer_tok_per_s"] == pytest.approx(trainer)

    row = {"costs/train/judge": 0.5, "time/step_wall_s": 2.0}
    body = {"split": "train", "step": 1, "groups": [], "metrics": {**second, **row}}
    logged = []
    for at in ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"):
        logged.append(trained.api("POST", f"models/{MODEL}/log", {**body, "recorded_at": at})["row"])
    assert logged[0] == logged[1], "the same request is the same row"
    costs = [answer["costs/cum/all"] for answer in logged]
    assert costs[2] - costs[0] == pytest.approx(0.5), "another row is another cost"
    for answer in logged:
        assert answer["data/cum/actor_tokens"] == second["data/cum/actor_tokens"], (
            "the train call counted them"
        )
