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

from art.rollouts.recording import Recording, enter_recording, recording_into

HEADER_ROLLOUT = "X-ART-Rollout"
HEADER_PROJECT = "X-ART-Project"
HEADER_GROUP = "X-ART-Group"
HEADER_MEMBER = "X-ART-Member"


@dataclass(eq=False)
class RolloutScope:
    """One rollout as the client sees it while it runs.

    A rollout belongs to one model: that of the session, or the first one called. Calls of the same code to
    other models (an opponent, a teacher that is trained too) are rollouts of their own beside it.
    """

    rollout_id: str
    owner: tuple[object, str, str] | None = None
    """(connection, project, name) of the model it belongs to; None until the first call."""
    beside: dict[tuple[object, str, str], str] = field(default_factory=dict)
    """The rollouts of the other models called."""
    opened_by_header: bool = True
    """True: the server opens the rollout at its first call. False: `art.rollout` opened it beforehand."""

    group_id: str | None = None
    """The group it is compared within, where one is known."""
    member: int = 0
    """Its number within the group."""
    recording: Recording = field(init=False)
    """What our own clients were answered under this scope."""

    def __post_init__(self) -> None:
        self.recording = Recording(self.rollout_id)

    def id_for(self, connection: object, project: str, name: str) -> str:
        """The rollout that a call to this model belongs to."""
        key = (connection, project, name)
        if self.owner is None:
            self.owner = key
        if key == self.owner:
            return self.rollout_id
        return self.beside.setdefault(key, f"{self.rollout_id}.{len(self.beside) + 1}")

    def opened(self) -> list[tuple[Any, str]]:
        """(connection, rollout id) of every rollout that calls under this scope have opened by header."""
        mine = [(self.owner[0], self.rollout_id)] if self.owner and self.opened_by_header else []
        return [*mine, *((key[0], rollout_id) for key, rollout_id in self.beside.items())]


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
    enter_recording(scope.recording)


@contextmanager
def rollout_scope(scope: RolloutScope) -> Iterator[RolloutScope]:
    """Set the scope inside a `with` block."""
    token = _current.set(scope)
    try:
        with recording_into(scope.recording):
            yield scope
    finally:
        _current.reset(token)
