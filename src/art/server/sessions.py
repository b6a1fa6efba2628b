"""Open rollouts: where a call belongs and what serves it.

A call is located by the URL (`/r/<id>/v1`), by the header `X-ART-Rollout`, by a scoped key, or by its
history: a call with none of these continues the one open session of its key whose history it extends, and
starts a session of its own otherwise.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from art.errors import Conflict, NotFound
from art.server.admission import Admission
from art.server.auth import Principal
from art.server.history_index import HistoryIndex, same_tokens
from art.server.keys import Keys
from art.server.off_loop import OffLoop
from art.server.ownership import visible_rollout
from art.server.sampling import SeedSpace, seed_identity
from art.server.session import CallHeaders, Session, check_id, check_room, ended
from art.server.versions import ModelEntry, Versions
from art.store.records import Role, RolloutRow
from art.store.rollout_rows import no_rollout
from art.store.store import Store
from art.tokens.graph import Match, Node
from art.types.messages import Message
from art.types.policy import Purpose, RolloutStatus, Sampling
from art.types.wire import OpenRollout, RolloutOpened

logger = logging.getLogger(__name__)

KEY_SECONDS = 7 * 24 * 3600.0
"""Life of a rollout's key: longer than any rollout, so that the table of keys does not grow for ever."""
IDLE_SECONDS = 24 * 3600.0
"""A rollout without a call for this long has lost its agent: nobody else would ever end it."""
SWEEP_SECONDS = 600.0
"""Between two looks for such rollouts."""
DRAIN_SECONDS = 5.0
"""How long the finish of a rollout waits for its running calls; then they are stopped and recorded as they are."""
IMPLICIT_REASON = "kept together by its calls' history; no client opened it, so none ends it"


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
        self._by_own_history = HistoryIndex()
        self._announced: set[str] = set()
        self._swept = time.monotonic()
        self.admission = Admission(max_waiting)
        self.off_loop = OffLoop()

    # -- opening and ending

    async def open(self, request: OpenRollout, principal: Principal) -> RolloutOpened:
        """Open a session and make its scoped key. Repeating it with the same id opens nothing twice.

        Conflict when that rollout has ended; NotFound for an unknown model or step.
        """
        rollout_id = request.rollout_id or uuid.uuid4().hex
        check_id(rollout_id)
        if time.monotonic() - self._swept > SWEEP_SECONDS:
            await self.sweep()
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
            seed_key=request.seed_key,
            seed_identity=seed_identity(
                run_seed=request.run_seed,
                scenario=request.scenario_id,
                member=request.member,
                step=step,
                key=request.seed_key,
            ),
            limits=request.limits,
            metadata=request.metadata,
            auxiliary=request.auxiliary,
            key_id=principal.key_id,
        )
        session = await self._start(row, entry, aliases=True)
        key = await self._keys.for_rollout(rollout_id, session.row.project, principal, seconds=KEY_SECONDS)
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

    def opened(self, rollout_id: str) -> Session | None:
        """The session of a rollout that is open, else None."""
        return self._open.get(rollout_id)

    def failed_calls(self, rollout_id: str) -> int:
        """Calls of an open rollout that a failure of ART ended; 0 for any other."""
        session = self._open.get(rollout_id)
        return 0 if session is None else session.failed

    @asynccontextmanager
    async def ending(self, rollout_id: str, seconds: float = DRAIN_SECONDS) -> AsyncGenerator[None, None]:
        """Let the running calls of a rollout end, or end them, before it is decided in the `with` what became of it.

        Where that fails (a full disk), the rollout is as open as before.
        """
        session = self._open.get(rollout_id)
        if session is None:
            yield
            return
        await session.drain(seconds)
        try:
            yield
        except Exception:
            session.reopen()
            raise

    async def stop(self) -> None:
        """The server ends: end the calls whose clients have gone, and record them."""
        for session in list(self._open.values()):
            if session.answers.unread():
                await session.drain(0)

    def close(self, rollout_id: str) -> None:
        """Forget an open session: the rollout has got a final status elsewhere. Unknown ids change nothing."""
        session = self._open.pop(rollout_id, None) or self._by_own_history.remove(rollout_id)
        if session is None:
            return
        for entry, step in session.pins.values():
            entry.sessions[step] -= 1
        session.pins.clear()

    async def sweep(self, idle: float = IDLE_SECONDS) -> None:
        """End the rollouts without a call for `idle` seconds as `infra_error`."""
        now = self._swept = time.monotonic()
        silent = [s.id for s in self._open.values() if not s.running and now - s.used > idle]
        for rollout_id in silent:
            reason = f"its agent made no call for {idle / 3600:.0f} hours"
            await self.finish(rollout_id, RolloutStatus.INFRA_ERROR, reason)

    async def _start(self, row: RolloutRow, entry: ModelEntry, *, aliases: bool) -> Session:
        """Store the rollout and keep its session; an open one with this id is returned."""
        try:
            async with self._opening.setdefault(row.rollout_id, asyncio.Lock()):
                session = self._open.get(row.rollout_id)
                if session is None:
                    check_room(self._open.values())
                    return await self._store_and_keep(row, entry, aliases=aliases)
        finally:
            self._opening.pop(row.rollout_id, None)
        # A call's header only finds the rollout: in it, several models may be called.
        if aliases and session.entry is not entry:
            raise Conflict(
                f"the rollout {row.rollout_id} is open for another model",
                hint="give every rollout an id of its own",
            )
        return session

    async def _store_and_keep(self, row: RolloutRow, entry: ModelEntry, *, aliases: bool) -> Session:
        entry.sessions[row.step] += 1  # before the wait: the checkpoint must stay
        try:
            stored = await self._store.open_rollout(row)
            if stored.status is not RolloutStatus.RUNNING:
                raise ended(stored)
            # After a cancelled opening two may come here; the first one's session is the rollout's.
            session = self._open.get(row.rollout_id) or self._session(stored, entry, aliases=aliases)
        finally:
            entry.sessions[row.step] -= 1
        self._open[row.rollout_id] = session
        return session

    def _session(self, row: RolloutRow, entry: ModelEntry, *, aliases: bool) -> Session:
        # A rollout that nothing else identifies is identified by its id, which never comes twice.
        scenario = row.rollout_id if not row.seed_identity else row.scenario_id or ""
        seeds = SeedSpace(row.run_seed, scenario, row.member, row.step, row.repeat, row.seed_key)
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
        continues: str | None = None,
    ) -> Located:
        """The session of a call, and the model and step that serve it.

        `continues`: where nothing else says it, the rollout of the answer that the call names, while it is open.
        NotFound for an unknown rollout or model, Conflict with the status of a rollout that has ended.
        """
        rollout_id = headers.url_rollout or headers.rollout or principal.rollout_id
        if rollout_id is None and continues in self._open:
            rollout_id = continues
        if rollout_id is None:
            return await self._by_history(headers, principal, model, digests=digests, messages=messages)
        principal.require_rollout(rollout_id)
        session = self._open.get(rollout_id)
        if session is None and rollout_id == headers.rollout and headers.url_rollout is None:
            session = await self._by_header(headers, principal, model)
        if session is None:
            raise ended(await visible_rollout(self._store, rollout_id, principal))
        if principal.project not in (None, session.row.project):
            raise no_rollout(rollout_id)
        session.require_purpose(headers.purpose)
        entry, step = self._model_of(session, principal, model)
        return Located(session, entry, step)

    async def look(
        self, headers: CallHeaders, principal: Principal, model: str
    ) -> tuple[ModelEntry, Session | None]:
        """The model that a call would be served by, and its session where URL, header or key name an open one.

        Opens nothing. NotFound and Conflict as `locate`.
        """
        rollout_id = headers.url_rollout or headers.rollout or principal.rollout_id
        session = self._open.get(rollout_id) if rollout_id is not None else None
        if rollout_id is not None:
            principal.require_rollout(rollout_id)
            if session is None and (rollout_id != headers.rollout or headers.url_rollout is not None):
                raise ended(await visible_rollout(self._store, rollout_id, principal))
        if session is None:
            return self._versions.find(model, principal.project or headers.project)[0], None
        if principal.project not in (None, session.row.project):
            raise no_rollout(session.id)
        return self._model_of(session, principal, model)[0], session

    def known_path(
        self, key_id: str, entry: ModelEntry, digests: Sequence[str], messages: Sequence[Message]
    ) -> Match:
        """What the sessions that nobody opened know of a history."""
        found = self._by_own_history.find(key_id, entry, digests, messages)
        return found[0][1] if found else Match(node=None, depth=0)

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
            purpose=headers.purpose or Purpose.TRAIN,
            sampling="caller",
            scenario_id=headers.scenario,
            group_id=headers.group,
            member=headers.member,
            seed_identity=headers.seed_identity(step),
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
        known = self._by_own_history.find(principal.key_id, entry, digests, messages)
        purpose = headers.purpose or Purpose.TRAIN
        found = [(session, match) for session, match in known if session.row.purpose is purpose]
        borrowed: Match | None = None
        if len(found) == 1:
            session, match = found[0]
            step = session.pins[entry.key][1]
            if asked is None or asked == step:
                return Located(session, entry, step)
            borrowed = match  # a version asked for by number is a conversation of its own
        elif found and same_tokens([match for _, match in found]):
            borrowed = found[0][1]
        step = entry.step if asked is None else asked
        session = await self._start_implicit(headers, principal, entry, step)
        return Located(session, entry, step, borrowed)

    async def _start_implicit(
        self, headers: CallHeaders, principal: Principal, entry: ModelEntry, step: int
    ) -> Session:
        row = RolloutRow(
            rollout_id=f"auto-{uuid.uuid4().hex}",
            project=entry.row.project,
            model=entry.row.name,
            step=step,
            purpose=headers.purpose or Purpose.TRAIN,
            sampling="caller",
            status=RolloutStatus.FINISHED,
            reason=IMPLICIT_REASON,
            implicit=True,
            scenario_id=headers.scenario,
            group_id=headers.group,
            member=headers.member,
            seed_identity=headers.seed_identity(step),
            key_id=principal.key_id,
        )
        entry.sessions[step] += 1  # before the wait: the checkpoint must stay
        try:
            row = await self._store.open_rollout(row)
            session = self._session(row, entry, aliases=False)
        finally:
            entry.sessions[step] -= 1
        for other in self._by_own_history.add(session):
            self.close(other.id)
        return session

    # -- memory

    def remember(self, session: Session, entry: ModelEntry, node: Node) -> None:
        """Add a sampled choice to the session's token memory."""
        forgotten = session.graph.add(node)
        if session.row.implicit:
            self._by_own_history.remember(session, entry, node)
            self._by_own_history.forget(session, entry, forgotten)

    # -- notices

    def announce(self, kind: str, text: str) -> None:
        """Say something once per kind."""
        if kind not in self._announced:
            self._announced.add(kind)
            logger.info("%s", text)
