"""Frames between the gateway and its worker processes.

A frame is a 4-byte big-endian length and that many bytes of UTF-8 JSON. The JSON is one message or a list
of messages, so that one decode step of the engine is one frame. No pickle.

Gateway to worker:
    {"id": 7, "method": "generate", "params": {...}}      a request
    {"id": 7, "cancel": true}                             the caller has gone

Worker to gateway:
    {"id": 7, "event": {...}}                             any number, in order
    {"id": 7, "result": {...}}                            last message of a request that succeeded
    {"id": 7, "error": {"code", "message", "cause", "hint"}}   last message of one that failed
    {"ready": {...}}                                      once, when the worker can take requests
    {"failed": {"code", ...}}                             instead of ready: why it cannot start
    {"heartbeat": {"seq": 3, "stats": {...}, "requests": [7]}}   every second, from a thread of its own;
                                                          `requests`: taken, and not answered for good

A message that cannot be sent (a number that is not finite, more than a frame may hold) becomes the error of
its request: an answer is never silence.

The worker inherits one end of a socket pair as file descriptor `ART_WORKER_FD`; end of file on it means
that the gateway has gone, and the worker exits.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable, Collection
from types import TracebackType
from typing import Any

from art.errors import InfraError

FD_VARIABLE = "ART_WORKER_FD"
HEARTBEAT_SECONDS = 1.0
MAX_FRAME_BYTES = 256 * 1024 * 1024  # a guard against a corrupt length, far above any real frame
STACKS_SIGNAL = (
    signal.SIGUSR1 if sys.platform != "win32" else signal.SIGTERM
)  # clients read this module anywhere
"""Has a worker that is ready write the stacks of all its threads to its log, also while native code holds it."""
READER, HEARTBEAT = "reader", "heartbeat"
"""Names of the threads without which a worker answers nobody."""

Message = dict[str, Any]
_LENGTH = struct.Struct(">I")


def encode_frame(payload: Message | list[Message]) -> bytes:
    """One frame: length prefix and JSON.

    ValueError for NaN and infinity, which are not JSON, and past MAX_FRAME_BYTES; TypeError for what JSON
    cannot hold.
    """
    body = json.dumps(payload, separators=(",", ":"), allow_nan=False).encode()
    if len(body) > MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {len(body)} bytes is over the limit of {MAX_FRAME_BYTES}")
    return _LENGTH.pack(len(body)) + body


def decode_body(body: bytes) -> list[Message]:
    """The messages of one frame's body, always as a list."""
    payload = json.loads(body)
    return payload if isinstance(payload, list) else [payload]


def frame_length(prefix: bytes) -> int:
    """The length announced by a 4-byte prefix; ValueError past MAX_FRAME_BYTES."""
    (length,) = _LENGTH.unpack(prefix)
    if length > MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {length} bytes is over the limit of {MAX_FRAME_BYTES}")
    return int(length)


def unsendable(message: Message, error: Exception) -> Message:
    """What is sent instead of a message that cannot be encoded."""
    if "heartbeat" in message:  # the process lives; its figures do not matter as much
        return {"heartbeat": message["heartbeat"] | {"stats": {}}}
    answer = InfraError(
        "an answer could not be sent",
        cause=f"{type(error).__name__}: {error}",
        hint="a figure of it is not finite or it is too large; see the worker's log in server/logs",
    ).to_dict()
    return {"id": message["id"], "error": answer} if "id" in message else {"failed": answer}


PREFIX_BYTES = _LENGTH.size


def be_a_worker() -> None:
    """What a process owes the gateway that started it: stacks when they are asked for, and no half-life.

    A crash in native code leaves the stacks of its threads in the log. An exception that ends the main thread or one of
    those that carry the channel ends the process, even while other threads compute: the gateway then tells whoever
    waits, where a worker without its reader would answer nobody.
    """
    faulthandler.enable()
    faulthandler.register(STACKS_SIGNAL, all_threads=True, chain=False)
    sys.excepthook = _end_main
    threading.excepthook = _end_thread


def _end_main(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    sys.__excepthook__(kind, error, trace)
    os._exit(1)


def _end_thread(failed: threading.ExceptHookArgs) -> None:
    threading.__excepthook__(failed)
    # Libraries start threads of their own, which may fail as they like.
    if failed.thread is not None and failed.thread.name in (READER, HEARTBEAT):
        os._exit(1)


class WorkerChannel:
    """The worker's end. `send` may be called from any thread; one thread calls `receive`."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lock = threading.Lock()

    @classmethod
    def inherited(cls) -> WorkerChannel:
        """The channel whose descriptor the gateway left in the environment; the process becomes a worker (`be_a_worker`)."""
        be_a_worker()
        fd = int(os.environ[FD_VARIABLE])
        return cls(socket.socket(fileno=fd))

    def send(self, payload: Message | list[Message]) -> set[int]:
        """Write one frame. OSError when the gateway has gone.

        Returns the requests of which a message could not be sent: they have been answered with an error.
        """
        messages = payload if isinstance(payload, list) else [payload]
        try:
            self._write(encode_frame(payload))
        except (ValueError, TypeError, RecursionError) as error:
            if len(messages) == 1:
                self._write(encode_frame(unsendable(messages[0], error)))
                return {int(message["id"]) for message in messages if "id" in message}
        else:
            return set()
        failed: set[int] = set()
        for message in messages:
            if message.get("id") not in failed:  # the error was its last message
                failed |= self.send(message)
        return failed

    def _write(self, frame: bytes) -> None:
        with self._lock:
            self._sock.sendall(frame)

    def receive(self) -> list[Message] | None:
        """The next frame's messages, or None when the gateway has gone."""
        prefix = self._read_exactly(PREFIX_BYTES)
        if prefix is None:
            return None
        body = self._read_exactly(frame_length(prefix))
        return None if body is None else decode_body(body)

    def _read_exactly(self, count: int) -> bytes | None:
        chunks = bytearray()
        while len(chunks) < count:
            try:
                chunk = self._sock.recv(min(count - len(chunks), 1 << 20))
            except OSError:
                return None
            if not chunk:
                return None
            chunks += chunk
        return bytes(chunks)

    def start_heartbeat(
        self, stats: Callable[[], dict[str, Any]], requests: Callable[[], Collection[int]] | None = None
    ) -> None:
        """Send a heartbeat every second from a daemon thread until the gateway has gone.

        `requests` gives the ids that the worker has taken and not answered; without it the heartbeat says
        nothing about them.
        """

        def beat() -> None:
            pause = threading.Event()
            seq = 0
            while True:
                body: Message = {"seq": seq, "stats": stats()}
                if requests is not None:
                    body["requests"] = sorted(requests())
                try:
                    self.send({"heartbeat": body})
                except OSError:
                    return
                seq += 1
                pause.wait(HEARTBEAT_SECONDS)

        threading.Thread(target=beat, name=HEARTBEAT, daemon=True).start()
