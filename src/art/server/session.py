"""One open rollout: its pinned versions, its limits, its token memory."""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass, field
from typing import Any

from art.errors import Conflict, InvalidInput, LimitReached
from art.server.sampling import SeedSpace
from art.server.versions import ModelEntry
from art.store.records import RolloutRow
from art.tokens.graph import TokenGraph
from art.types.policy import Sampling

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True)
class CallHeaders:
    """What a call says about its rollout beside its body."""

    url_rollout: str | None = None
    rollout: str | None = None
    project: str | None = None
    scenario: str | None = None
    group: str | None = None
    member: int = 0
    agent: str | None = None


@dataclass(slots=True, eq=False)
class Session:
    """One open rollout."""

    row: RolloutRow
    entry: ModelEntry
    aliases: bool
    """True: an unknown model name means the session's model (unchanged agents ask for "gpt-4o")."""
    seeds: SeedSpace
    graph: TokenGraph = field(default_factory=TokenGraph)
    pins: dict[tuple[str, str], tuple[ModelEntry, int]] = field(default_factory=dict)
    """Per model, the step that `latest` meant when the session first used it."""
    heads: set[tuple[str, tuple[str, str], str]] = field(default_factory=set)
    """Keys under which a session without an owner is found by its history."""
    calls: int = 0
    tokens: int = 0
    running: int = 0
    started: float = field(default_factory=time.monotonic)
    used: float = field(default_factory=time.monotonic)
    """Of the last call."""
    answers: dict[str, tuple[str, asyncio.Future[Any]]] = field(default_factory=dict)
    """By Idempotency-Key: the digest of the request and its answer."""

    @property
    def id(self) -> str:
        return self.row.rollout_id

    @property
    def rule(self) -> Sampling:
        """Whose sampling parameters hold."""
        return self.row.sampling

    def seconds_left(self) -> float | None:
        """Wall time that the limits leave; None is unlimited."""
        bound = self.row.limits.max_seconds
        return None if bound is None else bound - (time.monotonic() - self.started)

    def tokens_left(self) -> int | None:
        """Tokens that may still be sampled; None is unlimited."""
        bound = self.row.limits.max_tokens
        return None if bound is None else bound - self.tokens

    def begin_call(self) -> int:
        """The number of a new call. LimitReached when the rollout has used up its limits."""
        limits, seconds, tokens = self.row.limits, self.seconds_left(), self.tokens_left()
        if limits.max_calls is not None and self.calls >= limits.max_calls:
            raise self._over("max_calls", f"{self.calls} of {limits.max_calls} calls were made")
        if tokens is not None and tokens <= 0:
            raise self._over("max_tokens", f"{self.tokens} of {limits.max_tokens} tokens were sampled")
        if seconds is not None and seconds <= 0:
            raise self._over("max_seconds", f"its {limits.max_seconds} s of wall time are over")
        self.calls += 1
        self.used = time.monotonic()
        return self.calls - 1

    def _over(self, limit: str, cause: str) -> LimitReached:
        hint = f"end the rollout, or open it with a larger limits.{limit}"
        return LimitReached(f"the rollout {self.id} has reached its limit {limit}", cause=cause, hint=hint)


def check_id(rollout_id: str) -> None:
    """InvalidInput unless the id can be part of a URL and of a file's name."""
    if _ID.fullmatch(rollout_id) is None:
        raise InvalidInput(
            f"{rollout_id!r} cannot be a rollout id",
            hint="letters, digits, '.', '_' and '-', at most 128, the first a letter or digit",
        )


def ended(row: RolloutRow) -> Conflict:
    """Why a rollout takes no more calls."""
    return Conflict(
        f"the rollout {row.rollout_id} has ended: {row.status.value}",
        cause=row.reason,
        hint="open a new rollout; an ended one takes no more calls",
    )
