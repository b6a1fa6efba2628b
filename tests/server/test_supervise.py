"""Worker processes: a death is told at once with its last words, a silent one is killed, starts are bounded."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import socket
import sys
import textwrap
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from chat_kit import Served, says

from art.errors import ArtError, DeadlineExceeded, InfraError, InvalidInput, WorkerDied
from art.ipc import encode_frame
from art.server import supervise
from art.server.channel import LOST_HEARTBEATS, Channel
from art.server.supervise import Supervised, WorkerSpec

WORKER = textwrap.dedent(
    """
    import os, signal, sys, threading, time
    import art.ipc
    from art.ipc import WorkerChannel

    mode = sys.argv[1]
    print("last words of the worker", flush=True)
    if mode == "crash":
        sys.exit(3)
    if mode == "crash-once" and not os.path.exists(sys.argv[2]):
        open(sys.argv[2], "w").close()
        sys.exit(3)
    if mode == "mute":
        time.sleep(60)
    channel = WorkerChannel.inherited()
    if mode == "failed":
        channel.send({"failed": {"code": "not_found", "message": "no such model", "cause": "", "hint": "h"}})
        sys.exit(1)
    channel.send({"ready": {"pid": os.getpid()}})
    if mode == "forgets":
        art.ipc.HEARTBEAT_SECONDS = 0.05
    channel.start_heartbeat(lambda: {"beats": 1}, (lambda: [1]) if mode == "forgets" else None)
    while (messages := channel.receive()) is not None:
        for message in messages:
            key, method = message["id"], message.get("method")
            if message.get("cancel"):
                open(sys.argv[2], "a").write(f"cancel {key}\\n")
            elif method == "echo":
                channel.send([{"id": key, "event": {"n": n}} for n in range(3)])
                channel.send({"id": key, "result": message["params"]})
            elif method == "nan":
                event = {"id": key, "event": {"n": 1}}
                channel.send([event, {"id": key, "event": {"n": float("nan")}}, event, {"id": key, "result": {}}])
            elif method == "refuse":
                error = {"code": "invalid_input", "message": "no", "cause": "c", "hint": "h"}
                channel.send({"id": key, "error": error})
            elif method == "close":
                channel._sock.shutdown(2)
                time.sleep(60)
            elif method == "lose-reader":
                def fail():
                    raise ValueError("the reader has failed")
                threading.Thread(target=fail, name="reader").start()
            elif method == "fork":
                import subprocess
                child = subprocess.Popen(["sleep", "60"])
                channel.send({"id": key, "result": {"pid": child.pid}})
            elif method == "die":
                os._exit(7)
            elif method == "garble":
                channel._sock.sendall(b"\\xff\\xff\\xff\\xff")
    """
)


def spec(tmp_path: Path, mode: str, **options: Any) -> WorkerSpec:
    values: dict[str, Any] = {"start_seconds": 30.0, "heartbeat_seconds": 10.0, **options}
    argv = [sys.executable, "-c", WORKER, mode, str(tmp_path / "note")]
    return WorkerSpec(name="worker", argv=argv, log_file=tmp_path / "worker.log", **values)


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await main()

    asyncio.run(bounded())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  another process makes it true
        await asyncio.sleep(0.02)


def pid_of(worker: Supervised) -> int:
    pid = worker.health().pid
    assert pid is not None
    return pid


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_requests_events_results_and_errors(tmp_path: Path) -> None:
    async def main() -> None:
        worker = Supervised(spec(tmp_path, "ok"))
        channel = await worker.channel()
        events: list[dict[str, Any]] = []
        results = await asyncio.gather(
            *(channel.call("echo", {"x": n}, silence=20, on_event=events.append) for n in range(5))
        )
        assert [item["x"] for item in results] == list(range(5))
        assert sorted(event["n"] for event in events) == sorted([0, 1, 2] * 5)
        with pytest.raises(InvalidInput) as caught:
            await channel.call("refuse", {}, silence=20)
        assert (caught.value.cause, caught.value.hint) == ("c", "h")
        await until(lambda: worker.stats == {"beats": 1})
        pid = pid_of(worker)
        await worker.stop()
        assert gone(pid)
        with pytest.raises(WorkerDied):
            await worker.channel()

    run(main)


def test_what_a_listener_raises_ends_its_call_alone(tmp_path: Path) -> None:
    async def main() -> None:
        worker = Supervised(spec(tmp_path, "ok"))
        channel = await worker.channel()
        heard: list[dict[str, Any]] = []

        def stop_at_the_second(event: dict[str, Any]) -> None:
            heard.append(event)
            if event["n"] == 1:
                raise LookupError("enough")

        other = asyncio.create_task(channel.call("echo", {"x": 2}, silence=20))
        with pytest.raises(LookupError, match="enough"):
            await channel.call("echo", {"x": 1}, silence=20, on_event=stop_at_the_second)
        assert [event["n"] for event in heard] == [0, 1]
        assert await other == {"x": 2}
        assert channel.pending == 0
        await worker.stop()

    run(main)


def test_what_cannot_be_encoded_is_an_error_and_never_silence(tmp_path: Path) -> None:
    async def main() -> None:
        worker = Supervised(spec(tmp_path, "ok"))
        channel = await worker.channel()
        events: list[dict[str, Any]] = []
        with pytest.raises(InfraError, match="could not be sent") as caught:
            await channel.call("nan", {}, silence=30, on_event=events.append)
        assert events == [{"n": 1}]
        assert "JSON compliant" in caught.value.cause
        with pytest.raises(InvalidInput, match="cannot be sent"):
            await channel.call("echo", {"x": math.inf}, silence=30)
        assert channel.pending == 0
        assert await channel.call("echo", {"x": 1}, silence=30) == {"x": 1}
        await worker.stop()

    run(main)


def test_a_request_that_the_worker_does_not_know_any_more_is_lost(tmp_path: Path) -> None:
    """The worker lives and beats, and says that it works on request 1 alone."""

    async def main() -> None:
        worker = Supervised(spec(tmp_path, "forgets"))
        channel = await worker.channel()
        named = asyncio.create_task(channel.call("never", {}, silence=50))
        await asyncio.sleep(0)
        with pytest.raises(WorkerDied, match="lost a request"):
            await channel.call("never", {}, silence=50)
        assert await channel.call("echo", {"x": 1}, silence=50) == {"x": 1}
        assert not named.done()
        named.cancel()
        await worker.stop()

    run(main)


def test_a_worker_that_does_not_answer_a_cancellation_can_be_killed(tmp_path: Path) -> None:
    async def main() -> None:
        worker = Supervised(spec(tmp_path, "ok"))
        for _ in range(supervise.MAX_FAILURES + 1):  # as often as people want: it is no failure of the worker
            channel = await worker.channel()
            pid = pid_of(worker)
            call = channel.call(
                "never", {}, silence=50, settle=0.05, on_unsettled=lambda: worker.kill("it does not stop")
            )
            task = asyncio.create_task(call)
            await until(lambda channel=channel: channel.pending == 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda pid=pid: gone(pid))
            await until(lambda pid=pid: worker.health().pid not in (None, pid))
        assert await (await worker.channel()).call("echo", {"x": 1}, silence=50) == {"x": 1}
        await worker.stop()

    run(main)


def test_a_silent_request_ends_and_is_cancelled_in_the_worker(tmp_path: Path) -> None:
    async def main() -> None:
        worker = Supervised(spec(tmp_path, "ok"))
        channel = await worker.channel()
        with pytest.raises(DeadlineExceeded):
            await channel.call("never", {}, silence=0.05)
        task = asyncio.create_task(channel.call("never", {}, silence=30))
        await until(lambda: channel.pending == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        note = tmp_path / "note"
        await until(lambda: note.exists() and note.read_text() == "cancel 1\ncancel 2\n")
        assert channel.pending == 0
        await worker.stop()

    run(main)


@pytest.mark.parametrize("how", ["kill", "exit", "garble"])
def test_a_death_fails_what_waits_and_the_next_life_serves(tmp_path: Path, how: str) -> None:
    async def main() -> None:
        worker = Supervised(spec(tmp_path, "ok"))
        channel = await worker.channel()
        first = pid_of(worker)
        waiting = [asyncio.create_task(channel.call("never", {}, silence=50)) for _ in range(3)]
        await until(lambda: channel.pending == 3)
        if how == "kill":
            os.kill(first, signal.SIGKILL)
        else:
            waiting.append(asyncio.create_task(channel.call("die" if how == "exit" else how, {}, silence=50)))
        for outcome in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(outcome, WorkerDied)
            assert "last words of the worker" in outcome.cause
            reason = {"kill": "SIGKILL", "exit": "status 7", "garble": "damaged frame"}[how]
            assert reason in outcome.cause
        with pytest.raises(WorkerDied):
            await channel.call("echo", {}, silence=20)
        again = await worker.channel()
        assert await again.call("echo", {"x": 1}, silence=20) == {"x": 1}
        assert worker.health().restarts == 1
        assert pid_of(worker) != first
        await worker.stop()

    run(main)


def test_heartbeats_that_were_waiting_to_be_read_say_nothing_of_a_new_request() -> None:
    """A gateway that was held up for seconds writes its requests, and then reads all that was sent before."""

    async def main() -> None:
        ours, theirs = socket.socketpair()
        channel = Channel("worker", lambda message: None)
        reading = asyncio.create_task(channel.run(ours))
        await asyncio.sleep(0)
        call = asyncio.create_task(channel.call("echo", {}, silence=20))
        await until(lambda: channel.pending == 1)
        stale = encode_frame({"heartbeat": {"seq": 1, "requests": []}})
        theirs.sendall(stale * (3 * LOST_HEARTBEATS) + encode_frame({"id": 1, "result": {"x": 1}}))
        assert await call == {"x": 1}
        theirs.close()
        await reading

    run(main)


def test_it_is_started_anew_without_being_asked(tmp_path: Path) -> None:
    async def main() -> None:
        worker = Supervised(spec(tmp_path, "ok"))
        await worker.channel()
        os.kill(pid_of(worker), signal.SIGKILL)
        await until(lambda: worker.starts == 2 and worker.alive)
        await worker.stop()

    run(main)


def test_a_start_goes_on_when_the_first_who_asked_goes_away(tmp_path: Path) -> None:
    async def main() -> None:
        worker = Supervised(spec(tmp_path, "ok"))
        first = asyncio.create_task(worker.channel())
        await until(lambda: worker.starts == 1)
        second = asyncio.create_task(worker.channel())
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert await (await second).call("echo", {"x": 1}, silence=20) == {"x": 1}
        assert worker.starts == 1
        await worker.stop()

    run(main)


def test_stopping_ends_a_start_in_progress(tmp_path: Path) -> None:
    async def main() -> None:
        worker = Supervised(spec(tmp_path, "mute"))
        waiting = asyncio.create_task(worker.channel())
        await until((tmp_path / "worker.log").exists)
        await until(lambda: "last words" in (tmp_path / "worker.log").read_text())
        await worker.stop()
        with pytest.raises(WorkerDied, match="is stopped"):
            await waiting

    run(main)


def test_a_silent_worker_is_killed(tmp_path: Path) -> None:
    """Stopped, not dead: only the missing heartbeat tells."""

    async def main() -> None:
        worker = Supervised(spec(tmp_path, "ok", heartbeat_seconds=2.0))
        channel = await worker.channel()
        pid = pid_of(worker)
        call = asyncio.create_task(channel.call("never", {}, silence=50))
        await until(lambda: channel.pending == 1)
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(WorkerDied, match="no heartbeat"):
            await call
        assert gone(pid)
        await worker.stop()

    run(main)


def test_what_kept_it_from_starting_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(ArtError, match="no such model") as caught:
            await Supervised(spec(tmp_path, "failed")).channel()
        assert caught.value.code == "not_found"
        with pytest.raises(WorkerDied) as died:
            await Supervised(spec(tmp_path, "crash")).channel()
        assert "status 3" in died.value.cause
        assert "last words" in died.value.cause
        with pytest.raises(WorkerDied, match="not ready within"):
            await Supervised(spec(tmp_path, "mute", start_seconds=0.5)).channel()

    run(main)


def test_one_bad_start_is_followed_by_a_good_one(tmp_path: Path) -> None:
    async def main() -> None:
        worker = Supervised(spec(tmp_path, "crash-once"))
        with pytest.raises(WorkerDied):
            await worker.channel()
        channel = await worker.channel()
        assert await channel.call("echo", {"x": 1}, silence=20) == {"x": 1}
        await worker.stop()

    run(main)


def test_starts_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "BACKOFF_SECONDS", (0.0,))

    async def main() -> None:
        worker = Supervised(spec(tmp_path, "crash"))
        for _ in range(supervise.MAX_FAILURES):
            with pytest.raises(WorkerDied, match="process ended"):
                await worker.channel()
        starts = worker.starts
        with pytest.raises(WorkerDied, match="times in a row"):
            await worker.channel()
        assert worker.starts == starts, "it was refused without a start"
        monkeypatch.setattr(supervise, "COOLDOWN_SECONDS", 0.0)
        with pytest.raises(WorkerDied, match="process ended"):
            await worker.channel()
        assert worker.starts == starts + 1, "asked again after a while, it tries once more"

    run(main)


def workers(served: Served) -> dict[str, Any]:
    return {item["name"]: item for item in served.api("GET", "health")["workers"]}


def test_a_killed_engine_fails_its_calls_and_serves_the_next(served: Served) -> None:
    """Through the whole server: the call in flight answers 503, the server stays up, the next call works."""
    assert served.chat({"messages": says("count")}).status_code == 200
    before = workers(served)["engine"]
    headers = {"Authorization": f"Bearer {served.server.admin_key}"}
    body = {"model": "tests/alpha", "messages": says("slowly"), "max_tokens": 700, "stream": True}
    url = f"{served.server.url}/v1/chat/completions"
    with httpx2.stream("POST", url, json=body, headers=headers, timeout=60) as response:
        lines = response.iter_lines()
        next(line for line in lines if '"content"' in line)
        os.kill(before["pid"], signal.SIGKILL)
        rest = "\n".join(lines)
    assert "worker_died" in rest
    assert "SIGKILL" in rest
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not workers(served).get("engine", {}).get("alive"):
        time.sleep(0.1)
    assert served.chat({"messages": says("count")}).status_code == 200
    after = workers(served)["engine"]
    assert after["restarts"] == before["restarts"] + 1
    assert after["pid"] != before["pid"]
