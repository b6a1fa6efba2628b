"""More work than the server can take: bounds, turns, deadlines, and clients that only cost. Real sockets."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import httpx2
import pytest
from chat_kit import Served, says

from art.testing.server import ArtServer

TOKEN_MS = 5
PLACES = 4
WAITING = 64
HELD_BYTES = 2 * 1024 * 1024
SILENT_SECONDS = 1.5
BODY = 100_000
ANSWER = "0123456789" * 4
LONG = "tick " * 170
ENVIRONMENT = {
    "ART_ENGINE__MAX_BATCH": str(PLACES),
    "ART_SERVER__MAX_WAITING_CALLS": str(WAITING),
    "ART_SERVER__MAX_HELD_BYTES": str(HELD_BYTES),
    "ART_SERVER__SILENT_CLIENT_SECONDS": str(SILENT_SECONDS),
}
SECONDS = 60.0


@pytest.fixture(scope="module")
def pressed(start_art_server: Any, tiny_model_dir: Path) -> Iterator[Served]:
    """Four places, 5 ms a token, small bounds. Models `busy/m` and `other/m`."""
    script = {
        "rules": [{"match": "at length", "replies": [LONG]}],
        "default": ANSWER,
        "token_delay_ms": TOKEN_MS,
    }
    server = start_art_server(script=script, environment=ENVIRONMENT)
    served = Served(server, str(tiny_model_dir))
    for project in ("busy", "other"):
        served.register(project, "m")
    yield served
    server.stop()


@pytest.fixture
def keys(pressed: Served) -> dict[str, str]:
    """A key for calls of each project."""
    made = {}
    for project in ("busy", "other"):
        made[project] = pressed.api("POST", "keys", {"role": "infer", "project": project})["key"]
    return made


def client(served: Served, key: str) -> httpx2.AsyncClient:
    """Without a bound on its connections: the server has to have one."""
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
    headers = {"Authorization": f"Bearer {key}"}
    return httpx2.AsyncClient(base_url=served.server.url, headers=headers, limits=limits, timeout=SECONDS)


@cache
def body_of(text: str, size: int) -> bytes:
    """A chat request, with `size` bytes that say nothing. Made once: thousands of them are the same bytes."""
    body: dict[str, Any] = {"model": "m", "messages": says(text)}
    return json.dumps({**body, "metadata": {"note": "x" * size}} if size else body).encode()


async def chat(
    http: httpx2.AsyncClient, text: str = "hi", *, size: int = 0, **headers: str
) -> httpx2.Response:
    given = {"Content-Type": "application/json", **headers}
    return await http.post("/v1/chat/completions", content=body_of(text, size), headers=given)


def pid_of(server: ArtServer) -> int:
    assert server.process is not None
    return server.process.pid


def status_kb(pid: int, name: str) -> int:
    """A figure of /proc/<pid>/status, kB."""
    line = next(
        line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith(name)
    )
    return int(line.split()[1])


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait for something that comes by itself."""
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def engine_is_idle(served: Served) -> bool:
    """As the engine's last heartbeat says."""
    workers = served.api("GET", "health")["workers"]
    stats = next(worker["stats"] for worker in workers if worker["name"] == "engine")
    return bool(stats["running"] == 0 and stats["waiting"] == 0)


def request_bytes(served: Served, body: dict[str, Any], key: str, *, length: int | None = None) -> bytes:
    raw = json.dumps(body).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Authorization: Bearer {key}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(raw) if length is None else length}\r\n\r\n"
    )
    return head.encode() + raw


def connect(served: Served, *, receive_buffer: int | None = None) -> socket.socket:
    sock = socket.socket()
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.settimeout(SECONDS)
    sock.connect(("127.0.0.1", served.server.port))
    return sock


def rest_of(sock: socket.socket) -> bytes:
    """What still comes until the server ends the connection, orderly or not."""
    out = b""
    try:
        while chunk := sock.recv(65536):
            out += chunk
    except ConnectionError:
        pass
    return out


# -- turns


