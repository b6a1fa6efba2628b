"""SIGKILL at the worst moments. After a start on the same folder, port and keys the run goes on:
nothing that was answered is lost or doubled, and what was in flight is `infra_error`, never a reward.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from fault_kit import KILLED, runs, until
from train_kit import FINAL, MODEL, Trained

from art.store.store import Store

pytestmark = pytest.mark.slow


def kill_and_start_again(trained: Trained, *, before_start: Callable[[], None] = lambda: None) -> float:
    """SIGKILL the gateway, wait for its workers to notice, start on the same port with the same keys.

    Returns the seconds until its workers had ended.
    """
    port, key = trained.server.port, trained.server.admin_key
    pids = [item["pid"] for item in trained.workers().values() if item["pid"]]
    began = time.monotonic()
    trained.server.kill()
    until(lambda: not any(map(runs, pids)), 30)
    took = time.monotonic() - began
    before_start()
    trained.server.start()
    assert (trained.server.port, trained.server.admin_key) == (port, key)
    return took


def everything_is_readable(trained: Trained) -> None:
    """Every recorded call of the folder still has the tokens it was recorded with."""

    async def main() -> None:
        store = await Store.open(trained.server.path / "server")
        try:
            for (call_id,) in trained.query("SELECT call_id FROM calls"):
                call = await store.get_call(call_id)
                assert call is not None
                assert call.blob is not None
                arrays = await store.read_arrays(call.blob)
                assert len(arrays["prompt_token_ids"]) == call.prompt_token_count
                for choice in call.choices:
                    assert len(arrays[f"c{choice.index}.token_ids"]) == choice.token_count
        finally:
            await store.close()

    asyncio.run(main())


def place(trained: Trained) -> tuple[int, int]:
    """The model's step and batch."""
    model = trained.api("GET", f"models/{MODEL}")
    return model["step"], model["batch"]


def published_once(trained: Trained, *, step: int, batch: int) -> None:
    """The model stands at `step` and `batch`; its steps are there once each, whole, in order."""
    assert place(trained) == (step, batch)
    kept = [0, *range(max(1, step - 4), step + 1)]  # retention: the first, the last five
    assert trained.steps() == kept
    folders = sorted(path.name for path in trained.checkpoints_folder().iterdir())
    assert folders == [f"{number:04d}" for number in kept], "no half-written checkpoint is left"
    jobs = []
    for folder in folders:
        manifest = json.loads((trained.checkpoints_folder() / folder / "manifest.json").read_text())
        for name in manifest["files"]:
            assert (trained.checkpoints_folder() / folder / name).stat().st_size > 0
        jobs.append(manifest["job_id"])
    assert len(set(jobs)) == len(jobs), "no job published two steps"
    rows = trained.query("SELECT batch FROM batches WHERE name = 'm' ORDER BY batch")
    assert [row[0] for row in rows] == list(range(1, batch + 1))


def goes_on(trained: Trained, *, step: int, batch: int) -> None:
    """The next batch is the next step, sampled from the latest one."""
    group = trained.group([0.0, 1.0, 0.5])
    version = group["trajectories"][0]["messages_and_choices"][1]["art"]["version"]
    assert version == f"{MODEL}@{step}"
    result = trained.train([group])
    assert (result["step"], result["batch"], result["published"]) == (step + 1, batch + 1, True)
    assert {item["status"] for item in result["trajectories"]} == {"trained"}
    assert result["metrics"]["parity/mean"] < 1e-3


def test_during_a_gather(trained: Trained, case: Any) -> None:
    """Agents run in parallel: some are done, some wait for an answer, when the server dies."""
    step, batch = place(trained)
    done: dict[str, tuple[float, dict[str, Any]]] = {}
    lost: set[str] = set()
    seen: list[str] = []
    enough = threading.Event()
    halt = threading.Event()
    url, headers = trained.server.url, {"Authorization": f"Bearer {trained.server.admin_key}"}

    def agent(number: int) -> None:
        """Opens rollouts, one after another, of three calls and a reward; stops at the first failure."""
        with httpx2.Client(base_url=url, headers=headers, timeout=60) as client:
            while not halt.is_set():
                rollout_id = f"g{number}-{uuid.uuid4().hex[:10]}"
                body = {"model": MODEL, "rollout_id": rollout_id}
                lost.add(rollout_id)
                try:
                    opened = client.post("/api/v1/rollouts", json=body).raise_for_status().json()
                    for turn in range(3):
                        chat = {"model": MODEL, "messages": [{"role": "user", "content": f"turn {turn}?"}]}
                        key = {"Authorization": f"Bearer {opened['api_key']}"}
                        client.post(
                            f"/r/{rollout_id}/v1/chat/completions",
                            json={**chat, "max_tokens": 8},
                            headers=key,
                        ).raise_for_status()
                    reward = int(rollout_id[-4:], 16) / 0xFFFF  # all different
                    path = f"/api/v1/rollouts/{rollout_id}"
                    told = client.post(f"{path}/reward", json={"reward": reward}).raise_for_status().json()
                    client.post(f"{path}/finish", json={}).raise_for_status()
                except httpx2.HTTPError as error:
                    seen.append(f"{type(error).__name__}: {error}")
                    return
                lost.discard(rollout_id)
                done[rollout_id] = (reward, told)
                if len(done) >= 12:
                    enough.set()

    with ThreadPoolExecutor(6) as pool:
        agents = [pool.submit(agent, number) for number in range(6)]
        try:
            assert enough.wait(60), "the agents did not get going"
            took = kill_and_start_again(trained, before_start=halt.set)
        finally:
            halt.set()
        for item in agents:
            item.result(60)

    for rollout_id, (reward, told) in done.items():
        row = trained.rollout(rollout_id)
        assert (row["status"], row["reward"]) == ("finished", reward)
        assert row["calls"] == told["calls"], "the calls are the ones that were told, each once"
        assert len(row["calls"]) == 3
    assert lost, "no rollout was in flight"
    for rollout_id in lost:
        response = trained.raw("GET", f"/api/v1/rollouts/{rollout_id}")
        if response.status_code == 404:
            continue  # the server died before it had opened it
        row = response.json()
        # A reward that was written but not answered may be there; its rollout had not ended.
        assert row["status"] == "infra_error" or (row["status"] == "finished" and len(row["calls"]) == 3)
        if row["status"] == "infra_error":
            assert row["reason"] == "the server was stopped while it ran"
            chat = {"model": MODEL, "messages": [{"role": "user", "content": "still there?"}]}
            late = trained.raw("POST", f"/r/{rollout_id}/v1/chat/completions", chat)
            assert late.status_code == 409
            assert "infra_error" in late.json()["error"]["message"]
    everything_is_readable(trained)
    unanswered = "calls in flight; their rollouts are infra_error"
    case("gateway killed", took, seen=seen[0] if seen else "(nothing)", lost=unanswered, bound=KILLED)

    # The finished ones train as if nothing had happened.
    names = list(done)[:6]
    group = {
        "trajectories": [
            {"rollout_id": name, "selects_rollout": True, "reward": done[name][0]} for name in names
        ]
    }
    result = trained.train([group])
    assert result["published"]
    assert {item["status"] for item in result["trajectories"]} == {"trained"}
    published_once(trained, step=step + 1, batch=batch + 1)
    goes_on(trained, step=step + 1, batch=batch + 1)


