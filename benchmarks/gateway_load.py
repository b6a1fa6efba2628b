"""The load of bench_gateway, a process of its own: many streaming sessions over plain asyncio sockets.

Reads a JSON job from stdin, writes a JSON result to stdout. Two kinds of job:

    {"kind": "http", "sessions": [{"url", "key", "path", "model"}...], "calls": 8, "dialect": "chat", "think_ms": 60,
     "mark": "tick"}   (mark: what stands once in every event with text, where it is not the dialect's)
    {"kind": "engine", "arguments": ["--engine", "scripted", ...], "sessions": 32, "calls": 8, "think_ms": 60}

Each session makes its calls one after the other, with a random pause before each, so that calls meet the engine's
steps at every phase, whichever way they come. `engine` speaks to an engine worker without a gateway between: the
same sessions, pauses and lengths give the pace that the gateway's figures are compared with.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from art.config.environment import worker_environment
from art.ipc import PREFIX_BYTES, decode_body, encode_frame, frame_length

SECONDS = 300.0
"""Deadline of one call."""
NEW_TOKENS = 64
MARKS = {
    "chat": b'"delta":{"content":"',
    "responses": b'data: {"type":"response.output_text.delta"',
    "anthropic": b'"type":"text_delta"',
}
"""What stands once in every event that carries text."""
ENDS = {
    "chat": (b"data: [DONE]",),
    "responses": (b'"type":"response.completed"', b'"type":"response.incomplete"'),
    "anthropic": (b'"type":"message_stop"',),
}
LONGEST_MARK = 60
"""More bytes than any of these."""
PATHS = {"chat": "chat/completions", "responses": "responses", "anthropic": "messages"}


@dataclass
class Call:
    """Seconds since the request was sent."""

    first: float = 0.0
    """First text."""
    total: float = 0.0
    arrivals: list[float] = field(default_factory=list)
    """Of every piece of the socket that held text."""
    deltas: int = 0
    """Events with text."""
    error: str = ""


def request_body(dialect: str, model: str, text: str) -> dict[str, Any]:
    """A streaming request of one user message."""
    if dialect == "responses":
        return {"model": model, "input": text, "stream": True, "max_output_tokens": NEW_TOKENS}
    body = {"model": model, "messages": [{"role": "user", "content": text}], "stream": True}
    return {**body, "max_tokens": NEW_TOKENS}


async def http_call(session: dict[str, Any], dialect: str, text: str, mark: bytes) -> Call:
    """One call on a connection of its own."""
    call, url = Call(), urlsplit(session["url"])
    path = f"{url.path}/{PATHS[dialect]}"
    body = json.dumps(request_body(dialect, session["model"], text)).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {url.netloc}\r\nAuthorization: Bearer {session['key']}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    start = time.perf_counter()
    try:
        async with asyncio.timeout(SECONDS):
            reader, writer = await asyncio.open_connection(url.hostname, url.port)
            try:
                writer.write(head.encode() + body)
                await _read(reader, call, start, mark=mark, ends=ENDS[dialect])
            finally:
                writer.close()
    except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
        call.error = f"{type(error).__name__}: {error}"
    return call


async def _read(
    reader: asyncio.StreamReader, call: Call, start: float, *, mark: bytes, ends: tuple[bytes, ...]
) -> None:
    tail, beginning, ended = b"", b"", False
    while data := await reader.read(65536):
        now = time.perf_counter() - start
        if len(beginning) < 600:
            beginning += data[:600]
        window = tail + data
        found = window.count(mark)
        if found:
            call.first = call.first or now
            call.arrivals.append(now)
            call.deltas += found
        ended = ended or any(end in window for end in ends)
        # What is cut at the end is looked at again with the next piece, and nothing is counted twice.
        last = window.rfind(mark)
        cut = max(last + len(mark) if last >= 0 else 0, len(window) - LONGEST_MARK, 0)
        tail = window[cut:]
        call.total = now
    if not beginning.startswith(b"HTTP/1.1 200") or not ended:
        call.error = beginning.decode("utf-8", "replace")[-300:] or "the stream ended early"


class EngineWorker:
    """An engine's process and its channel, without a gateway."""

    def __init__(self, arguments: list[str]) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "art.engine.worker", *arguments]
        environment = worker_environment(fd=theirs.fileno(), threads=None)
        self.process = subprocess.Popen(command, pass_fds=(theirs.fileno(),), env=environment)
        theirs.close()
        self._socket = ours
        self._waiting: dict[int, tuple[Call, float, asyncio.Future[None]]] = {}
        self._ready = asyncio.Event()
        self._next = 0

    async def start(self) -> None:
        self._reader, self._writer = await asyncio.open_connection(sock=self._socket, limit=1 << 20)
        self._reading = asyncio.create_task(self._read())
        async with asyncio.timeout(60):
            await self._ready.wait()

    async def call(self, prompt: list[int], seed: int) -> Call:
        self._next += 1
        call, done = Call(), asyncio.get_running_loop().create_future()
        self._waiting[self._next] = call, time.perf_counter(), done
        params = {"prompt_token_ids": prompt, "max_tokens": NEW_TOKENS, "seed": seed}
        self._writer.write(encode_frame({"id": self._next, "method": "generate", "params": params}))
        async with asyncio.timeout(SECONDS):
            await done
        return call

    async def _read(self) -> None:
        while True:
            prefix = await self._reader.readexactly(PREFIX_BYTES)
            body = await self._reader.readexactly(frame_length(prefix))
            now = time.perf_counter()
            for message in decode_body(body):
                self._take(message, now)

    def _take(self, message: dict[str, Any], now: float) -> None:
        if "ready" in message:
            self._ready.set()
        key = message.get("id")
        if key not in self._waiting:
            return
        call, start, done = self._waiting[key]
        if "event" in message:
            call.first = call.first or now - start
            call.arrivals.append(now - start)
            call.deltas += 1
            call.total = now - start
        else:
            call.error = str(message["error"]) if "error" in message else ""
            del self._waiting[key]
            done.set_result(None)

    async def close(self) -> None:
        self._reading.cancel()
        self._writer.close()
        await self._writer.wait_closed()
        await asyncio.to_thread(self.process.wait, 30)


