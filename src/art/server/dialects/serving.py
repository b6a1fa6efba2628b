"""How a request in any dialect becomes a recorded call and an answer. What differs between dialects is a `Dialect`."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from art.errors import ArtError, InvalidInput
from art.server.admission import Ticket
from art.server.answers import RETURN_SECONDS, request_digest
from art.server.auth import Principal
from art.server.body import MAX_INFERENCE_BYTES, bounded_body, read_json, reading, whole_number
from art.server.calls import CallPlan, CallRequest, plan_call
from art.server.capture import Choice, Completed
from art.server.generation import CallRun, Delta
from art.server.intake import asker_of
from art.server.responses import error_response, shape_of
from art.server.session import CallHeaders
from art.server.sessions import Located
from art.server.state import Gateway
from art.server.streaming import KEEP_ALIVE, PING, ClientGone, EventStream, Watch, answer_or_gone
from art.server.upstreams_serving import pass_on
from art.store.records import Role
from art.types.policy import Purpose

HEAD_START_SECONDS = 5.0
"""How long a stream's status waits for the first token: an error until then is still a proper HTTP error."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A parsed request: the call, and how it is to be answered. Dialects subclass it for what else they need."""

    call: CallRequest
    stream: bool


A = TypeVar("A", bound=Ask)
A_contra = TypeVar("A_contra", bound=Ask, contravariant=True)


class Writer(Protocol):
    """A streamed answer in one dialect. Each method returns the events to send, as bytes."""

    def opening(self) -> list[bytes]:
        """Before the first token."""
        ...

    def delta(self, delta: Delta) -> list[bytes]:
        """What a choice says next."""
        ...

    def closing(self, done: Completed) -> list[bytes]:
        """When the call is whole and recorded."""
        ...

    def failed(self, error: ArtError) -> list[bytes]:
        """When the call ended by an error after the answer had begun."""
        ...


class Dialect(Protocol[A]):
    """What a protocol's requests and answers look like."""

    def parse(self, body: object, *, size: int) -> A:
        """The request. InvalidInput or UnsupportedOption naming the option that cannot be followed."""
        ...

    async def resolve(self, ask: A, gateway: Gateway, principal: Principal) -> A:
        """Fill in what the request refers to and only the store knows (an earlier answer). Most dialects return `ask`."""
        ...

    def whole(self, ask: A, done: Completed) -> dict[str, Any]:
        """The answer in one piece."""
        ...

    def writer(self, ask: A, plan: CallPlan, choices: Sequence[Choice], created: float) -> Writer:
        """The answer as a stream. `choices` grow while the call runs; `created` is Unix time."""
        ...


async def serve(request: Request, dialect: Dialect[A]) -> Response:
    """Answer one request; errors in the dialect's shape."""
    try:
        return await _Serving(request, dialect).respond()
    except ArtError as error:
        return error_response(error, shape_of(request.url.path))
    except ClientGone:
        return Response(status_code=499)  # nobody reads it; nginx's number for it


