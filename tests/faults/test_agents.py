"""Faults of agents, clients and judges: each has a status and a reason, and costs nobody else anything."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import time
from collections.abc import Coroutine
from typing import Any

import pytest
from fault_kit import ask, held, raw_request, said, until, worker_pid
from train_kit import MODEL, Trained

import art

pytestmark = pytest.mark.slow


def program(trained: Trained, main: Any) -> Any:
    """Run `main(model)` as a user's program would."""

    async def run() -> Any:
        async with art.RemoteBackend(trained.server.url, trained.server.admin_key) as backend:
            model = art.TrainableModel(name="agents", project="p", base_model=trained.base_model)
            await model.register(backend)
            return await main(model)

    whole: Coroutine[Any, Any, Any] = run()
    return asyncio.run(whole)


def test_an_agent_raises(trained: Trained, case: Any) -> None:
    began = 0.0

    async def agent(session: Any, name: str) -> None:
        nonlocal began
        async with session:
            messages: list[Any] = [{"role": "user", "content": "yes or no?"}]
            client = session.openai_client()
            await client.chat.completions.create(model=name, messages=messages, max_tokens=8)
            began = time.monotonic()
            raise RuntimeError("the tool answered 500")

    async def main(model: Any) -> str:
        session = art.rollout(model)
        with pytest.raises(RuntimeError):
            await agent(session, model.name)
        return str(session.rollout_id)

    rollout_id = program(trained, main)
    row = trained.rollout(rollout_id)
    took = time.monotonic() - began
    assert row["status"] == "agent_error"
    assert "the tool answered 500" in row["reason"]
    assert row["reward"] is None, "a failure is no reward"
    assert len(row["calls"]) == 1, "what it had done is kept"
    case("agent raises", took, seen=f"{row['status']}: {row['reason']}")


def test_an_agent_never_calls(trained: Trained, case: Any) -> None:
    """It gets its status when it ends; a step of nothing else says why in one line, and counts the statuses."""

    async def main(model: Any) -> tuple[Any, float, list[str]]:
        trajectories, took = [], 0.0
        for reward in (0.0, 1.0):
            async with art.rollout(model) as session:
                session.reward = reward
                began = time.monotonic()
            took = max(took, time.monotonic() - began)
            trajectories.append(session.trajectory)
        result = await model.train([art.TrajectoryGroup(trajectories)])
        return result, took, [str(item.rollout_id) for item in trajectories]

    result, took, names = program(trained, main)
    for name in names:
        assert trained.rollout(name)["status"] == "no_calls"
    assert not result.published
    assert result.reason.startswith("no signal: 2 no_calls (")
    assert "\n" not in result.reason
    assert result.metrics["data/step_num_no_calls"] == 2
    assert result.metrics["data/step_num_trained"] == 0
    case("agent never calls", took, seen=result.reason)


def test_an_agent_calls_after_its_rollout_ended(trained: Trained, case: Any) -> None:
    opened = trained.api("POST", "rollouts", {"model": MODEL})
    path = f"/r/{opened['rollout_id']}/v1/chat/completions"
    body = {"model": "gpt-4o", "messages": [{"role": "user", "content": "still there?"}], "max_tokens": 4}
    assert trained.raw("POST", path, body).status_code == 200
    trained.api("POST", f"rollouts/{opened['rollout_id']}/finish", {})
    before = trained.rollout(opened["rollout_id"])
    began = time.monotonic()
    late = trained.raw("POST", path, body)
    took = time.monotonic() - began
    assert late.status_code == 409
    assert "has ended: finished" in said(late)
    assert trained.rollout(opened["rollout_id"]) == before, "nothing is added to what has ended"
    case("agent calls after its rollout ended", took, seen=said(late))


def test_a_client_vanishes_in_mid_stream(trained: Trained, case: Any) -> None:
    """A connection that is reset while tokens flow: the call ends, with what was sampled, and its slot is free."""
    before = {row[0] for row in trained.query("SELECT call_id FROM calls")}
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "tell me everything"}],
        "n": 8,  # at this temperature most of them go on and on
        "temperature": 5.0,
        "max_tokens": 900,
        "stream": True,
    }
    pid = worker_pid(trained, "engine")
    client = socket.create_connection(("127.0.0.1", trained.server.port))
    client.sendall(raw_request(trained, json.dumps(body).encode()))
    received = b""
    while b'"delta"' not in received:
        received += client.recv(65536)
    with held(pid):  # so that it cannot be over before the client is gone
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, no goodbye
        began = time.monotonic()
        client.close()
        new = until(lambda: {row[0] for row in trained.query("SELECT call_id FROM calls")} - before)
        took = time.monotonic() - began
    (call_id,) = new
    ends = trained.query("SELECT finish_reason, token_count FROM choices WHERE call_id = ?", call_id)
    assert {row[0] for row in ends} == {"cancelled"}
    assert sum(row[1] for row in ends) > 0
    until(lambda: trained.workers()["engine"]["stats"].get("running") == 0)
    case(
        "client vanishes in mid-stream",
        took,
        seen="(nobody is left to see it) the call is recorded as cancelled",
        lost="nothing that was sampled",
    )


def test_a_judge_never_answers(trained: Trained, case: Any) -> None:
    """Its deadline is that of the upstream's settings; the model goes on meanwhile."""
    rollout_id = trained.api("POST", "rollouts", {"model": MODEL})["rollout_id"]
    began = time.monotonic()
    answer = ask(trained, rollout_id, model="judge")
    took = time.monotonic() - began
    assert answer.status_code in (502, 504)
    assert "judge" in said(answer)
    assert ask(trained, rollout_id).status_code == 200, "its rollout goes on"
    (kept,) = trained.rollout(rollout_id)["upstream_calls"]
    assert kept["outcome"] == "failed"
    case("judge never answers (timeout 2 s)", took, seen=said(answer))