@pytest.mark.parametrize("moment", ["started", "forward"])
def test_during_a_train_step(trained: Trained, moment: str) -> None:
    """The job is run again by itself and is the same step, batch and job; nothing of it happens twice."""
    step, batch = place(trained)
    group = trained.group([0.0, 1.0, 0.25, 0.75])
    pid = trained.trainer_pid()
    if moment == "started":  # held still, so that it cannot be over before the kill
        os.kill(pid, signal.SIGSTOP)
    job_id = trained.submit([group], key=moment).json()["job_id"]
    for event in trained.events(job_id):
        if event["type"] == moment or event["data"].get("phase") == moment or event["type"] == "succeeded":
            break
    kill_and_start_again(trained)

    job = trained.finished(job_id)
    assert job["status"] == "succeeded", job["error"]
    assert (job["result"]["step"], job["result"]["batch"]) == (step + 1, batch + 1)
    if moment == "started":
        assert job["attempts"] == 1, "the trainer that was killed had not taken it up"
        assert "restarted" in [event["type"] for event in trained.events(job_id)]
    assert trained.submit([group], key=moment).json()["job_id"] == job_id
    published_once(trained, step=step + 1, batch=batch + 1)
    for trajectory in group["trajectories"]:
        row = trained.rollout(trajectory["rollout_id"])
        assert (row["status"], row["reward"]) == ("trained", trajectory["reward"])
        assert [choice["fate"] for call in row["calls"] for choice in call["choices"]] == ["trained"]
    everything_is_readable(trained)
    goes_on(trained, step=step + 1, batch=batch + 1)


def freeze_while_writing(trained: Trained, pid: int, caught: threading.Event, halt: threading.Event) -> None:
    """Stop the trainer as soon as it has begun to write a checkpoint."""
    folder = trained.checkpoints_folder()
    while not halt.is_set():
        if any(not entry.name.isdecimal() for entry in os.scandir(folder)):
            os.kill(pid, signal.SIGSTOP)
            caught.set()
            return


def test_during_a_checkpoint_write(trained: Trained) -> None:
    """Killed with a half-written checkpoint on the disk: it is removed, and the step is trained again."""
    half_written = 0
    for _ in range(8):
        step, batch = place(trained)
        group = trained.group([0.0, 1.0, 0.5])
        caught, halt = threading.Event(), threading.Event()
        watcher = threading.Thread(
            target=freeze_while_writing, args=(trained, trained.trainer_pid(), caught, halt)
        )
        watcher.start()
        job_id = trained.submit([group]).json()["job_id"]
        while not caught.wait(0.2) and trained.job(job_id)["status"] not in FINAL:
            pass
        halt.set()
        watcher.join()
        if not caught.is_set():  # on a busy machine the write may be over between two looks
            assert trained.finished(job_id)["status"] == "succeeded"
            continue
        left: list[str] = []

        def look(left: list[str] = left) -> None:
            left += [
                path.name for path in trained.checkpoints_folder().iterdir() if not path.name.isdecimal()
            ]

        kill_and_start_again(trained, before_start=look)
        half_written += bool(left)
        job = trained.finished(job_id)
        assert job["status"] == "succeeded", job["error"]
        assert job["result"]["step"] == step + 1
        published_once(trained, step=step + 1, batch=batch + 1)
        if half_written:
            break
    assert half_written, "the trainer was never caught while it wrote"
    everything_is_readable(trained)
    goes_on(trained, step=step + 1, batch=batch + 1)