class _Serving(Generic[A]):
    """One request on its way."""

    def __init__(self, request: Request, dialect: Dialect[A]) -> None:
        self._request = request
        self._dialect = dialect
        self._gateway: Gateway = request.app.state.gateway
        self._principal: Principal = request.state.principal

    async def respond(self) -> Response:
        self._principal.require(Role.INFER)
        headers = call_headers(self._request)
        asker = asker_of(
            self._gateway,
            self._principal,
            rollout=headers.url_rollout or headers.rollout,
            project=headers.project,
        )
        # Before anything of it is read or stored: a call that is turned away costs nothing.
        with contextlib.closing(asker.take(self._gateway.sessions.admission)) as place:
            with asker.counted():
                raw = await bounded_body(self._request, self._most_bytes)
                body = await self._gateway.sessions.off_loop.run(len(raw), read_json, raw)
            if (upstream := self._gateway.upstreams.find(body)) is not None:
                place.close()  # calls to upstreams are counted among themselves
                return await pass_on(self._request, headers, upstream, body)
            with asker.counted():
                ask, digest = await self._parsed(raw, body, headers)
                del raw, body  # the call may run for minutes, and needs neither
                located, digests = await self._located(ask.call, headers)
            run = await self._running(ask.call, located, digests, headers=headers, place=place, digest=digest)
            return await (self._stream(ask, run, digest) if ask.stream else self._whole(ask, run, digest))

    @property
    def _most_bytes(self) -> int:
        return min(self._gateway.settings.max_body_bytes, MAX_INFERENCE_BYTES)

    async def _parsed(self, raw: bytes, body: object, headers: CallHeaders) -> tuple[A, str]:
        """The request with all that it refers to, and what makes a repetition of it the very same one."""
        ask = await self._gateway.sessions.off_loop.run(len(raw), self._read, body, len(raw))
        digest = request_digest(ask.call.dialect, raw)
        ask = await self._dialect.resolve(ask, self._gateway, self._principal)
        if ask.call.wishes:
            ask = replace(ask, call=await self._settled(ask.call, headers))
        return ask, digest

    async def _located(self, call: CallRequest, headers: CallHeaders) -> tuple[Located, list[str]]:
        """The call's session, and the digests of its history."""
        sessions = self._gateway.sessions
        digests = await sessions.off_loop.run(call.size, call.digests)
        located = await sessions.locate(
            headers,
            self._principal,
            call.model,
            digests=digests,
            messages=call.messages,
            continues=call.continues,
        )
        return located, digests

    async def _running(
        self,
        call: CallRequest,
        located: Located,
        digests: list[str],
        *,
        headers: CallHeaders,
        place: Ticket,
        digest: str,
    ) -> CallRun:
        """The running call that this request reads: its own, or the earlier one that it repeats."""
        session, gateway = located.session, self._gateway
        # Without an owner there is no session that two equal requests could be known to belong to.
        key = None if session.row.implicit else self._request.headers.get("idempotency-key")
        most = gateway.settings.max_call_seconds
        # A session's calls are planned and started one by one, so that they keep their order.
        with session.inside():
            async with session.planning:
                run = session.answers.find(key, digest)
                if run is None:
                    with reading("the request"):
                        plan = await plan_call(gateway.sessions, call, located, digests, headers=headers)
                    run = CallRun(
                        plan,
                        versions=gateway.versions,
                        sessions=gateway.sessions,
                        store=gateway.store,
                        seconds=most if headers.seconds is None else min(headers.seconds, most),
                    )
                    session.answers.keep(key, digest, run.start(place.moved()))
                    run.when_over(partial(gateway.meters.charge, self._principal))
                run.attach()
        return run

    async def _whole(self, ask: A, run: CallRun, digest: str) -> Response:
        try:
            done = await answer_or_gone(self._request, run.result())
        except (ClientGone, asyncio.CancelledError):
            await self._left(run, digest)
            raise
        await run.deliver()
        return JSONResponse(self._dialect.whole(ask, done))

    async def _left(self, run: CallRun, digest: str) -> None:
        """The client has gone before it had the whole answer. When it can be told from others it may come back."""
        session, task = run.plan.session, asyncio.current_task()
        stopping = task is not None and task.cancelling() > 0
        if session.row.implicit or session.ending or stopping:
            await run.leave(wait=0)
            return
        session.answers.left(digest, run)
        await run.leave(wait=RETURN_SECONDS)

    def _read(self, body: object, size: int) -> A:
        with reading("the request"):
            return self._dialect.parse(body, size=size)

    async def _stream(self, ask: A, run: CallRun, digest: str) -> Response:
        """Stream a running call. An error before the first token is answered as one."""
        with contextlib.ExitStack() as stack:
            watch = Watch(self._request.receive)
            stack.callback(watch.close)
            try:
                if not await watch.during(run.begun(HEAD_START_SECONDS)) and not run.running:
                    await run.result()  # raises what ended the call before it said anything
            except (ClientGone, asyncio.CancelledError):
                await self._left(run, digest)
                raise
            stack.pop_all()  # from here on it is the stream's
        writer = self._dialect.writer(ask, run.plan, run.choices, run.times.started)
        delivered = False

        async def chunks() -> AsyncIterator[bytes]:
            nonlocal delivered
            for chunk in writer.opening():
                yield chunk
            try:
                async for delta in run.deltas():
                    for chunk in writer.delta(delta):
                        yield chunk
                done = await run.result()
                delivered = True  # what is left to send goes out at once
                await run.deliver()
            except ArtError as error:
                for chunk in writer.failed(error):
                    yield chunk
                return
            for chunk in writer.closing(done):
                yield chunk

        async def gone() -> None:
            if not delivered:
                await self._left(run, digest)

        return EventStream(chunks(), on_gone=gone, keep_alive=self._keep_alive(), watch=watch)

    async def _settled(self, call: CallRequest, headers: CallHeaders) -> CallRequest:
        """With what the model can do of the call's wishes; that it can do nothing is said once."""
        sessions = self._gateway.sessions
        entry, _ = await sessions.look(headers, self._principal, call.model)
        settled = call.settled(entry)
        if not call.wishes.keys() & settled.options.keys():
            names = ", ".join(call.wishes)
            sessions.announce(
                f"wishes {entry.wire_name} {names}",
                f"the chat template of {entry.wire_name} reads none of {names}: that a request asks for it changes nothing",
            )
        return settled

    def _keep_alive(self) -> bytes:
        return PING if shape_of(self._request.url.path) == "anthropic" else KEEP_ALIVE


def call_headers(request: Request) -> CallHeaders:
    """What URL and headers say about the rollout and the call. InvalidInput when the member is no number."""
    given = request.headers
    text = given.get("x-art-member", "0")
    member = whole_number(text)
    if member is None:
        raise InvalidInput(
            f"the header X-ART-Member is {text[:80]!r}", hint="a number, 0 for the first member"
        )
    return CallHeaders(
        url_rollout=request.path_params.get("rollout"),
        rollout=given.get("x-art-rollout"),
        project=given.get("x-art-project"),
        scenario=given.get("x-art-scenario"),
        group=given.get("x-art-group"),
        member=member,
        agent=given.get("x-art-agent"),
        auxiliary=_said(given, "x-art-auxiliary"),
        seconds=_seconds(given.get("x-art-timeout")),
        purpose=_purpose(given.get("x-art-purpose")),
    )


def _said(headers: Headers, name: str) -> bool | None:
    """The header as true or false; None where it is not given. InvalidInput for anything else."""
    text = headers.get(name)
    if text is None:
        return None
    value = {"true": True, "false": False}.get(text.strip().lower())
    if value is None:
        raise InvalidInput(f"the header {name.title()} is {text[:80]!r}", hint="true or false")
    return value


def _seconds(text: str | None) -> float | None:
    """The header as seconds; None where it is not given. InvalidInput for what is no time."""
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise InvalidInput(f"the header X-ART-Timeout is {text[:80]!r}", hint="seconds, more than 0")
    return seconds


def _purpose(text: str | None) -> Purpose | None:
    """The header as a purpose; None where it is not given. InvalidInput for anything else."""
    if text is None:
        return None
    try:
        return Purpose(text.strip().lower())
    except ValueError:
        known = " or ".join(purpose.value for purpose in Purpose)
        raise InvalidInput(f"the header X-ART-Purpose is {text[:80]!r}", hint=known) from None