async def run(job: dict[str, Any]) -> list[Call]:
    """All calls of all sessions."""
    calls: list[Call] = []
    worker = EngineWorker(job["arguments"]) if job["kind"] == "engine" else None
    if worker is not None:
        await worker.start()
    dialect = job.get("dialect", "chat")
    mark = job["mark"].encode() if "mark" in job else MARKS[dialect]
    sessions = range(job["sessions"]) if worker is not None else job["sessions"]

    async def session(number: int, given: Any) -> None:
        pauses = random.Random(number)
        for turn in range(job["calls"]):
            await asyncio.sleep(pauses.uniform(0, job["think_ms"] / 1000))
            if worker is not None:
                prompt = [pauses.randrange(3, 200) for _ in range(40)]
                calls.append(await worker.call(prompt, seed=turn))
            else:
                calls.append(await http_call(given, dialect, f"question {number} of turn {turn}", mark))

    await asyncio.gather(*(session(number, given) for number, given in enumerate(sessions)))
    if worker is not None:
        await worker.close()
    return calls


def main() -> None:
    job = json.load(sys.stdin)
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    calls = asyncio.run(run(job))
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    gaps = [
        later - earlier
        for call in calls
        for earlier, later in zip(call.arrivals, call.arrivals[1:], strict=False)
    ]
    json.dump(
        {
            "first_ms": [call.first * 1000 for call in calls if not call.error],
            "total_ms": [call.total * 1000 for call in calls if not call.error],
            "gaps_ms": [gap * 1000 for gap in gaps],
            "deltas": [call.deltas for call in calls if not call.error],
            "errors": [call.error for call in calls if call.error],
            "wall_s": wall,
            "cpu_share": cpu / wall,
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main()
