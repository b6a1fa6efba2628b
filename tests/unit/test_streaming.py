"""Signs of life while an answer takes its time, and an orderly end when the client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from art.errors import Overloaded
from art.server.admission import Admission
from art.server.streaming import KEEP_ALIVE, ClientGone, EventStream, Watch, until_gone, write_events


async def ticking(release: asyncio.Event) -> AsyncIterator[bytes]:
    yield b"one"
    await release.wait()
    yield b"two"


def test_a_silent_source_is_bridged_by_comments() -> None:
    async def main() -> list[bytes]:
        release = asyncio.Event()
        out: list[bytes] = []

        async def write(item: bytes) -> None:
            out.append(item)
            if out.count(KEEP_ALIVE) == 3:
                release.set()

        await write_events(ticking(release), write, seconds=0.01)
        return out

    out = asyncio.run(main())
    assert out[0] == b"one"
    assert out[-1] == b"two"
    assert out.count(KEEP_ALIVE) >= 3


def test_an_error_of_the_source_reaches_the_writer() -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"one"
        raise ValueError("broken")

    async def write(item: bytes) -> None:
        pass

    with pytest.raises(ValueError, match="broken"):
        asyncio.run(write_events(broken(), write, seconds=5))


def test_a_sign_that_cannot_be_written_hurts_nobody() -> None:
    """The connection broke in silence; whoever watches it ends the stream."""

    async def main() -> list[bytes]:
        release, out = asyncio.Event(), []

        async def write(item: bytes) -> None:
            if item == KEEP_ALIVE:
                release.set()
                raise OSError("broken pipe")
            out.append(item)

        await write_events(ticking(release), write, seconds=0.01)
        return out

    assert asyncio.run(main()) == [b"one", b"two"]


def test_work_ends_with_the_client() -> None:
    async def main() -> tuple[Any, Any, bool]:
        gone = asyncio.Event()
        ended = False

        async def receive() -> dict[str, Any]:
            await gone.wait()
            return {"type": "http.disconnect"}

        async def work() -> str:
            nonlocal ended
            try:
                gone.set()
                await asyncio.sleep(60)
            finally:
                ended = True
            return "late"

        async def quick() -> str:
            return "done"

        return await until_gone(quick(), receive), await until_gone(work(), receive), ended

    first, second, ended = asyncio.run(main())
    assert (first, second, ended) == ("done", None, True)


@pytest.mark.parametrize("leaves", [True, False])
def test_a_stream_tells_when_its_client_has_gone(leaves: bool) -> None:
    async def main() -> tuple[list[bytes], int]:
        gone, release = asyncio.Event(), asyncio.Event()
        bodies: list[bytes] = []
        told = 0

        async def receive() -> dict[str, Any]:
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message.get("body"):
                bodies.append(message["body"])
                (gone if leaves else release).set()

        async def on_gone() -> None:
            nonlocal told
            told += 1

        await EventStream(ticking(release), on_gone)({"type": "http"}, receive, send)
        return bodies, told

    bodies, told = asyncio.run(main())
    assert (bodies, told) == (([b"one"], 1) if leaves else ([b"one", b"two"], 0))


def test_a_connection_that_breaks_while_it_is_written_to_is_a_client_that_has_gone() -> None:
    async def main() -> int:
        told = 0

        async def receive() -> dict[str, Any]:
            await asyncio.sleep(60)
            return {}

        async def send(message: Any) -> None:
            if message.get("body"):
                raise OSError("broken pipe")

        async def on_gone() -> None:
            nonlocal told
            told += 1

        await EventStream(ticking(asyncio.Event()), on_gone)({"type": "http"}, receive, send)
        return told

    assert asyncio.run(main()) == 1


def test_past_the_bound_calls_are_turned_away_and_places_come_back() -> None:
    admission = Admission(2)
    with admission.enter():
        with admission.enter(), pytest.raises(Overloaded), admission.enter():
            pass
        with admission.enter():
            pass


def test_a_client_that_leaves_as_the_work_ends_cancels_nothing_that_comes_next() -> None:
    async def main() -> str:
        left = asyncio.Event()

        async def receive() -> dict[str, Any]:
            await left.wait()
            return {"type": "http.disconnect"}

        async def work() -> str:
            left.set()
            for _ in range(3):  # the watcher ends and asks for the cancellation while this task is scheduled
                if watch._leaving.done():
                    break
                await asyncio.sleep(0)
            return "done"

        watch = Watch(receive)
        try:
            result = await watch.during(work())
        except ClientGone:
            result = "gone"
        await asyncio.sleep(0.01)  # where a cancellation left over would strike
        assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]
        return result

    assert asyncio.run(main()) in ("done", "gone")


def test_the_servers_own_cancellation_is_not_taken_for_a_client_that_left() -> None:
    async def main() -> bool:
        async def receive() -> dict[str, Any]:
            await asyncio.sleep(60)
            return {}

        async def request() -> None:
            watch = Watch(receive)
            try:
                await watch.during(asyncio.sleep(60))
            finally:
                watch.close()

        task = asyncio.ensure_future(request())
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    assert asyncio.run(main())
