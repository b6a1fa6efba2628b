"""Which rollout the running code belongs to.

`gather` and `art.rollout` set a scope; the HTTP transport of our own clients reads it and sends the
rollout's id with every call to the model. A context variable, so that thousands of rollouts can share one
client: each asyncio task, and each thread started through `asyncio.to_thread`, sees its own.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

HEADER_ROLLOUT = "X-ART-Rollout"
HEADER_PROJECT = "X-ART-Project"


@dataclass(eq=False)
class RolloutScope:
    """One rollout as the client sees it while it runs."""

    rollout_id: str
    opened_by_header: bool = True
    """True: the server opens the rollout at its first call. False: `art.rollout` opened it beforehand."""
    connections: list[Any] = field(default_factory=list)
    """The servers that saw a call of this rollout (`backends.http.Connection`)."""

    def note(self, connection: object) -> None:
        """Remember that a call of this rollout went to `connection`."""
        if connection not in self.connections:
            self.connections.append(connection)


_current: ContextVar[RolloutScope | None] = ContextVar("art_rollout", default=None)


def new_rollout_id() -> str:
    """A fresh id, unique without asking the server."""
    return f"ro-{uuid.uuid4().hex}"


def current_scope() -> RolloutScope | None:
    """The rollout this code runs for, or None."""
    return _current.get()


def enter_scope(scope: RolloutScope) -> None:
    """Set the scope for the rest of this task. For code that owns its whole task."""
    _current.set(scope)


@contextmanager
def rollout_scope(scope: RolloutScope) -> Iterator[RolloutScope]:
    """Set the scope inside a `with` block."""
    token = _current.set(scope)
    try:
        yield scope
    finally:
        _current.reset(token)
