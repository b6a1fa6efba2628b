"""The worker's end of the channel: every request gets a last word, also when its answer is no JSON."""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from art.ipc import FD_VARIABLE, MAX_FRAME_BYTES, Message, WorkerChannel, encode_frame
from art.trainer import worker as trainer_worker


@pytest.fixture
def ends() -> Iterator[tuple[WorkerChannel, WorkerChannel]]:
    """(gateway's, worker's)"""
    ours, theirs = socket.socketpair()
    ours.settimeout(30)
    yield WorkerChannel(ours), WorkerChannel(theirs)
    ours.close()
    theirs.close()


def received(channel: WorkerChannel, count: int) -> list[Message]:
    messages: list[Message] = []
    while len(messages) < count:
        found = channel.receive()
        assert found is not None, messages
        messages += found
    return messages


def test_the_other_messages_of_a_frame_arrive(ends: tuple[WorkerChannel, WorkerChannel]) -> None:
    gateway, worker = ends
    bad = {"id": 2, "event": {"logprobs": [math.nan]}}
    good = {"id": 1, "event": {"logprobs": [-1.0]}}
    assert worker.send([good, bad, {"id": 2, "result": {}}, {"id": 1, "result": {}}]) == {2}
    first, error, last = received(gateway, 3)
    assert (first, last) == (good, {"id": 1, "result": {}})
    assert (error["id"], error["error"]["code"]) == (2, "infra_error")
    assert "ValueError" in error["error"]["cause"]
    assert worker.send(good) == set()


def test_a_heartbeat_is_a_heartbeat_whatever_its_figures(ends: tuple[WorkerChannel, WorkerChannel]) -> None:
    gateway, worker = ends
    worker.start_heartbeat(lambda: {"loss": math.nan}, lambda: {9, 7})
    (beat,) = received(gateway, 1)
    assert beat == {"heartbeat": {"seq": 0, "stats": {}, "requests": [7, 9]}}


def test_a_frame_over_the_limit_is_refused_where_it_is_made() -> None:
    with pytest.raises(ValueError, match="over the limit"):
        encode_frame({"x": "a" * MAX_FRAME_BYTES})


def test_a_trainers_answer_that_is_no_json_is_an_error(
    ends: tuple[WorkerChannel, WorkerChannel], tmp_path: Path
) -> None:
    gateway, channel = ends
    worker = trainer_worker.Worker(None, channel, cache_dir=tmp_path)  # type: ignore[arg-type]
    executor, _ = worker._methods["train"]
    worker._methods["train"] = (executor, lambda params, on_progress: {"metrics": {"train/reward": math.nan}})
    threading.Thread(target=worker.run, daemon=True).start()
    gateway.send({"id": 3, "method": "train", "params": {}})
    (answer,) = received(gateway, 1)
    assert (answer["id"], answer["error"]["message"]) == (3, "an answer could not be sent")
    executor.shutdown(wait=True)
    assert worker.requests() == []


OVERFLOWING = textwrap.dedent(
    """
    import math
    from art.engine.protocol import EngineCapabilities, Sampled
    from art.engine.worker import Worker
    from art.ipc import WorkerChannel

    class Engine:  # its second request gets a log-probability that is no number
        capabilities = EngineCapabilities(
            kind="test", base_model="b", vocab_size=10, context_length=100, max_batch=2, max_adapters=1,
            dtype="fp32", device="cpu",
        )
        left = {}

        def submit(self, key, request):
            self.left[key] = 3

        def cancel(self, key):
            self.left.pop(key, None)

        def step(self):
            events = []
            for key in list(self.left):
                self.left[key] -= 1
                done = not self.left[key]
                if done:
                    del self.left[key]
                logprob = math.nan if key == 2 else -1.0
                events.append((key, Sampled([1], [logprob], finish_reason="length" if done else None)))
            return events or None

    Worker(Engine(), WorkerChannel.inherited()).run()
    """
)


def test_a_choice_that_overflows_ends_alone() -> None:
    ours, theirs = socket.socketpair()
    ours.settimeout(30)
    gateway = WorkerChannel(ours)
    process = subprocess.Popen(
        [sys.executable, "-c", OVERFLOWING],
        pass_fds=(theirs.fileno(),),
        env={**os.environ, FD_VARIABLE: str(theirs.fileno())},
    )
    theirs.close()
    try:
        params = {"version": "", "prompt_token_ids": [1], "max_tokens": 3}
        gateway.send([{"id": key, "method": "generate", "params": params} for key in (1, 2)])
        messages = received(gateway, 5)
    finally:
        ours.close()
        process.wait(timeout=30)
    assert [next(iter(message.keys() - {"id"})) for message in messages if message["id"] == 2] == ["error"]
    of_the_other = [message for message in messages if message["id"] == 1]
    assert [message["event"]["token_ids"] for message in of_the_other[:3]] == [[1]] * 3
    assert of_the_other[3] == {"id": 1, "result": {}}
