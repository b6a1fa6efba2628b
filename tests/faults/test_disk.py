"""Faults of the disk and the clock: what was answered is kept and can be read, and the error says what to do."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fault_kit import SECONDS, Clock, Disk, ask, children, gateway_pid, held, locked, said, until, worker_pid
from train_kit import FINAL, MODEL, Trained

pytestmark = pytest.mark.slow

DAY = 24 * 3600.0


def with_reward(trained: Trained, reward: float, **options: Any) -> str:
    """A rollout whose reward was acknowledged."""
    rollout_id = trained.api("POST", "rollouts", {"model": MODEL})["rollout_id"]
    trained.chat(rollout_id, **options)
    trained.api("POST", f"rollouts/{rollout_id}/reward", {"reward": reward})
    return str(rollout_id)


def test_a_full_disk(trained: Trained, disk: Disk, case: Any) -> None:
    """Nothing can be written, everything can be read; a step that was being trained ends once there is room."""
    trained.register("full")
    kept = with_reward(trained, 0.75)
    opened = trained.api("POST", "rollouts", {"model": MODEL})["rollout_id"]
    group = trained.group([0.0, 1.0, 0.5], model="p/full")
    gateway, trainer = gateway_pid(trained), worker_pid(trained, "trainer")
    pids = [gateway, *children(gateway)]
    with held(trainer):
        job_id = trained.submit([group], name="full").json()["job_id"]
        until(lambda: trained.job(job_id)["status"] == "running")
        disk.fill(pids)
        began = time.monotonic()
        answer = ask(trained, opened)
        took = time.monotonic() - began
    try:
        refused = [
            answer,
            trained.raw("POST", "/api/v1/rollouts", {"model": MODEL}),
            trained.raw("POST", f"/api/v1/rollouts/{kept}/reward", {"reward": 0.1}),
            trained.raw("POST", f"/api/v1/rollouts/{opened}/finish", {}),
            trained.submit([group], name="full"),
        ]
        assert {item.status_code for item in refused} == {503}
        for item in refused:
            assert "the store" in said(item)
            assert "make room" in item.text if disk.mounted else "check the disk" in item.text
        row = trained.rollout(kept)
        assert (row["reward"], len(row["calls"])) == (0.75, 1), "it can be read meanwhile"
        assert trained.api("GET", "health")["status"] == "ok"
    finally:
        disk.free(pids)
    job = until(lambda: found if (found := trained.job(job_id))["status"] in FINAL else None)
    if job["status"] == "failed":
        assert "nothing was published" in str(job["error"])
        assert trained.train([group], name="full")["step"] == 1
    assert trained.rollout(kept)["reward"] == 0.75
    assert ask(trained, opened).status_code == 200
    assert with_reward(trained, 0.5)
    seen = f"{said(answer)}; a step in progress: {job['status']}"
    case(
        "disk full", took, seen=seen, lost="what was refused; a step that could not be written", how=disk.how
    )


def test_the_store_is_locked_by_another_process(trained: Trained, case: Any) -> None:
    kept = with_reward(trained, 0.25)
    with locked(trained.server.path / "server" / "art.db", sys.executable):
        began = time.monotonic()
        refused = trained.raw("POST", f"/api/v1/rollouts/{kept}/reward", {"reward": 0.5})
        took = time.monotonic() - began
        assert refused.status_code == 503
        assert "locked by another process" in said(refused)
        assert trained.rollout(kept)["reward"] == 0.25, "it can be read meanwhile"
    trained.api("POST", f"rollouts/{kept}/reward", {"reward": 0.5})
    assert trained.rollout(kept)["reward"] == 0.5
    case("SQLite locked by another process", took, seen=said(refused), lost="what was refused")


@pytest.fixture
def step_one(trained: Trained, clock: Clock) -> Iterator[Path]:
    """The folder of step 1 of the model `p/frail`, made a day ago; it is whole again afterwards."""
    trained.register("frail")
    trained.train([trained.group([0.0, 1.0, 0.5], model="p/frail")], name="frail")
    folder = trained.server.path / "p" / "models" / "frail" / "checkpoints" / "0001"
    files = {file: file.read_bytes() for file in folder.iterdir()}
    clock.set(DAY)  # files that were just made might still be on their way
    yield folder
    clock.set(0.0)
    folder.mkdir(exist_ok=True)
    for file, content in files.items():
        file.write_bytes(content)


def test_files_of_a_checkpoint(trained: Trained, step_one: Path, case: Any) -> None:
    """Gone while a session has it leased, with one bit flipped, and cut short: each is told before a token is sampled."""
    leased = trained.api("POST", "rollouts", {"model": "p/frail"})["rollout_id"]

    def call() -> tuple[Any, float]:
        began = time.monotonic()
        answer = ask(trained, leased, model="p/frail")
        return answer, time.monotonic() - began

    def refused(what: str) -> None:
        answer, took = call()
        assert answer.status_code == 503
        assert "p/frail@1 cannot be loaded" in said(answer)
        assert "p/frail@0" in answer.text, "what can be done about it"
        case(what, took, seen=answer.json()["error"]["message"])

    assert call()[0].status_code == 200
    away = step_one.rename(step_one.with_name("away"))
    assert call()[0].status_code == 200, "the engine holds what it has loaded"
    os.kill(worker_pid(trained, "engine"), signal.SIGKILL)
    until(lambda: ask(trained).status_code == 200)  # the engine is back, without the adapter
    refused("adapter folder deleted while leased")
    away.rename(step_one)
    weights = step_one / "adapter_model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(flipped(whole))
    refused("checkpoint file bit-flipped")
    weights.write_bytes(whole[:-7])
    refused("checkpoint file truncated")
    weights.write_bytes(whole)
    assert call()[0].status_code == 200, "whole again, it is served again"
    assert len(trained.rollout(leased)["calls"]) == 3

    optimizer = step_one / "optimizer.safetensors"
    whole = optimizer.read_bytes()
    optimizer.write_bytes(flipped(whole))
    group = trained.group([0.0, 1.0, 0.5], model="p/frail")
    began = time.monotonic()
    job = trained.finished(trained.submit([group], name="frail").json()["job_id"])
    took = time.monotonic() - began
    assert job["status"] == "failed"
    assert "damaged" in job["error"]["message"]
    case("optimizer file bit-flipped", took, seen=f"{job['error']['message']}. {job['error']['cause']}")
    optimizer.write_bytes(whole)
    assert trained.train([group], name="frail")["step"] == 2, "nothing of the batch was lost"


def flipped(content: bytes) -> bytes:
    """With the lowest bit of a byte near the end changed: the last bits of one number."""
    at = len(content) - 64
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def test_the_clock_jumps(trained: Trained, clock: Clock, case: Any) -> None:
    """A month forward and back again: no deadline, session, heartbeat or job goes by the wall clock."""
    trained.register("jumps")
    before = trained.workers()
    opened = trained.api("POST", "rollouts", {"model": "p/jumps", "limits": {"max_seconds": SECONDS * 10}})
    path = f"/r/{opened['rollout_id']}/v1/chat/completions"
    body = {"model": "m", "messages": [{"role": "user", "content": "what time is it?"}], "max_tokens": 4}
    key = {"Authorization": f"Bearer {opened['api_key']}"}
    slowest = 0.0
    try:
        for number, offset in enumerate((40 * DAY, -40 * DAY)):
            clock.set(offset)
            began = time.monotonic()
            assert trained.raw("POST", path, body, **key).status_code == 200
            slowest = max(slowest, time.monotonic() - began)
            result = trained.train([trained.group([0.0, 1.0, 0.5], model="p/jumps")], name="jumps")
            assert result["step"] == number + 1
    finally:
        clock.set(0.0)
    assert trained.raw("POST", path, body, **key).status_code == 200
    row = trained.rollout(opened["rollout_id"])
    assert row["status"] == "running"
    started = [call["started_at"] for call in row["calls"]]
    assert started[0] - started[2] > 30 * DAY, "the clock of the server did jump"
    assert started[2] - started[1] > 30 * DAY
    after = trained.workers()
    assert {name: item["pid"] for name, item in after.items()} == {
        name: item["pid"] for name, item in before.items()
    }
    case("clock jumps 40 days, both ways", slowest, seen="(nothing: calls, sessions and jobs go on)")
