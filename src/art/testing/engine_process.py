"""An engine worker as a child process, driven over its channel without a gateway. For tests and benchmarks."""

from __future__ import annotations

import queue
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from types import TracebackType
from typing import Any

from art.config.environment import worker_environment
from art.engine.protocol import EngineCapabilities, Sampled, SampleRequest
from art.engine.requests import parse_sampled
from art.errors import DeadlineExceeded, WorkerDied, from_dict
from art.ipc import Message, WorkerChannel

DEADLINE_SECONDS = 120.0
"""No answer of a worker in a test takes longer."""


class EngineProcess:
    """`with EngineProcess(["--engine", "scripted", "--base-model", folder]) as engine: ...`

    WorkerDied when the process ends while an answer is awaited; an error message is raised as its ArtError.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        ours, theirs = socket.socketpair()
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "art.engine.worker", *arguments],
                pass_fds=(theirs.fileno(),),
                env=worker_environment(fd=theirs.fileno(), threads=None),
            )
        finally:
            theirs.close()
        self._socket = ours
        self.channel = WorkerChannel(ours)
        self.frames: list[list[Message]] = []
        """Every frame received, in order."""
        self.heartbeats: list[dict[str, Any]] = []
        self._queues: defaultdict[int | str, queue.SimpleQueue[Message | None]] = defaultdict(
            queue.SimpleQueue
        )
        self._next_key = 0
        self._ended = False
        threading.Thread(target=self._read, name="engine-process", daemon=True).start()
        ready = self._take("ready")
        if "failed" in ready:
            self.close()
            raise from_dict(ready["failed"])
        self.capabilities = EngineCapabilities(**ready["ready"])

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> int:
        """Close the channel and wait for the process; its exit status."""
        # shutdown, not close alone: the reader thread still holds the descriptor in recv.
        if self._socket.fileno() >= 0:
            self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
        try:
            return self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def submit(self, request: SampleRequest | dict[str, Any]) -> int:
        """Start a generate request; its key."""
        return self.send("generate", request if isinstance(request, dict) else asdict(request))

    def send(self, method: str, params: dict[str, Any]) -> int:
        """Send a request; its key."""
        self._next_key += 1
        self.channel.send({"id": self._next_key, "method": method, "params": params})
        return self._next_key

    def cancel(self, key: int) -> None:
        self.channel.send({"id": key, "cancel": True})

    def next_event(self, key: int) -> Sampled | None:
        """The next event of a generate request, None after its last."""
        message = self._take(key)
        if "error" in message:
            raise from_dict(message["error"])
        return parse_sampled(message["event"]) if "event" in message else None

    def finish(self, key: int) -> list[Sampled]:
        """All remaining events of a generate request."""
        events = []
        while (event := self.next_event(key)) is not None:
            events.append(event)
        return events

    def generate(self, *requests: SampleRequest) -> list[Sampled]:
        """Sample all requests together; per request its events joined into one."""
        keys = [self.submit(request) for request in requests]
        return [join(self.finish(key)) for key in keys]

    def call(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send a request that has one answer, and wait for it."""
        message = self._take(self.send(method, params))
        if "error" in message:
            raise from_dict(message["error"])
        return dict(message["result"])

    def _read(self) -> None:
        while (messages := self.channel.receive()) is not None:
            self.frames.append(messages)
            for message in messages:
                if "heartbeat" in message:
                    self.heartbeats.append(message["heartbeat"])
                else:
                    self._queues[message.get("id", "ready")].put(message)
        self._ended = True
        for waiting in list(self._queues.values()):
            waiting.put(None)

    def _take(self, key: int | str) -> Message:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while time.monotonic() < deadline:
            try:
                message = self._queues[key].get(timeout=0.2)
            except queue.Empty:
                if not self._ended:
                    continue
                message = None
            if message is None:
                raise WorkerDied(f"the engine process ended with status {self.process.wait(timeout=30)}")
            return message
        raise DeadlineExceeded(f"the engine process gave no answer within {DEADLINE_SECONDS:.0f} s")


def join(events: Sequence[Sampled]) -> Sampled:
    """A choice's events as one."""
    return Sampled(
        token_ids=[token for event in events for token in event.token_ids],
        logprobs=[logprob for event in events for logprob in event.logprobs],
        top_logprobs=[row for event in events for row in event.top_logprobs],
        forced=[at for event in events for at in event.forced or [False] * len(event.token_ids)],
        finish_reason=events[-1].finish_reason,
        cached_tokens=events[0].cached_tokens,
    )
