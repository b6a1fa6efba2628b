"""The gateway's end of a worker's channel: requests out, events and results in."""

from __future__ import annotations

import asyncio
import copy
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

from art.errors import ArtError, DeadlineExceeded, InfraError, InvalidInput, WorkerDied, from_dict
from art.ipc import PREFIX_BYTES, Message, decode_body, encode_frame, frame_length

LOST_HEARTBEATS = 5
"""Heartbeats in a row that may not name a request before it counts as lost."""
HEARTBEAT_GAP_SECONDS = 0.25
"""Heartbeats that are read closer to one another count as one. A gateway that was held up reads several at once, all of
them older than the requests that it has just written."""
_READ_LIMIT = 1 << 20  # bytes the stream reader buffers before it stops reading from the socket


class Channel:
    """Multiplexes requests over one socket. Everything runs on one event loop."""

    def __init__(self, name: str, on_control: Callable[[Message], None]) -> None:
        self._name = name
        self._on_control = on_control
        self._pending: dict[int, _Request] = {}
        self._unnamed: dict[int, int] = {}
        """Pending requests that the worker does not know, with the number of heartbeats that said so."""
        self._compared_at = 0.0
        self._next_id = 1
        self.heard = 0
        """Messages about requests so far: while it grows, the worker gets on."""
        self._heard_at = time.monotonic()
        self._closed: ArtError | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def run(self, sock: socket.socket) -> None:
        """Read frames until the worker closes its end; InfraError when it sends what is no frame."""
        reader, self._writer = await asyncio.open_connection(sock=sock, limit=_READ_LIMIT)
        try:
            while True:
                prefix = await reader.readexactly(PREFIX_BYTES)
                for message in decode_body(await reader.readexactly(frame_length(prefix))):
                    self._dispatch(message)
        except (asyncio.IncompleteReadError, OSError):
            return
        except (ValueError, TypeError, KeyError, AttributeError, struct.error) as error:
            raise InfraError(
                f"the {self._name} sent a damaged frame",
                cause=str(error),
                hint="it is started anew; see its log in server/logs",
            ) from error

    def _dispatch(self, message: Message) -> None:
        key = message.get("id")
        if key is None:
            if "heartbeat" in message:
                self._compare(message["heartbeat"].get("requests"))
            self._on_control(message)
            return
        self.heard += 1
        self._heard_at = time.monotonic()
        waiting = self._pending.get(key)
        if waiting is not None:  # an answer to a cancelled request has nobody waiting
            waiting.take(message)

    def _compare(self, named: list[int] | None) -> None:
        """Fail what waits for a request that the worker does not know: its answer was lost, or never comes.

        A heartbeat may overtake a request on its way in, but not an answer on its way out; so a few are waited
        for, and none counts while requests of ours are still unsent.
        """
        if named is None or self._writer is None or self._writer.transport.get_write_buffer_size():
            return
        if (now := time.monotonic()) - self._compared_at < HEARTBEAT_GAP_SECONDS:
            return
        self._compared_at = now
        known = set(named)
        self._unnamed = {key: self._unnamed.get(key, 0) + 1 for key in self._pending if key not in known}
        for key, times in self._unnamed.items():
            if times == LOST_HEARTBEATS:
                lost = WorkerDied(
                    f"the {self._name} has lost a request",
                    cause=f"it is not among the requests that {times} heartbeats in a row say are worked on",
                    hint="see its log in server/logs; it is asked again where that is safe",
                )
                self._pending[key].take(lost)

    def fail(self, error: ArtError) -> None:
        """End every pending request, and every later one, with `error`."""
        self._closed = error
        for waiting in self._pending.values():
            waiting.take(error)
        if self._writer is not None:
            self._writer.close()

    @property
    def quiet(self) -> float:
        """Seconds since the last message about any request."""
        return time.monotonic() - self._heard_at

    @property
    def closed(self) -> bool:
        """This side has ended it."""
        return self._closed is not None

    @property
    def pending(self) -> int:
        """Requests without a last message."""
        return len(self._pending)

    async def call(
        self,
        method: str,
        params: dict[str, Any],
        *,
        silence: float,
        on_event: Callable[[dict[str, Any]], None] | None = None,
        settle: float = 0.0,
        on_unsettled: Callable[[], None] | None = None,
    ) -> dict[str, Any]:
        """The result of one request. Raises the worker's error, WorkerDied when it ends, DeadlineExceeded after
        `silence` seconds without a message.

        Its events go to `on_event` as they are read, in no task of their own: a streamed token pays for every hop.
        What `on_event` raises ends the call, and is raised here.

        Cancelling cancels it in the worker. With `settle` (seconds) it then waits that long for the worker's
        last word: a result that was on its way is returned, because what was done is done. `on_unsettled` is
        called when there was none by then.
        """
        key, waiting = self._open(method, params, on_event)
        watch = _Silence(waiting, silence, self._silent(method, silence))
        done = False
        try:
            # Shielded: a cancelled wait must not drop the last message, which may be on its way.
            message = self._check(await asyncio.shield(waiting.last))
            done = True
            return dict(message["result"])
        except asyncio.CancelledError:
            if not settle:
                raise
            self._send({"id": key, "cancel": True})
            result = await self._last_word(waiting, settle, on_unsettled)
            done = True
            if result is None:
                raise
            return result
        except ArtError as error:
            done = not waiting.failed and not isinstance(error, DeadlineExceeded)
            raise
        finally:
            watch.stop()
            del self._pending[key]
            if not done:
                self._send({"id": key, "cancel": True})

    async def _last_word(
        self, waiting: _Request, settle: float, on_unsettled: Callable[[], None] | None
    ) -> dict[str, Any] | None:
        """The result of a cancelled request, or None when it ended without one."""
        try:
            async with asyncio.timeout(settle):
                return dict(self._check(await asyncio.shield(waiting.last))["result"])
        except ArtError:
            return None
        except TimeoutError:
            if on_unsettled is not None:
                on_unsettled()
            return None

    @staticmethod
    def _check(message: Message | Exception) -> Message:
        if isinstance(message, ArtError):
            raise copy.copy(message)  # one per waiter: a traceback belongs to one raise
        if isinstance(message, Exception):
            raise message
        if "error" in message:
            raise from_dict(message["error"])
        return message

    def _open(
        self, method: str, params: dict[str, Any], on_event: Callable[[dict[str, Any]], None] | None
    ) -> tuple[int, _Request]:
        if self._closed is not None:
            raise copy.copy(self._closed)
        key = self._next_id
        self._next_id += 1
        try:
            frame = encode_frame({"id": key, "method": method, "params": params})
        except (ValueError, TypeError, RecursionError) as error:
            raise InvalidInput(
                f"the request {method!r} cannot be sent to the {self._name}",
                cause=str(error),
                hint="a number of it is not finite, or it is too large: send less at once",
            ) from error
        waiting = _Request(on_event)
        self._pending[key] = waiting
        self._write(frame)
        return key, waiting

    def _silent(self, method: str, silence: float) -> DeadlineExceeded:
        return DeadlineExceeded(
            f"the {self._name} did not answer {method!r} within {silence:.0f} s",
            hint="its log lies in server/logs; the machine may be overloaded",
        )

    def _send(self, message: Message) -> None:
        self._write(encode_frame(message))

    def _write(self, frame: bytes) -> None:
        if self._writer is not None and self._closed is None and not self._writer.is_closing():
            self._writer.write(frame)


