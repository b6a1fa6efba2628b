"""Open rollouts: where a call belongs, what it may still use, and the tokens it continues.

A call is located by the URL (`/r/<id>/v1`), by the header `X-ART-Rollout`, by a scoped key, or by its
history: a call with none of these continues the one open session of its key whose history it extends, and
starts a session of its own otherwise.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from art.errors import Conflict, InvalidInput, LimitReached, NotFound, Overloaded
from art.server.auth import Principal
from art.server.keys import Keys
from art.server.sampling import SeedSpace
from art.server.versions import ModelEntry, Versions
from art.store.records import Role, RolloutRow
from art.store.store import Store
from art.tokens.graph import Match, Node, TokenGraph
from art.types.messages import Message
from art.types.policy import Purpose, RolloutStatus, Sampling
from art.types.wire import OpenRollout, RolloutOpened

logger = logging.getLogger(__name__)

MAX_IMPLICIT = 4096
"""Sessions without an owner kept in memory; the one unused longest makes room. Its calls stay in the store."""
KEY_SECONDS = 7 * 24 * 3600.0
"""Life of a rollout's key: longer than any rollout, so that the table of keys does not grow for ever."""
IMPLICIT_REASON = "kept together by its calls' history; no client opened it, so none ends it"
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
        return self.calls - 1

    def _over(self, limit: str, cause: str) -> LimitReached:
        hint = f"end the rollout, or open it with a larger limits.{limit}"
        return LimitReached(f"the rollout {self.id} has reached its limit {limit}", cause=cause, hint=hint)


@dataclass(frozen=True, slots=True)
class Located:
    """Where a call belongs and what serves it."""

    session: Session
    entry: ModelEntry
    step: int
    borrowed: Match | None = None
    """Known tokens of another session that served the same history; the call starts its own session."""


