"""A rollout that is finished while its agent's call is in flight: first the call ends, then it is decided what became of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from chat_kit import SCRIPT, Served, says

from art.errors import Conflict, InfraError
from art.server.api_rollouts import finish_rollout
from art.server.sessions import Sessions
from art.store.records import RolloutRow
from art.store.store import Store
from art.types.policy import RolloutStatus
from art.types.wire import FinishRollout

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


def test_a_finish_that_could_not_be_written_leaves_the_rollout_open(tmp_path: Path) -> None:
    class Full(Store):
        """The disk is full while `full`."""

        full = True

        async def finish_rollout(
            self, rollout_id: str, status: RolloutStatus = RolloutStatus.FINISHED, reason: str = ""
        ) -> RolloutRow:
            if self.full:
                raise InfraError("the store could not write", cause="disk full")
            return await super().finish_rollout(rollout_id, status, reason)

    async def main() -> None:
        store = await Full.open(tmp_path)
        assert isinstance(store, Full)
        nobody: Any = SimpleNamespace()
        sessions = Sessions(store, nobody, nobody, url="", max_waiting=1)
        entry: Any = SimpleNamespace(key=("p", "m"), sessions={0: 0})
        session = await sessions._start(
            RolloutRow(rollout_id="r", project="p", model="m", step=0), entry, aliases=True
        )
        call: Any = SimpleNamespace(
            body=lambda kind: FinishRollout(),
            param=lambda name: "r",
            gateway=SimpleNamespace(store=store, sessions=sessions),
            principal=SimpleNamespace(project=None),
        )
        with pytest.raises(InfraError, match="could not write"):
            await finish_rollout(call)
        with session.inside():
            pass  # the agent's next call is taken
        store.full = False
        assert (await finish_rollout(call)).status is RolloutStatus.NO_CALLS
        with pytest.raises(Conflict, match="is being ended"), session.inside():
            pass
        assert entry.sessions == {0: 0}
        await store.close()

    asyncio.run(main())
