"""A rollout that is finished while its agent's call is in flight: first the call ends, then it is decided what became of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from chat_kit import SCRIPT, Served, says

MODEL = "tests/alpha"


@pytest.fixture(scope="module")
def slow(start_art_server: Any, tiny_model_dir: Any) -> Iterator[Served]:
    """20 ms a token: `count` takes half a second, `slowly` far longer than a finish waits."""
    server = start_art_server(script={**SCRIPT, "token_delay_ms": 20})
    served = Served(server, str(tiny_model_dir))
    served.register("tests", "alpha")
    yield served
    server.stop()


def begin(served: Served, opened: dict[str, Any], text: str) -> Iterator[Any]:
    """The rest of a stream whose first words have come."""
    stream = served.agent(opened).chat.completions.create(model=MODEL, messages=says(text), stream=True)
    for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            return iter(stream)
    raise AssertionError("the stream said nothing")


def finish(served: Served, opened: dict[str, Any]) -> dict[str, Any]:
    return dict(served.api("POST", f"rollouts/{opened['rollout_id']}/finish", {}))


def test_a_call_in_flight_is_answered_and_counts(slow: Served) -> None:
    opened = slow.open()
    rest = begin(slow, opened, "count")
    ended = finish(slow, opened)
    assert ended["status"] == "finished"
    assert [call["choices"][0]["finish_reason"] for call in ended["calls"]] == ["stop"]
    assert [chunk.choices[0].finish_reason for chunk in rest][-1] == "stop"
    with pytest.raises(openai.ConflictError, match="has ended: finished"):
        slow.agent(opened).chat.completions.create(model=MODEL, messages=says("more"))


def test_a_call_that_takes_too_long_is_stopped_and_recorded(slow: Served) -> None:
    opened = slow.open()
    rest = begin(slow, opened, "slowly")
    ended = finish(slow, opened)
    assert ended["status"] == "finished"
    (call,) = ended["calls"]
    assert call["choices"][0]["finish_reason"] == "cancelled"
    assert call["choices"][0]["token_count"] > 0
    with pytest.raises(openai.APIError, match="is being ended"):
        list(rest)
    assert finish(slow, opened)["status"] == "finished"


def test_a_rollout_that_nobody_called_still_says_so(slow: Served) -> None:
    assert finish(slow, slow.open())["status"] == "no_calls"