class Sessions:
    """All open rollouts of one server. `url` is `http://host:port`."""

    def __init__(self, store: Store, versions: Versions, keys: Keys, *, url: str, max_waiting: int) -> None:
        self.url = url
        self._store = store
        self._versions = versions
        self._keys = keys
        self._open: dict[str, Session] = {}
        self._opening: dict[str, asyncio.Lock] = {}
        self._implicit: OrderedDict[str, Session] = OrderedDict()
        self._heads: dict[tuple[str, tuple[str, str], str], list[Session]] = {}
        self._repeats: Counter[tuple[object, ...]] = Counter()
        self._announced: set[str] = set()
        self._admitted = 0
        self._max_waiting = max_waiting

    # -- opening and ending

    async def open(self, request: OpenRollout, principal: Principal) -> RolloutOpened:
        """Open a session and make its scoped key. Repeating it with the same id opens nothing twice.

        Conflict when that rollout has ended; NotFound for an unknown model or step.
        """
        rollout_id = request.rollout_id or uuid.uuid4().hex
        check_id(rollout_id)
        entry, step = self._versions.resolve(request.model, principal.project)
        principal.require_project(entry.row.project)
        default: Sampling = "training" if request.purpose is Purpose.TRAIN else "caller"
        row = RolloutRow(
            rollout_id=rollout_id,
            project=entry.row.project,
            model=entry.row.name,
            step=step,
            purpose=request.purpose,
            sampling=request.sampling or default,
            scenario_id=request.scenario_id,
            group_id=request.group_id,
            member=request.member,
            run_seed=request.run_seed,
            limits=request.limits,
            metadata=request.metadata,
            key_id=principal.key_id,
        )
        session = await self._start(row, entry, aliases=True)
        expires = time.time() + KEY_SECONDS
        key = await self._keys.create(Role.INFER, session.row.project, rollout_id, expires)
        return RolloutOpened(
            rollout_id=rollout_id,
            model=session.entry.version(session.row.step),
            base_url=f"{self.url}/r/{rollout_id}/v1",
            api_key=key,
            step=session.row.step,
        )

    async def finish(
        self, rollout_id: str, status: RolloutStatus = RolloutStatus.FINISHED, reason: str = ""
    ) -> RolloutRow:
        """End a rollout: later calls are refused with its status. NotFound when there is none."""
        row = await self._store.finish_rollout(rollout_id, status, reason)
        self.close(rollout_id)
        return row

    def close(self, rollout_id: str) -> None:
        """Forget an open session: the rollout has got a final status elsewhere. Unknown ids change nothing."""
        session = self._open.pop(rollout_id, None) or self._implicit.pop(rollout_id, None)
        self._opening.pop(rollout_id, None)
        if session is None:
            return
        for entry, step in session.pins.values():
            entry.sessions[step] -= 1
        session.pins.clear()
        for key in session.heads:
            self._heads[key].remove(session)
            if not self._heads[key]:
                del self._heads[key]
        session.heads.clear()

    async def _start(self, row: RolloutRow, entry: ModelEntry, *, aliases: bool) -> Session:
        """Store the rollout and keep its session; an open one with this id is returned."""
        lock = self._opening.setdefault(row.rollout_id, asyncio.Lock())
        async with lock:
            session = self._open.get(row.rollout_id)
            if session is not None:
                if session.row.project != row.project or session.row.model != row.model:
                    raise Conflict(
                        f"the rollout {row.rollout_id} is open for {session.entry.wire_name}",
                        hint="give every rollout an id of its own",
                    )
                return session
            entry.sessions[row.step] += 1  # before the wait: the checkpoint must stay
            try:
                stored = await self._store.open_rollout(row)
                if stored.status is not RolloutStatus.RUNNING:
                    raise ended(stored)
                session = self._session(stored, entry, aliases=aliases)
            finally:
                entry.sessions[row.step] -= 1
            self._open[row.rollout_id] = session
            return session

    def _session(self, row: RolloutRow, entry: ModelEntry, *, aliases: bool) -> Session:
        scenario = row.scenario_id if row.scenario_id is not None else row.rollout_id
        space = (entry.key, row.run_seed, scenario, row.member, row.step)
        repeat = self._repeats[space]
        if row.scenario_id is not None:  # a rollout's own id never comes twice
            self._repeats[space] += 1
        seeds = SeedSpace(row.run_seed, scenario, row.member, row.step, repeat)
        session = Session(row=row, entry=entry, aliases=aliases, seeds=seeds)
        self._pin(session, entry, row.step)
        return session

    def _pin(self, session: Session, entry: ModelEntry, step: int) -> None:
        session.pins[entry.key] = entry, step
        entry.sessions[step] += 1

    # -- locating

    async def locate(
        self,
        headers: CallHeaders,
        principal: Principal,
        model: str,
        *,
        digests: Sequence[str],
        messages: Sequence[Message],
    ) -> Located:
        """The session of a call, and the model and step that serve it.

        NotFound for an unknown rollout or model, Conflict with the status of a rollout that has ended.
        """
        rollout_id = headers.url_rollout or headers.rollout or principal.rollout_id
        if rollout_id is None:
            return await self._by_history(headers, principal, model, digests=digests, messages=messages)
        principal.require_rollout(rollout_id)
        session = self._open.get(rollout_id)
        if session is None and rollout_id == headers.rollout and headers.url_rollout is None:
            session = await self._by_header(headers, principal, model)
        if session is None:
            row = await self._store.get_rollout(rollout_id)
            raise ended(row)
        principal.require_project(session.row.project)
        entry, step = self._model_of(session, principal, model)
        return Located(session, entry, step)

    def _model_of(self, session: Session, principal: Principal, model: str) -> tuple[ModelEntry, int]:
        """The model a call inside a session means; `latest` is what it was when the session began."""
        try:
            entry, step = self._versions.find(model, principal.project or session.row.project)
        except (NotFound, Conflict):
            if not session.aliases or "/" in model or "@" in model:
                raise
            entry, step = session.entry, None
            self.announce(
                f"alias of {entry.wire_name}",
                f"the unknown model name {model!r} means {entry.wire_name} inside its sessions",
            )
        principal.require_project(entry.row.project)
        if step is None:
            if entry.key not in session.pins:
                self._pin(session, entry, entry.step)
            step = session.pins[entry.key][1]
        return entry, step

    async def _by_header(self, headers: CallHeaders, principal: Principal, model: str) -> Session | None:
        """Open the rollout that a header names for the first time."""
        rollout_id = headers.rollout
        assert rollout_id is not None
        check_id(rollout_id)
        row = await self._store.find_rollout(rollout_id)
        if row is not None and row.status is not RolloutStatus.RUNNING:
            return None
        principal.require(Role.ROLLOUT)
        entry, step = self._versions.resolve(model, principal.project or headers.project)
        row = RolloutRow(
            rollout_id=rollout_id,
            project=entry.row.project,
            model=entry.row.name,
            step=step,
            purpose=Purpose.TRAIN,
            sampling="caller",
            scenario_id=headers.scenario,
            group_id=headers.group,
            member=headers.member,
            key_id=principal.key_id,
        )
        return await self._start(row, entry, aliases=False)

    async def _by_history(
        self,
        headers: CallHeaders,
        principal: Principal,
        model: str,
        *,
        digests: Sequence[str],
        messages: Sequence[Message],
    ) -> Located:
        entry, asked = self._versions.find(model, principal.project or headers.project)
        found = self._extended(principal, entry, digests, messages)
        borrowed: Match | None = None
        if len(found) == 1:
            session, match = found[0]
            step = session.pins[entry.key][1]
            if asked is None or asked == step:
                self._implicit.move_to_end(session.id)
                return Located(session, entry, step)
            borrowed = match  # a version asked for by number is a conversation of its own
        elif found and _same_tokens([match for _, match in found]):
            borrowed = found[0][1]
        step = entry.step if asked is None else asked
        session = await self._start_implicit(headers, principal, entry, step)
        return Located(session, entry, step, borrowed)

    def _extended(
        self, principal: Principal, entry: ModelEntry, digests: Sequence[str], messages: Sequence[Message]
    ) -> list[tuple[Session, Match]]:
        """The sessions of this key whose history the messages extend furthest."""
        for depth in range(len(digests), 0, -1):
            heads = self._heads.get((principal.key_id, entry.key, digests[depth - 1]), ())
            found = [(session, session.graph.match(digests, messages)) for session in heads]
            found = [(session, match) for session, match in found if match.depth == depth]
            if found:
                return found
        return []

    async def _start_implicit(
        self, headers: CallHeaders, principal: Principal, entry: ModelEntry, step: int
    ) -> Session:
        row = RolloutRow(
            rollout_id=f"auto-{uuid.uuid4().hex}",
            project=entry.row.project,
            model=entry.row.name,
            step=step,
            purpose=Purpose.TRAIN,
            sampling="caller",
            status=RolloutStatus.FINISHED,
            reason=IMPLICIT_REASON,
            implicit=True,
            scenario_id=headers.scenario,
            group_id=headers.group,
            member=headers.member,
            key_id=principal.key_id,
        )
        entry.sessions[step] += 1  # before the wait: the checkpoint must stay
        try:
            await self._store.open_rollout(row)
            session = self._session(row, entry, aliases=False)
        finally:
            entry.sessions[step] -= 1
        self._implicit[session.id] = session
        idle = [rollout_id for rollout_id, other in self._implicit.items() if not other.running]
        for rollout_id in idle[: max(0, len(self._implicit) - MAX_IMPLICIT)]:
            self.close(rollout_id)
        return session

    # -- memory

    def remember(self, session: Session, entry: ModelEntry, node: Node) -> None:
        """Add a sampled choice to the session's token memory."""
        session.graph.add(node)
        if session.row.implicit and session.id in self._implicit:
            key = (session.row.key_id or "", entry.key, node.digest)
            if key not in session.heads:
                session.heads.add(key)
                self._heads.setdefault(key, []).append(session)

    # -- admission and notices

    def check_room(self) -> None:
        """Overloaded when the bound of calls is reached."""
        if self._admitted >= self._max_waiting:
            raise Overloaded(
                f"{self._admitted} calls are waiting or running already",
                hint="try again after a second; limit the number of agents that run at once",
            )

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Count a call in; Overloaded past the bound."""
        self.check_room()
        self._admitted += 1
        try:
            yield
        finally:
            self._admitted -= 1

    def announce(self, kind: str, text: str) -> None:
        """Say something once per kind."""
        if kind not in self._announced:
            self._announced.add(kind)
            logger.info("%s", text)


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


def _same_tokens(matches: Sequence[Match]) -> bool:
    nodes = [match.node for match in matches if match.node is not None]
    return all(np.array_equal(nodes[0].tokens, node.tokens) for node in nodes[1:])
