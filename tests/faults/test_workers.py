"""A killed worker is told within two seconds, a frozen one within fifteen; it is back afterwards, and nothing leaks."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from fault_kit import (
    FROZEN,
    KILLED,
    ask,
    children,
    descriptors,
    gateway_pid,
    runs,
    said,
    until,
    worker_pid,
)
from train_kit import MODEL, Trained

pytestmark = pytest.mark.slow

CALLS = 4


def first_failure(calls: list[Any], since: float) -> tuple[float, httpx2.Response | None]:
    """When the first of the calls came to grief, and all of them have ended."""
    answers = [(answer, at) for answer, at in (call.result() for call in calls) if answer.status_code != 200]
    if not answers:
        return 0.0, None
    answer, at = min(answers, key=lambda item: item[1])
    assert {item.status_code for item, _ in answers} == {503}
    return at - since, answer


def timed(trained: Trained) -> tuple[httpx2.Response, float]:
    answer = ask(trained)
    return answer, time.monotonic()


def test_a_killed_engine(trained: Trained, case: Any) -> None:
    """Held still first, so that its calls cannot be over; killed, its calls fail with the cause, and it is back."""
    opened = trained.api("POST", "rollouts", {"model": MODEL})["rollout_id"]
    assert ask(trained, opened).status_code == 200
    kept = trained.rollout(opened)
    restarts = trained.workers()["engine"]["restarts"]
    answer, took, deaths = None, 0.0, 0
    while answer is None:  # a call that had not arrived yet waits for the next engine
        assert (deaths := deaths + 1) < 4, "no call was ever in the engine"
        pid = worker_pid(trained, "engine")
        os.kill(pid, signal.SIGSTOP)
        with ThreadPoolExecutor(CALLS) as pool:
            calls = [pool.submit(timed, trained) for _ in range(CALLS)]
            time.sleep(0.5)
            began = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            took, answer = first_failure(calls, began)
    assert answer.json()["error"]["code"] == "worker_died"
    assert "SIGKILL" in answer.text
    assert ask(trained, opened).status_code == 200, "the rollout goes on with the next engine"
    after = trained.rollout(opened)
    assert after["calls"][0] == kept["calls"][0]
    assert trained.workers()["engine"]["restarts"] == restarts + deaths
    case(
        "engine killed",
        took,
        seen=said(answer),
        lost="calls in flight, which were not answered",
        bound=KILLED,
    )


def test_a_killed_trainer(trained: Trained, case: Any) -> None:
    """The job is run again by itself, and is trained once."""
    trained.register("trainer-killed")
    group = trained.group([0.0, 1.0, 0.5], model="p/trainer-killed")
    pid = worker_pid(trained, "trainer")
    os.kill(pid, signal.SIGSTOP)
    job_id = trained.submit([group], name="trainer-killed").json()["job_id"]
    until(lambda: trained.job(job_id)["status"] == "running")
    time.sleep(0.2)
    began = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    for event in trained.events(job_id):
        if event["type"] in ("restarted", "succeeded", "failed"):
            break
    took = time.monotonic() - began
    assert event["type"] == "restarted"
    job = trained.finished(job_id)
    assert (job["status"], job["result"]["step"]) == ("succeeded", 1), job["error"]
    assert job["result"]["metrics"]["data/step_num_trained"] == 3
    case("trainer killed", took, seen="(the job goes on) event: restarted", bound=KILLED)


def test_frozen_workers(trained: Trained, case: Any) -> None:
    """SIGSTOP of both: only missing heartbeats tell. Meanwhile the watchdog writes down what does not get on."""
    trained.register("frozen")
    group = trained.group([0.0, 1.0, 0.5], model="p/frozen")
    log = trained.server.path / "server" / "logs" / "gateway.log"
    written = log.stat().st_size
    engine, trainer = worker_pid(trained, "engine"), worker_pid(trained, "trainer")
    began = time.monotonic()
    for pid in (engine, trainer):
        os.kill(pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(timed, trained)
        job_id = trained.submit([group], name="frozen").json()["job_id"]
        for event in trained.events(job_id):
            if event["type"] in ("restarted", "succeeded", "failed"):
                break
        trainer_took = time.monotonic() - began
        answer, at = call.result()
    assert answer.status_code == 503
    assert "no heartbeat" in answer.text
    assert event["type"] == "restarted"
    assert not runs(engine)
    assert not runs(trainer)
    assert trained.finished(job_id)["status"] == "succeeded"
    assert ask(trained).status_code == 200
    lost = "calls in flight, which were not answered"
    case("engine frozen (SIGSTOP)", at - began, seen=answer.text[:600], lost=lost, bound=FROZEN)
    seen = "(the job goes on) event: restarted"
    case("trainer frozen (SIGSTOP)", trainer_took, seen=seen, bound=FROZEN)
    with log.open("rb") as file:
        file.seek(written)
        told = file.read().decode(errors="replace")
    assert "engine has 1 requests and has done none of them for" in told
    assert "the tasks of the gateway" in told
    assert "generation.py" in told, "the task of the call that waits"
    assert "Thread 0x" in told, "the threads of the gateway"


def test_nothing_is_left_of_the_dead(trained: Trained) -> None:
    """Descriptors and processes of a gateway whose engine has ended."""
    assert ask(trained).status_code == 200
    gateway = gateway_pid(trained)
    trained.api("GET", "health")
    before = descriptors(gateway)
    pid = worker_pid(trained, "engine")
    os.kill(pid, signal.SIGKILL)
    until(lambda: worker_pid(trained, "engine") != pid)
    until(lambda: len(children(gateway)) == 2)
    until(lambda: descriptors(gateway) <= before)
