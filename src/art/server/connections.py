"""Connections that only cost: whose client sends no request, or takes nothing of its answer.

Looked at from outside, now and then, so that a streamed token pays nothing for it: a connection that has not moved for as
long as the settings allow is cut off, and what it held (a descriptor, buffers, a place among the calls) is free again.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import struct
from collections.abc import Collection, Sequence
from typing import Any

logger = logging.getLogger(__name__)

LOOKS = 6
"""Within the time that a client may be silent."""
WANTED_DESCRIPTORS = 65_536
"""What the server asks of the system for itself; the usual limit of 1,024 is a thousand streams."""
SEND_BYTES = 256 * 1024
"""Of an answer that the system keeps for its client; left to itself it keeps 4 MB for each, and nobody sees that the
client reads no more. Enough for 2 MB a second over a connection with 100 ms there and back."""
RESERVE = 512
"""Descriptors for the store, token files and workers, whatever the number of connections."""


def raise_descriptor_limit() -> None:
    """Take as many descriptors as the system lets this process have, up to WANTED_DESCRIPTORS."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, WANTED_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def most_connections() -> int:
    """Connections that are served; the ones beyond are told to come again, while there are still descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return WANTED_DESCRIPTORS
    return max(soft - RESERVE, soft // 2)


def bound_buffers(listener: socket.socket) -> None:
    """Let the system keep no more than SEND_BYTES for a client of this socket that takes nothing."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)


class Connections:
    """All connections of a server; cuts off those that do not move. `doors` are the sets of uvicorn's protocol objects."""

    def __init__(self, doors: Sequence[Collection[Any]], *, silent_seconds: float) -> None:
        self._doors = doors
        self._silent_seconds = silent_seconds
        self._still: dict[Any, tuple[tuple[str, int], int]] = {}
        """What a connection waits for, and how many looks in a row have found it waiting for the very same."""

    def __len__(self) -> int:
        return sum(len(door) for door in self._doors)

    async def watch(self) -> None:
        """Look for ever."""
        while True:
            await asyncio.sleep(self._silent_seconds / LOOKS)
            try:
                self.look()
            except Exception:
                # A boundary: what it looks at belongs to the HTTP server. Nobody waits for this task.
                logger.exception("connections could not be looked at")

    def look(self) -> None:
        """Cut off what LOOKS looks in a row have found the same.

        Looks count, not seconds: between two of them the event loop takes what has come from every client, and when it is
        held up itself nobody is cut off for that.
        """
        before, self._still = self._still, {}
        for connection in [connection for door in self._doors for connection in door]:
            waits = _waits_for(connection)
            if waits is None:
                continue
            known = before.get(connection)
            times = known[1] + 1 if known is not None and known[0] == waits else 0
            if times < LOOKS:
                self._still[connection] = waits, times
                continue
            logger.info("a connection was cut off: its client %s", waits[0])
            _reset(connection.transport)


def _reset(transport: asyncio.Transport) -> None:
    """Close without a word: in an orderly end the system would keep for minutes what the client does not take."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


def _waits_for(connection: Any) -> tuple[str, int] | None:
    """What the client has to do next, with a figure that changes when it does some of it; None where it is our turn."""
    transport, cycle = connection.transport, connection.cycle
    if transport is None:
        return None
    unsent = transport.get_write_buffer_size()
    if unsent:
        return "took nothing of its answer", unsent
    between = cycle is None or cycle.response_complete
    # uvicorn has a timer of its own for connections that wait for a next request, and none for half of one.
    if between and connection.timeout_keep_alive_task is None:
        return "sent no request", 0
    return None