def test_a_project_with_many_waiting_calls_does_not_keep_another_one_waiting(
    pressed: Served, keys: dict[str, str]
) -> None:
    many = 48

    async def main() -> tuple[list[int], int]:
        async with client(pressed, keys["busy"]) as busy, client(pressed, keys["other"]) as other:
            statuses: list[int] = []

            async def flood() -> None:
                statuses.append((await chat(busy)).status_code)

            waiting = [asyncio.create_task(flood()) for _ in range(many)]
            while not statuses:  # noqa: ASYNC110  the queue has begun to move
                await asyncio.sleep(0.01)
            before = len(statuses)
            answer = await chat(other)
            assert answer.status_code == 200, answer.text
            between = len(statuses) - before
            await asyncio.gather(*waiting)
            return statuses, between

    statuses, between = asyncio.run(main())
    assert statuses == [200] * many
    # Those that had their places already, one more turn of theirs, and who ends beside the other's own call.
    assert between <= 4 * PLACES, f"{between} calls of the busy project were answered before the other's"


def test_past_the_bound_calls_are_told_to_come_again_and_others_still_get_in(
    pressed: Served, keys: dict[str, str]
) -> None:
    many = 300
    pid = pid_of(pressed.server)
    began, peak_before = time.time(), status_kb(pid, "VmHWM")

    async def main() -> tuple[list[httpx2.Response], list[httpx2.Response]]:
        async with client(pressed, keys["busy"]) as busy, client(pressed, keys["other"]) as other:
            flood = [asyncio.create_task(chat(busy, size=BODY)) for _ in range(many)]
            await asyncio.wait(flood, return_when=asyncio.FIRST_COMPLETED)
            meanwhile = await asyncio.gather(*(chat(other) for _ in range(4)))
            return await asyncio.gather(*flood), list(meanwhile)

    answers, meanwhile = asyncio.run(main())
    statuses = Counter(answer.status_code for answer in answers)
    assert set(statuses) == {200, 429}, statuses
    assert all(int(answer.headers["Retry-After"]) >= 1 for answer in answers if answer.status_code == 429)
    assert {answer.json()["error"]["code"] for answer in answers if answer.status_code == 429} == {
        "overloaded"
    }
    assert [answer.status_code for answer in meanwhile] == [200] * 4
    grown = status_kb(pid, "VmHWM") - peak_before
    print(f"{statuses}; the gateway's peak grew by {grown} kB")
    # 30 MB of bodies came; 2 MiB of them may be held, and a part of what was on its way into the sockets.
    assert grown < 100 * 1024
    # A call that was turned away has left nothing behind.
    database = pressed.server.path / "server" / "art.db"
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as conn:
        (kept,) = conn.execute(
            "SELECT COUNT(*) FROM rollouts r WHERE project = 'busy' AND created_at >= ? AND NOT EXISTS"
            " (SELECT 1 FROM calls c WHERE c.rollout_id = r.rollout_id)",
            (began,),
        ).fetchone()
    assert kept == 0


def test_an_agent_whose_call_was_turned_away_is_not_to_blame(pressed: Served) -> None:
    opened = pressed.open(model="busy/m")

    async def main() -> int:
        async with client(pressed, opened["api_key"]) as http:
            many = [chat(http, size=BODY, **{"X-ART-Rollout": opened["rollout_id"]}) for _ in range(60)]
            return sum(answer.status_code == 429 for answer in await asyncio.gather(*many))

    refused = asyncio.run(main())
    assert refused
    assert pressed.rollout(opened["rollout_id"])["failed_calls"] == refused


# -- deadlines


def test_a_call_ends_at_the_deadline_that_its_client_asks_for(pressed: Served) -> None:
    body = {"model": "busy/m", "messages": says("at length")}
    answer = pressed.raw("POST", "/v1/chat/completions", body, headers={"X-ART-Timeout": "0.5"})
    assert answer.status_code == 504, answer.text
    error = answer.json()["error"]
    assert error["code"] == "deadline_exceeded"
    assert "0.5 s" in error["message"]
    until(lambda: engine_is_idle(pressed), "the call still runs")

    streamed = pressed.raw(
        "POST", "/v1/chat/completions", {**body, "stream": True}, headers={"X-ART-Timeout": "0.5"}
    )
    assert streamed.status_code == 200  # it had begun
    assert "deadline_exceeded" in streamed.text
    assert "[DONE]" not in streamed.text

    for wrong in ("soon", "0", "-1", "nan", "inf"):
        refused = pressed.raw("POST", "/v1/chat/completions", body, headers={"X-ART-Timeout": wrong})
        assert refused.status_code == 400, refused.text
        assert "X-ART-Timeout" in refused.json()["error"]["message"]


# -- clients that only cost


