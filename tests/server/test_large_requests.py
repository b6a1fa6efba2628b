"""Large requests: refused by their size where that is certain, read beside the event loop, in order all the same."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from chat_kit import Served, says

from art.errors import Overloaded
from art.server.off_loop import LARGE_BYTES, MAX_WAITING, OffLoop

PADDING = {"metadata": {"note": "x" * (LARGE_BYTES + 1)}}


def test_what_cannot_fit_is_refused_by_its_bytes(served: Served) -> None:
    for text in ("word " * 1_000_000, "ä" * 2_000_000):
        response = served.chat({"messages": says(text)})
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert "at least" in error["message"]
        assert "1023 are left" in error["message"]


def test_the_tail_of_a_conversation_is_bounded_too(served: Served) -> None:
    opened = served.open()
    path = f"/r/{opened['rollout_id']}/v1/chat/completions"
    first = served.raw("POST", path, {"model": "tests/alpha", "messages": says("count")}).json()
    said = {"role": "assistant", "content": first["choices"][0]["message"]["content"]}
    messages = [*says("count"), said, *says("x" * 1_000_000)]
    response = served.raw("POST", path, {"model": "tests/alpha", "messages": messages})
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert len(served.rollout(opened["rollout_id"])["calls"]) == 1


def test_a_large_request_is_answered_as_a_small_one(served: Served) -> None:
    opened = served.open(run_seed=7, scenario_id="large")
    path = f"/r/{opened['rollout_id']}/v1/chat/completions"
    body = {"model": "tests/alpha", "messages": says("count"), **PADDING}
    key = {"Idempotency-Key": "one"}
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: served.raw("POST", path, body, headers=key).json(), range(4)))
    assert all(answer == answers[0] for answer in answers)
    small = served.raw("POST", path, {"model": "tests/alpha", "messages": says("count")}).json()
    assert answers[0]["prompt_token_ids"] == small["prompt_token_ids"]
    assert [call["number"] for call in served.rollout(opened["rollout_id"])["calls"]] == [0, 1]


def test_large_work_leaves_the_loop_and_small_work_does_not_wait() -> None:
    async def main() -> None:
        beside, here = OffLoop(), threading.get_ident()
        assert await beside.run(LARGE_BYTES, threading.get_ident) == here
        assert await beside.run(LARGE_BYTES + 1, threading.get_ident) != here
        gate = threading.Event()
        waiting = [
            asyncio.ensure_future(beside.run(LARGE_BYTES + 1, gate.wait, 60)) for _ in range(MAX_WAITING)
        ]
        await asyncio.sleep(0)
        assert await beside.run(1, threading.get_ident) == here  # the loop goes on meanwhile
        with pytest.raises(Overloaded):
            await beside.run(LARGE_BYTES + 1, threading.get_ident)
        gate.set()
        assert all(await asyncio.gather(*waiting))

    asyncio.run(main())
