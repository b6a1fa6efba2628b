"""Answers that a repeated request gets again, within one session.

A request is repeated when it comes with an `Idempotency-Key` that came before, or when it is the very same request,
byte for byte, as one whose client went away before it had the whole answer. Any other repetition is sampled anew.

A call whose client went away is sampled on for `RETURN_SECONDS`: programs that lose a connection, or give up waiting,
send the same request again, and starting over would lose what was sampled, and would never end for an answer that
takes longer than the program waits. Nobody is known to come back to a session without an owner: there the call ends.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from typing import TYPE_CHECKING

from art.errors import Conflict

if TYPE_CHECKING:
    from art.server.generation import CallRun

RETURN_SECONDS = 10.0
"""How long a call goes on without a reader: SDKs repeat a request after 0.5 to 8 s."""
KEEP_SECONDS = 120.0
"""How long an answer that nobody got whole is kept after its client left."""
MAX_KEYED = 256
MAX_UNDELIVERED = 16
"""Answers of either kind that a session keeps; the oldest make room."""
MAX_KEYED_BYTES = 8 * 1024 * 1024
"""Of the requests of those under a key: a session must not keep 256 calls with bodies of megabytes."""


class Answers:
    """What a session keeps for repeated requests."""

    def __init__(self) -> None:
        self._keyed: OrderedDict[str, tuple[str, CallRun]] = OrderedDict()
        self._undelivered: OrderedDict[str, tuple[float, CallRun]] = OrderedDict()

    def find(self, key: str | None, digest: str) -> CallRun | None:
        """The call of the same request. Conflict when the key came with another one."""
        _, left = self._undelivered.pop(digest, (0.0, None))
        self._prune()
        if key is not None and key in self._keyed:
            first, run = self._keyed[key]
            if first != digest:
                raise Conflict(
                    f"the Idempotency-Key {key!r} was used for another request",
                    hint="a key belongs to one request; make a new one for each",
                )
            if not run.failed:
                return run
            del self._keyed[key]
        return left if left is not None and not left.failed else None

    def keep(self, key: str | None, digest: str, run: CallRun) -> None:
        """Remember a call under its key, if it has one."""
        if key is not None:
            self._keyed[key] = (digest, run)
            while len(self._keyed) > MAX_KEYED or (len(self._keyed) > 1 and self._bytes() > MAX_KEYED_BYTES):
                self._keyed.popitem(last=False)

    def _bytes(self) -> int:
        """Of the requests whose calls are kept under a key: what a call holds grows with its request."""
        return sum(run.plan.request.size for _, run in self._keyed.values())

    def left(self, digest: str, run: CallRun) -> None:
        """The client of a call has gone before it had the whole answer."""
        self._undelivered[digest] = (time.monotonic(), run)
        self._undelivered.move_to_end(digest)
        self._prune()

    def unread(self) -> list[CallRun]:
        """The calls that run on without a client."""
        return [run for _, run in self._undelivered.values() if run.unread and run.running]

    def _prune(self) -> None:
        bound = time.monotonic() - KEEP_SECONDS
        while self._undelivered:
            at, _ = next(iter(self._undelivered.values()))
            if at > bound and len(self._undelivered) <= MAX_UNDELIVERED:
                return
            self._undelivered.popitem(last=False)


def request_digest(dialect: str, raw: bytes) -> str:
    """What makes two requests the very same one."""
    return hashlib.sha256(dialect.encode() + b"\0" + raw).hexdigest()