def test_a_client_that_reads_nothing_is_cut_off_and_stalls_nobody(pressed: Served) -> None:
    opened = pressed.open(model="busy/m")
    body = {
        "model": "m",
        "messages": says("at length"),
        "stream": True,
        "logprobs": True,
        "top_logprobs": 20,  # two kilobytes a token: more than the sockets hold
        "max_tokens": 400,
        "n": PLACES,
    }
    slow = connect(pressed, receive_buffer=4096)
    slow.sendall(request_bytes(pressed, body, opened["api_key"]))
    # Others are answered beside it, and its call ends in the engine whether it is read or not.
    assert pressed.chat({"model": "other/m", "messages": says("hi")}).status_code == 200
    until(lambda: engine_is_idle(pressed), "the call still has a place in the engine")
    until(lambda: cut_off(slow), "the connection is still there")
    assert b"[DONE]" not in rest_of(slow)
    slow.close()


def cut_off(sock: socket.socket) -> bool:
    """Whether the other end has reset the connection, without taking anything from it."""
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0 or tcp_state(sock) == "CLOSE"


def tcp_state(sock: socket.socket) -> str:
    """The connection's state as the kernel has it (the first byte of struct tcp_info)."""
    return {7: "CLOSE"}.get(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0], "other")


def test_half_a_request_is_not_waited_for(pressed: Served) -> None:
    key = pressed.server.admin_key
    body = {"model": "busy/m", "messages": says("hi")}
    silent, half_head, half_body = connect(pressed), connect(pressed), connect(pressed)
    half_head.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow:")
    half_body.sendall(request_bytes(pressed, body, key, length=5_000))
    answered = b""
    while b"request_timeout" not in answered:
        chunk = half_body.recv(65536)
        assert chunk, answered
        answered += chunk
    assert answered.startswith(b"HTTP/1.1 408 ")
    for sock in (silent, half_head):
        assert rest_of(sock) == b""
    for sock in (silent, half_head, half_body):
        sock.close()


def test_clients_that_vanish_leave_no_place_taken(pressed: Served, keys: dict[str, str]) -> None:
    pid = pid_of(pressed.server)
    descriptors = len(os.listdir(f"/proc/{pid}/fd"))
    body = {"model": "m", "messages": says("at length")}
    gone = [connect(pressed) for _ in range(2 * PLACES)]
    for number, sock in enumerate(gone):
        sock.sendall(request_bytes(pressed, {**body, "stream": number % 2 == 0}, keys["busy"]))
    until(lambda: not engine_is_idle(pressed), "no call began")
    for sock in gone:
        sock.close()
    until(lambda: engine_is_idle(pressed), "calls without clients still run")
    assert pressed.chat({"model": "busy/m", "messages": says("hi")}).status_code == 200
    until(lambda: len(os.listdir(f"/proc/{pid}/fd")) <= descriptors, "descriptors were not given back")


async def status_of(port: int, payload: bytes) -> int:
    """The status of one call on a plain socket: client libraries take minutes for ten thousand connections."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(payload)
        await writer.drain()
        return int((await reader.readline()).split()[1])
    finally:
        writer.close()


@pytest.mark.extended
@pytest.mark.timeout(600)
def test_ten_thousand_calls_with_large_bodies(start_art_server: Any, tiny_model_dir: Path) -> None:
    """One gigabyte of requests at once, by a client that takes its time between connecting and sending."""
    pressed = Served(start_art_server(script={"default": ANSWER}), str(tiny_model_dir))
    for project in ("busy", "other"):
        pressed.register(project, "m")
    key = pressed.api("POST", "keys", {"role": "infer", "project": "busy"})["key"]
    many, pid = 10_000, pid_of(pressed.server)
    peak_before = status_kb(pid, "VmHWM")
    payload = request_bytes(pressed, json.loads(body_of("hi", BODY)), key)

    async def main() -> Counter[object]:
        asked = [status_of(pressed.server.port, payload) for _ in range(many)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        return Counter(answer if isinstance(answer, int) else repr(answer)[:60] for answer in answers)

    statuses = asyncio.run(main())
    grown = status_kb(pid, "VmHWM") - peak_before
    print(f"{statuses}; the gateway's peak grew by {grown} kB")
    assert set(statuses) == {200, 429}
    assert grown < 600 * 1024
    assert pressed.chat({"model": "other/m", "messages": says("hi")}).status_code == 200
