"""One open rollout: its pinned versions, its limits, its token memory."""

from __future__ import annotations

import asyncio
import heapq
import re
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from art.errors import ArtError, Conflict, InfraError, InvalidInput, LimitReached, Overloaded
from art.server.answers import Answers
from art.server.places import Places
from art.server.sampling import SeedSpace, seed_identity
from art.server.versions import ModelEntry
from art.store.records import RolloutRow
from art.tokens.graph import TokenGraph
from art.types.policy import Purpose, Sampling

STOP_SECONDS = 10.0
"""How long stopped calls get to be recorded."""
MAX_OPEN = 20_000
"""Rollouts open at once: each costs some kilobytes, and the tokens of its conversation."""
MAX_OPEN_TOKENS = 256_000_000
"""Tokens that all of them remember together, 1 GB, before another one is opened."""
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
    auxiliary: bool | None = None
    """Whether this is a call on the side; None leaves it to the rules."""
    seconds: float | None = None
    """How long the client waits for the whole answer at most; None leaves it to the server."""
    purpose: Purpose | None = None
    """Of a rollout that the call opens; None is `train`."""

    def seed_identity(self, step: int) -> str:
        """Of a rollout that the call opens."""
        return seed_identity(run_seed=0, scenario=self.scenario, member=self.member, step=step, key="")


class Stoppable(Protocol):
    """A running call."""

    def stop(self, reason: ArtError) -> None:
        """End it; what was sampled is recorded, and its client is told the reason."""


@dataclass(slots=True, eq=False)
class Session:
    """One open rollout."""

    row: RolloutRow
    entry: ModelEntry
    aliases: bool
    """True: an unknown model name means the session's model (unchanged agents ask for "gpt-4o")."""
    seeds: SeedSpace
    planning: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a call's prompt is made, so that calls keep their order where that takes a while."""
    graph: TokenGraph = field(default_factory=TokenGraph)
    pins: dict[tuple[str, str], tuple[ModelEntry, int]] = field(default_factory=dict)
    """Per model, the step that `latest` meant when the session first used it."""
    heads: set[tuple[str, tuple[str, str], str]] = field(default_factory=set)
    """Keys under which a session without an owner is found by its history."""
    calls: int = 0
    draws: int = 0
    """Numbers that calls were given for their seeds."""
    spare_draws: list[int] = field(default_factory=list)
    """Those of calls that ART did not answer, a heap: sent again, they draw what they would have drawn."""
    tokens: int = 0
    failed: int = 0
    """Calls that ART itself did not answer: the engine died, the queue was full."""
    running: int = 0
    """Calls that are planned or sampled."""
    runs: set[Stoppable] = field(default_factory=set)
    endings: int = 0
    """Requests that are ending it."""
    stopped: bool = False
    """Its calls were ended."""
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a call leaves."""
    started: float = field(default_factory=time.monotonic)
    used: float = field(default_factory=time.monotonic)
    """Of the last call."""
    places: Places = field(default_factory=Places)
    answers: Answers = field(default_factory=Answers)
    """For repeated requests."""

    @property
    def id(self) -> str:
        return self.row.rollout_id

    @property
    def rule(self) -> Sampling:
        """Whose sampling parameters hold."""
        return self.row.sampling

    @property
    def ending(self) -> bool:
        """It takes no more calls; the running ones may end."""
        return self.endings > 0

    def reopen(self) -> None:
        """An ending was not written: the agent may go on, unless another request ends it."""
        self.endings -= 1
        self.stopped = self.stopped and self.ending

    def require_purpose(self, purpose: Purpose | None) -> None:
        """Conflict for a call that says another purpose than its rollout has; None says none."""
        if purpose is not None and purpose is not self.row.purpose:
            raise Conflict(
                f"the rollout {self.id} was opened to {self.row.purpose.value}, and X-ART-Purpose says {purpose.value}",
                hint="leave the header out, or open a rollout of that purpose",
            )

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

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Count a call for the length of the `with`. Conflict when the rollout is being ended."""
        if self.ending:
            raise ending(self.id)
        self.enter()
        try:
            yield
        except (InfraError, Overloaded):
            self.failed += 1  # refused before it ran: its agent is not to blame either
            raise
        finally:
            self.leave()

    def enter(self) -> None:
        """A call has begun."""
        self.running += 1

    def leave(self) -> None:
        """A call has ended."""
        self.running -= 1
        self.left.set()

    async def drain(self, seconds: float) -> None:
        """Take no more calls; let the running ones end, and stop those that need longer than `seconds`.

        What they sampled is recorded when this returns.
        """
        self.endings += 1
        for left in self.answers.unread():  # its client will not come back
            left.stop(ending(self.id))
        if await self._quiet(seconds):
            return
        self.stopped = True
        for run in list(self.runs):
            run.stop(ending(self.id))
        await self._quiet(STOP_SECONDS)

    async def _quiet(self, seconds: float) -> bool:
        """True once no call runs, False after `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                while self.running:
                    self.left.clear()
                    await self.left.wait()
        except TimeoutError:
            return False
        return True

    def take_draw(self) -> int:
        """The number that decides a new call's seeds, beside the rollout's own."""
        if self.spare_draws:
            return heapq.heappop(self.spare_draws)
        self.draws += 1
        return self.draws - 1

    def give_back(self, draw: int) -> None:
        """The call that had this number was not answered."""
        heapq.heappush(self.spare_draws, draw)

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


def check_room(sessions: Collection[Session]) -> None:
    """Overloaded where no further rollout can be opened."""
    if len(sessions) >= MAX_OPEN:
        raise Overloaded(
            f"{len(sessions)} rollouts are open",
            hint="finish those whose agents have ended; one without a call for a day ends by itself",
        )
    held = sum(session.graph.held for session in sessions)
    if held >= MAX_OPEN_TOKENS:
        raise Overloaded(
            f"the open rollouts hold {held} tokens", hint="finish some of them before you open more"
        )


def ending(rollout_id: str) -> Conflict:
    """Why a rollout that is being ended takes no call, or did not let one end."""
    return Conflict(
        f"the rollout {rollout_id} is being ended",
        cause="it was finished while this call had not been answered",
        hint="finish a rollout after its agent's last call",
    )


def ended(row: RolloutRow) -> Conflict:
    """Why a rollout takes no more calls."""
    return Conflict(
        f"the rollout {row.rollout_id} has ended: {row.status.value}",
        cause=row.reason,
        hint="open a new rollout; an ended one takes no more calls",
    )
