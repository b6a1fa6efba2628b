"""Ten thousand calls at once: as many as may wait do, the others are told at once when to come again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fault_kit import ask, gateway_pid, raw_request, until, worker_pid
from train_kit import Trained

pytestmark = pytest.mark.slow

CALLS = 10_000
FIRST = 1_100
"""As many as may wait, and a few more: once one of them is turned away the queue is full, and the others come."""
ROLLOUTS = 50
SPARE_DESCRIPTORS = 1_000
AT_ONCE = 200
"""Connections that are being made at once; they stay open."""
SECONDS = 120.0
MEMORY_BYTES = 512 * 1024 * 1024
"""What the gateway may take more while all of them wait."""


@dataclass
class Flood:
    """Sends requests over one connection each, and counts the answers."""

    port: int
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    """Every connection is there; set `go` to have them send."""
    go: asyncio.Event = field(default_factory=asyncio.Event)
    full: asyncio.Event = field(default_factory=asyncio.Event)
    """One of the first was turned away: the others send, too."""
    refused: asyncio.Event = field(default_factory=asyncio.Event)
    """One of the others was turned away."""
    answers: Counter[int] = field(default_factory=Counter)
    without_advice: int = 0
    refusal: bytes = b""
    failures: set[bytes] = field(default_factory=set)
    """Answers that are neither an answer nor advice to come again."""

    async def send(self, requests: list[bytes]) -> None:
        """All of them at once, as far as there are descriptors for the connections."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        width = min(len(requests), hard - SPARE_DESCRIPTORS)
        making, missing = asyncio.Semaphore(AT_ONCE), set(range(width))

        async def one(number: int) -> None:
            async with making:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            missing.discard(number)
            if not missing:
                self.opened.set()
            await (self.go if number < FIRST else self.full).wait()
            with contextlib.closing(writer):
                for request in requests[number::width]:
                    writer.write(request)
                    await self._take(reader, self.full if number < FIRST else self.refused)

        async with asyncio.TaskGroup() as group:
            for number in range(width):
                group.create_task(one(number))
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    async def _take(self, reader: asyncio.StreamReader, refused: asyncio.Event) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length: ")[2].split(b"\r\n")[0])
        body = await reader.readexactly(length)
        status = int(head.split()[1])
        self.answers[status] += 1
        if status not in (200, 429):
            self.failures.add(body)
        if status == 429:
            self.without_advice += b"\r\nretry-after: " not in head
            self.refusal = body
            refused.set()


def memory(pid: int, name: str) -> int:
    """Bytes: "VmRSS" now, "VmHWM" at most so far."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(name)


async def slow_down(pid: int) -> None:
    """Hold a worker still until cancelled, but for moments in which it can say that it lives."""
    try:
        while True:
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(2.0)
            os.kill(pid, signal.SIGCONT)
            await asyncio.sleep(0.2)
    finally:
        os.kill(pid, signal.SIGCONT)


def test_ten_thousand_calls(trained: Trained, case: Any) -> None:
    assert ask(trained).status_code == 200
    gateway, engine = gateway_pid(trained), worker_pid(trained, "engine")
    body = json.dumps(
        {"model": "p/m", "messages": [{"role": "user", "content": "yes or no?"}], "max_tokens": 2}
    ).encode()
    requests = [
        raw_request(trained, body, f"X-ART-Rollout: flood-{number % ROLLOUTS}") for number in range(CALLS)
    ]
    flood = Flood(trained.server.port)

    async def main() -> float:
        sending = asyncio.create_task(flood.send(requests))
        async with asyncio.timeout(SECONDS):
            await flood.opened.wait()
        slowing = asyncio.create_task(slow_down(engine))
        try:
            flood.go.set()
            async with asyncio.timeout(SECONDS):
                await flood.full.wait()
                began = time.monotonic()
                await flood.refused.wait()
            took = time.monotonic() - began
        finally:
            slowing.cancel()
            await asyncio.wait([slowing])
        healthy = asyncio.create_task(asyncio.to_thread(trained.api, "GET", "health"))
        async with asyncio.timeout(SECONDS):
            assert (await healthy)["status"] == "ok", "others are answered meanwhile"
            await sending
        return took

    before = memory(gateway, "VmRSS")
    took = asyncio.run(main())
    assert flood.answers.total() == CALLS
    assert not flood.failures, f"{flood.answers}: {flood.failures}"
    assert set(flood.answers) == {200, 429}
    assert flood.without_advice == 0, "a refusal says when to come again"
    assert memory(gateway, "VmHWM") - before < MEMORY_BYTES
    count = "SELECT COUNT(*) FROM calls WHERE rollout_id LIKE 'flood-%'"
    assert trained.query(count)[0][0] == flood.answers[200], "what was answered is recorded, and nothing else"
    until(lambda: trained.workers()["engine"]["stats"].get("running") == 0)
    assert worker_pid(trained, "engine") == engine
    assert ask(trained).status_code == 200
    message = json.loads(flood.refusal)["error"]["message"]
    case(
        "10,000 queued calls",
        took,
        seen=f"429 {message}",
        lost=f"{flood.answers[429]} calls, refused at once",
    )
