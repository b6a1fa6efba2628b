"""Answers that take a while: server-sent events with signs of life, and what to do when the client has gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

T = TypeVar("T")

KEEP_ALIVE_SECONDS = 10.0
"""Proxies and clients drop connections that are silent for 30 to 60 s; a comment every 10 s is cheap."""
KEEP_ALIVE = b": keep-alive\n\n"
PING = b'event: ping\ndata: {"type":"ping"}\n\n'
"""Anthropic's sign of life."""
DONE = b"data: [DONE]\n\n"


def sse(data: dict[str, Any]) -> bytes:
    """One event."""
    return b"data: " + to_json(data) + b"\n\n"


async def write_events(
    source: AsyncIterator[bytes],
    write: Callable[[bytes], Awaitable[None]],
    *,
    seconds: float = KEEP_ALIVE_SECONDS,
    sign: bytes = KEEP_ALIVE,
) -> None:
    """Write the items of `source` as they come, and `sign` whenever nothing was written for `seconds`.

    The source is read where it is written, with no task between the two: a streamed token pays for every hop. The
    signs have a task of their own, which looks now and then.
    """
    loop = asyncio.get_running_loop()
    said = loop.time()

    async def signs() -> None:
        nonlocal said
        while True:
            await asyncio.sleep(max(said + seconds - loop.time(), 0.0))
            if loop.time() - said >= seconds:
                said = loop.time()
                await write(sign)

    signing = asyncio.ensure_future(signs())
    try:
        async for item in source:
            said = loop.time()
            await write(item)
    finally:
        signing.cancel()
        await asyncio.wait([signing])
        if not signing.cancelled():
            signing.exception()  # a connection that broke; the next item, or its watcher, says so


def named_event(data: dict[str, Any]) -> bytes:
    """One event under the name that is its `type`, as Anthropic's API and OpenAI's Responses write them."""
    return f"event: {data['type']}\n".encode() + sse(data)


class EventStream(Response):
    """A stream of server-sent events. `on_gone` runs when the client leaves before the end."""

    media_type = "text/event-stream"

    def __init__(
        self,
        source: AsyncIterator[bytes],
        on_gone: Callable[[], Awaitable[None]],
        *,
        keep_alive: bytes = KEEP_ALIVE,
        watch: Watch | None = None,
    ) -> None:
        self._source = source
        self._watch = watch
        self._keep_alive = keep_alive
        self._on_gone = on_gone
        self.status_code = 200
        self.background = None
        # X-Accel-Buffering: a proxy that collects the stream would make it useless.
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        finished = False

        async def body(chunk: bytes) -> None:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})

        async def pump() -> None:
            nonlocal finished
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await write_events(self._source, body, sign=self._keep_alive)
            finished = True
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        watch = self._watch or Watch(receive)
        try:
            await watch.during(pump())
        except (OSError, ClientGone):
            pass  # the connection broke while we wrote, or its other end has left
        finally:
            watch.close()
            if not finished:
                await self._on_gone()


class ClientGone(Exception):
    """The client closed the connection before it had its answer."""


class Watch:
    """Watches whether a request's client is there, from now until `close`. The request's body must have been read.

    Work runs in the task that waits for it, which is cancelled when the client goes: beside other streams every task
    between a token and its socket costs a turn of the event loop.
    """

    def __init__(self, receive: Receive) -> None:
        self._leaving = asyncio.ensure_future(_gone(receive))

    def close(self) -> None:
        """Watch no longer."""
        self._leaving.cancel()

    async def during(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`; ClientGone when the client leaves first: `work` was then cancelled and has ended."""
        task = asyncio.current_task()
        assert task is not None
        before, left, over = task.cancelling(), False, False

        def cancel(_: asyncio.Future[None]) -> None:
            nonlocal left
            if not over:  # a callback that was on its way cannot be taken back
                left = True
                task.cancel()

        self._leaving.add_done_callback(cancel)
        try:
            return await work
        except asyncio.CancelledError:
            ours, left = left, False
            if ours and task.uncancel() <= before:
                raise ClientGone from None
            raise
        finally:
            over = True
            self._leaving.remove_done_callback(cancel)
            if left:
                await _absorb(task)


async def _absorb(task: asyncio.Task[Any]) -> None:
    """Take back a cancellation that was asked for when the work had ended already: it is not for what comes next."""
    others = task.uncancel()
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        if others:  # somebody else's, too
            raise


async def until_gone(work: Coroutine[Any, Any, T], receive: Receive) -> T | None:
    """The result of `work`, or None when the client leaves first; `work` is then cancelled and has ended."""
    watch = Watch(receive)
    try:
        return await watch.during(work)
    except ClientGone:
        return None
    finally:
        watch.close()


async def _gone(receive: Receive) -> None:
    """Returns when the client has closed the connection. The request's body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def answer_or_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """`Watch.during` for a route that answers in one piece."""
    watch = Watch(request.receive)
    try:
        return await watch.during(work)
    finally:
        watch.close()