class _Request:
    """A request on its way: where its events go, and its last message."""

    def __init__(self, on_event: Callable[[dict[str, Any]], None] | None) -> None:
        self._on_event = on_event
        self._loop = asyncio.get_running_loop()
        self.last: asyncio.Future[Message | Exception] = self._loop.create_future()
        self.heard = self._loop.time()
        """When the last message came."""
        self.failed = False
        """`on_event` raised; the worker goes on with the request."""

    def take(self, message: Message | ArtError) -> None:
        """Hand on one message. What comes after the last one is for nobody."""
        self.heard = self._loop.time()
        if self.last.done():
            return
        if isinstance(message, ArtError) or "event" not in message:
            self.last.set_result(message)
        elif self._on_event is not None:
            try:
                self._on_event(message["event"])
            except Exception as error:  # noqa: BLE001 - raised again by who waits
                self.failed = True
                self.last.set_result(error)


class _Silence:
    """Ends a request with `error` when nothing came for `seconds`.

    One timer for a whole request, which looks when the last message came: a timer for every message would cost a
    streamed token more than reading it.
    """

    def __init__(self, waiting: _Request, seconds: float, error: ArtError) -> None:
        self._waiting, self._seconds, self._error = waiting, seconds, error
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(seconds, self._look)

    def stop(self) -> None:
        """Nothing more is waited for."""
        self._timer.cancel()

    def _look(self) -> None:
        left = self._waiting.heard + self._seconds - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
        else:
            self._waiting.take(self._error)
