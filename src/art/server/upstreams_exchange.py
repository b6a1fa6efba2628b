"""One request passed on to an upstream: its answer is handed over as it comes, and kept on the side.

The exchange runs in a task of its own. However it ends (answered, refused, broken, the client gone, the rollout
ended), it is recorded, and the connection to the upstream is given back or closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import httpx2

from art.errors import ArtError, UpstreamFailed
from art.server.off_loop import OffLoop
from art.server.responses import error_body, shape_of
from art.server.upstreams import KNOWN_ROUTES, Upstream
from art.server.upstreams_answer import (
    answer_headers,
    broken,
    events,
    failure,
    is_stream,
    outcome_of,
    said,
    usage_of,
    wrong_json,
)
from art.types.upstreams import UpstreamCall

logger = logging.getLogger(__name__)

MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Of an answer in one piece: embeddings of a large batch are tens of MiB."""
MAX_KEPT_BYTES = 8 * 1024 * 1024
"""Of a stream's copy in the store; what comes after is passed on and not kept."""
WAITING_CHUNKS = 64
"""Chunks that wait for a slow client before the upstream is read no further."""


@dataclass(frozen=True, slots=True)
class Head:
    """Status and headers; `body` is None when the answer is a stream."""

    status: int
    headers: dict[str, str]
    body: bytes | None


@dataclass(frozen=True, slots=True)
class Passed:
    """What is passed on. `path` is the client's, for the shape of errors."""

    upstream: Upstream
    path: str
    route: str
    content: bytes
    headers: dict[str, str]


