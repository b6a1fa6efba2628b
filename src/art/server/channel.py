"""The gateway's end of a worker's channel: requests out, events and results in."""

from __future__ import annotations

import asyncio
import copy
import socket
import struct
from collections.abc import AsyncGenerator, Callable
from typing import Any

from art.errors import ArtError, DeadlineExceeded, InfraError, InvalidInput, WorkerDied, from_dict
from art.ipc import PREFIX_BYTES, Message, decode_body, encode_frame, frame_length

LOST_HEARTBEATS = 5
"""Heartbeats in a row that may not name a request before it counts as lost."""
_READ_LIMIT = 1 << 20  # bytes the stream reader buffers before it stops reading from the socket


class Channel:
    """Multiplexes requests over one socket. Everything runs on one event loop."""

    def __init__(self, name: str, on_control: Callable[[Message], None]) -> None:
        self._name = name
        self._on_control = on_control
        self._pending: dict[int, asyncio.Queue[Message | ArtError]] = {}
        self._unnamed: dict[int, int] = {}
        """Pending requests that the worker does not know, with the number of heartbeats that said so."""
        self._next_id = 1
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
        waiting = self._pending.get(key)
        if waiting is not None:  # an answer to a cancelled request has nobody waiting
            waiting.put_nowait(message)

    def _compare(self, named: list[int] | None) -> None:
        """Fail what waits for a request that the worker does not know: its answer was lost, or never comes.

        A heartbeat may overtake a request on its way in, but not an answer on its way out; so a few are waited
        for, and none counts while requests of ours are still unsent.
        """
        if named is None or self._writer is None or self._writer.transport.get_write_buffer_size():
            return
        known = set(named)
        self._unnamed = {key: self._unnamed.get(key, 0) + 1 for key in self._pending if key not in known}
        for key, times in self._unnamed.items():
            if times == LOST_HEARTBEATS:
                lost = WorkerDied(
                    f"the {self._name} has lost a request",
                    cause=f"it is not among the requests that {times} heartbeats in a row say are worked on",
                    hint="see its log in server/logs; it is asked again where that is safe",
                )
                self._pending[key].put_nowait(lost)

    def fail(self, error: ArtError) -> None:
        """End every pending request, and every later one, with `error`."""
        self._closed = error
        for waiting in self._pending.values():
            waiting.put_nowait(error)
        if self._writer is not None:
            self._writer.close()

    @property
    def pending(self) -> int:
        """Requests without a last message."""
        return len(self._pending)

    async def stream(
        self, method: str, params: dict[str, Any], *, silence: float
    ) -> AsyncGenerator[Message, None]:
        """The messages of one request: events, then the one with `result`.

        Closing the iterator early cancels the request in the worker. Raises the worker's error, WorkerDied
        when it ends, DeadlineExceeded after `silence` seconds without a message.
        """
        key, waiting = self._open(method, params)
        watch = _Silence(waiting, silence, self._silent(method, silence))
        done = False
        try:
            while True:
                try:
                    message = self._check(await waiting.get())
                except ArtError as error:
                    done = not isinstance(error, DeadlineExceeded)
                    raise
                watch.heard()
                done = "result" in message
                yield message
                if done:
                    return
        finally:
            watch.stop()
            del self._pending[key]
            if not done:
                self._send({"id": key, "cancel": True})

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
        """The result of one request; its events go to `on_event`.

        Cancelling cancels it in the worker. With `settle` (seconds) it then waits that long for the worker's
        last word: a result that was on its way is returned, because what was done is done. `on_unsettled` is
        called when there was none by then.
        """
        key, waiting = self._open(method, params)
        done = False
        try:
            while True:
                try:
                    message = self._check(await self._next(waiting, method, silence))
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
                    done = not isinstance(error, DeadlineExceeded)
                    raise
                if "result" in message:
                    done = True
                    return dict(message["result"])
                if on_event is not None:
                    on_event(message["event"])
        finally:
            del self._pending[key]
            if not done:
                self._send({"id": key, "cancel": True})

    async def _last_word(
        self,
        waiting: asyncio.Queue[Message | ArtError],
        settle: float,
        on_unsettled: Callable[[], None] | None,
    ) -> dict[str, Any] | None:
        """The result of a cancelled request, or None when it ended without one."""
        try:
            async with asyncio.timeout(settle):
                while True:
                    message = self._check(await waiting.get())
                    if "result" in message:
                        return dict(message["result"])
        except ArtError:
            return None
        except TimeoutError:
            if on_unsettled is not None:
                on_unsettled()
            return None

    @staticmethod
    def _check(message: Message | ArtError) -> Message:
        if isinstance(message, ArtError):
            raise copy.copy(message)  # one per waiter: a traceback belongs to one raise
        if "error" in message:
            raise from_dict(message["error"])
        return message

    def _open(self, method: str, params: dict[str, Any]) -> tuple[int, asyncio.Queue[Message | ArtError]]:
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
        waiting: asyncio.Queue[Message | ArtError] = asyncio.Queue()
        self._pending[key] = waiting
        self._write(frame)
        return key, waiting

    async def _next(
        self, waiting: asyncio.Queue[Message | ArtError], method: str, silence: float
    ) -> Message | ArtError:
        try:
            # Not wait_for: in Python 3.11 it swallows a cancellation that comes together with a message.
            async with asyncio.timeout(silence):
                return await waiting.get()
        except TimeoutError:
            raise self._silent(method, silence) from None

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


class _Silence:
    """Puts `error` into a queue that got nothing for `seconds`.

    One timer for a whole stream, which looks when the last message came: a timer for every message would cost a
    streamed token more than reading it.
    """

    def __init__(self, waiting: asyncio.Queue[Message | ArtError], seconds: float, error: ArtError) -> None:
        self._waiting, self._seconds, self._error = waiting, seconds, error
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        self._timer = self._loop.call_later(seconds, self._look)

    def heard(self) -> None:
        """A message came."""
        self._last = self._loop.time()

    def stop(self) -> None:
        """Nothing more is waited for."""
        self._timer.cancel()

    def _look(self) -> None:
        left = self._last + self._seconds - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
        else:
            self._waiting.put_nowait(self._error)
