"""A trainer worker as a child process, driven over its channel without a gateway. For tests."""

from __future__ import annotations

import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from art.errors import DeadlineExceeded, WorkerDied, from_dict
from art.ipc import FD_VARIABLE, Message, WorkerChannel
from art.trainer.protocol import CheckpointInfo, PrepareModel, ResolvedBaseModel, TrainJob, TrainOutcome

DEADLINE_SECONDS = 150.0
"""No answer of a worker in a test takes longer."""


class TrainerProcess:
    """`with TrainerProcess(cache_dir) as trainer: trainer.train(job)`

    WorkerDied when the process ends while an answer is awaited; an error message is raised as its ArtError.
    """

    def __init__(self, cache_dir: Path, arguments: Sequence[str] = ()) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "art.trainer.worker", "--cache-dir", str(cache_dir)]
        try:
            self.process = subprocess.Popen(
                [*command, "--threads", "1", *arguments],
                pass_fds=(theirs.fileno(),),
                env={**os.environ, FD_VARIABLE: str(theirs.fileno())},
            )
        finally:
            theirs.close()
        self._socket = ours
        self.channel = WorkerChannel(ours)
        self.heartbeats: list[dict[str, Any]] = []
        self._queues: defaultdict[int | str, queue.SimpleQueue[Message | None]] = defaultdict(
            queue.SimpleQueue
        )
        self._next_key = 0
        self._ended = False
        threading.Thread(target=self._read, name="trainer-process", daemon=True).start()
        ready = self.next_message("ready")
        if "failed" in ready:
            self.close()
            raise from_dict(ready["failed"])
        self.ready: dict[str, Any] = ready["ready"]

    def __enter__(self) -> TrainerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> int:
        """Close the channel and wait for the process; its exit status."""
        if self._socket.fileno() >= 0:
            self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
        try:
            return self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def send(self, method: str, params: dict[str, Any]) -> int:
        """Send a request; its key."""
        self._next_key += 1
        self.channel.send({"id": self._next_key, "method": method, "params": params})
        return self._next_key

    def cancel(self, key: int) -> None:
        self.channel.send({"id": key, "cancel": True})

    def next_message(self, key: int | str) -> Message:
        """The next message of a request."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while time.monotonic() < deadline:
            try:
                message = self._queues[key].get(timeout=0.2)
            except queue.Empty:
                if not self._ended:
                    continue
                message = None
            if message is None:
                raise WorkerDied(f"the trainer process ended with status {self.process.wait(timeout=30)}")
            return message
        raise DeadlineExceeded(f"the trainer process gave no answer within {DEADLINE_SECONDS:.0f} s")

    def finish(self, key: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """(result, events) of a request; its error is raised."""
        events: list[dict[str, Any]] = []
        while True:
            message = self.next_message(key)
            if "error" in message:
                raise from_dict(message["error"])
            if "result" in message:
                return dict(message["result"]), events
            events.append(message["event"])

    def call(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send a request and wait for its result."""
        return self.finish(self.send(method, params))[0]

    def resolve(self, name: str) -> ResolvedBaseModel:
        return ResolvedBaseModel.model_validate(self.call("resolve_base_model", {"name": name}))

    def prepare(self, request: PrepareModel) -> CheckpointInfo:
        return CheckpointInfo.model_validate(self.call("prepare_model", request.model_dump(mode="json")))

    def train(self, job: TrainJob) -> TrainOutcome:
        return TrainOutcome.model_validate(self.call("train", job.model_dump(mode="json")))

    def _read(self) -> None:
        while (messages := self.channel.receive()) is not None:
            for message in messages:
                if "heartbeat" in message:
                    self.heartbeats.append(message["heartbeat"])
                else:
                    self._queues[message.get("id", "ready")].put(message)
        self._ended = True
        for waiting in list(self._queues.values()):
            waiting.put(None)