class Exchange:
    """`start` once, then `head`, then `chunks` if it is a stream. `keep` stores request and answer."""

    def __init__(
        self,
        passed: Passed,
        record: UpstreamCall,
        *,
        keep: Callable[[UpstreamCall, object], Any],
        seconds: float,
        off_loop: OffLoop,
    ) -> None:
        self._passed = passed
        self._record = record
        self._keep = keep
        self._seconds = seconds
        self._off_loop = off_loop
        self._head: asyncio.Future[Head] = asyncio.get_running_loop().create_future()
        self._chunks: asyncio.Queue[bytes | ArtError | None] = asyncio.Queue(WAITING_CHUNKS)
        self._task: asyncio.Task[None] | None = None
        self._stopped: ArtError | None = None
        self._whole: Head | None = None
        """An answer in one piece, handed over when it is recorded."""

    def start(self, left: Callable[[], None]) -> None:
        """Begin; `left` is called when it has ended and is recorded."""
        self._task = asyncio.create_task(self._run(), name=self._record.call_id)

        def ended(_: asyncio.Task[None]) -> None:
            # Not inside the task: one that is cancelled before it begins never runs.
            if not self._head.done():
                self._head.set_exception(self._stopped or UpstreamFailed("the call did not begin"))
                self._head.exception()  # heard, should nobody ask
            left()

        self._task.add_done_callback(ended)

    async def head(self) -> Head:
        """The beginning of the answer, or the error that ended the exchange before it."""
        return await asyncio.shield(self._head)

    async def chunks(self) -> AsyncIterator[bytes]:
        """The stream as it comes. An error in the middle is raised."""
        while (chunk := await self._chunks.get()) is not None:
            if isinstance(chunk, ArtError):
                raise chunk
            yield chunk

    async def cancel(self) -> None:
        """The client has gone: close the upstream's connection and record what there is."""
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])

    def stop(self, reason: ArtError) -> None:
        """End it from the server's side; the client gets `reason`."""
        assert self._task is not None
        self._stopped = reason
        self._task.cancel()

    async def _run(self) -> None:
        kept = bytearray()
        error: ArtError | None = None
        try:
            await self._exchange(kept)
        except asyncio.CancelledError:
            self._record.outcome = "cancelled"
            await self._settle(kept, self._stopped or UpstreamFailed("the client left"))
            raise
        except (TimeoutError, httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, OSError) as failed:
            error = broken(self._passed.upstream, failed)
        except ArtError as failed:
            error = failed
        except Exception as failed:
            # The boundary of an exchange: whoever waits for it must hear of a fault of ours too.
            logger.exception("passing a call on to %s failed", self._passed.upstream.name)
            error = UpstreamFailed("the server failed at passing this call on", cause=type(failed).__name__)
        await self._settle(kept, error)

    async def _settle(self, kept: bytearray, error: ArtError | None) -> None:
        """`_end`, whether or not this task is cancelled meanwhile."""
        await asyncio.shield(asyncio.ensure_future(self._end(bytes(kept), error)))

    async def _exchange(self, kept: bytearray) -> None:
        passed, loop = self._passed, asyncio.get_running_loop()
        upstream = passed.upstream
        async with asyncio.timeout(self._seconds) as deadline:
            request = upstream.client.build_request(
                "POST", upstream.url(passed.route), content=passed.content, headers=passed.headers
            )
            async with contextlib.aclosing(await upstream.client.send(request, stream=True)) as response:
                self._record.status = response.status_code
                self._record.first_byte_at = time.time()
                if not is_stream(response):
                    await self._read_whole(response, kept)
                    return
                self._head.set_result(Head(response.status_code, answer_headers(upstream, response), None))
                scrubber = upstream.scrubber()
                async for piece in response.aiter_bytes():
                    deadline.reschedule(loop.time() + self._seconds)
                    await self._pass(scrubber.feed(piece), kept)
                await self._pass(scrubber.finish(), kept)
        self._record.outcome = "answered"

    async def _pass(self, chunk: bytes, kept: bytearray) -> None:
        """Hand a part of a stream over, and keep it within the bound."""
        if len(kept) < MAX_KEPT_BYTES:
            kept += chunk
        if chunk:
            await self._chunks.put(chunk)

    async def _read_whole(self, response: httpx2.Response, kept: bytearray) -> None:
        """Take an answer in one piece, and decide whether the client gets it as it is."""
        upstream, status = self._passed.upstream, response.status_code
        async for chunk in response.aiter_bytes():
            kept += chunk
            if len(kept) > MAX_ANSWER_BYTES:
                raise UpstreamFailed(
                    f"the answer of the upstream {upstream.name} is over {MAX_ANSWER_BYTES} bytes"
                )
        body = upstream.scrub(bytes(kept))
        kept[:] = body
        failed = failure(upstream, status, body, location=response.headers.get("location", ""))
        if failed is not None:
            raise failed
        headers = answer_headers(upstream, response)
        is_json = await self._off_loop.run(len(body), _is_json, body)
        if not is_json and status >= 400:
            body, headers["content-type"] = self._in_our_words(status, body), "application/json"
        elif not is_json and (
            self._passed.route in KNOWN_ROUTES or "json" in headers.get("content-type", "")
        ):
            raise wrong_json(upstream, status, body)
        self._record.outcome = outcome_of(status)
        self._whole = Head(status, headers, body)

    def _in_our_words(self, status: int, body: bytes) -> bytes:
        """A refusal that was no JSON (a proxy's page), in the shape that the dialect's clients read."""
        error = UpstreamFailed(
            f"the upstream {self._passed.upstream.name} refused the request with {status}", cause=said(body)
        )
        return json.dumps(error_body(error, shape_of(self._passed.path))).encode()

    async def _end(self, kept: bytes, error: ArtError | None) -> None:
        """Record, then tell whoever waits: what was answered is kept."""
        record = self._record
        record.finished_at = time.time()
        if error is not None:
            record.error = str(self._stopped or error)
        try:
            answer = await self._off_loop.run(len(kept), _readable, kept, self._head.done())
            record.usage = usage_of(answer)
            await self._keep(record, answer)
        except Exception as failed:
            # A boundary: what the store cannot take must not leave the client without an answer.
            logger.exception("the call %s to %s is not recorded", record.call_id, record.upstream)
            cause = str(failed) if isinstance(failed, ArtError) else type(failed).__name__
            error = error or UpstreamFailed(
                f"the answer of the upstream {record.upstream} could not be recorded", cause=cause
            )
        if self._record.outcome == "cancelled" and self._stopped is None:
            return  # nobody is left to tell
        if self._head.done():
            with contextlib.suppress(TimeoutError):  # a client that reads no more hears no end
                async with asyncio.timeout(self._seconds):
                    await self._chunks.put(error)
        elif error is not None:
            self._head.set_exception(error)
        elif self._whole is not None:
            self._head.set_result(self._whole)


def _is_json(raw: bytes) -> bool:
    """JSON that can be stored too: Python's reader takes NaN and half characters, other readers do not."""
    try:
        json.dumps(json.loads(raw), ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return False
    return True


def _readable(raw: bytes, stream: bool) -> object:
    """An answer as it is stored: JSON, a stream's events, text, or the size of what is none of these."""
    if stream:
        return events(raw)
    if not raw:
        return None
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        pass
    try:
        return raw.decode()[:100_000]
    except UnicodeDecodeError:
        return {"bytes": len(raw)}
