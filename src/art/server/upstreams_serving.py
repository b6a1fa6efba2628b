"""Requests whose model is an upstream's name: checked like any other call, passed on, captured, never trained."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from art.errors import ArtError, InvalidInput, LimitReached
from art.server.admission import SHARER
from art.server.auth import Principal
from art.server.ownership import visible_rollout
from art.server.quota import tokens_of
from art.server.session import CallHeaders, Session, check_id, ended
from art.server.state import Gateway
from art.server.streaming import ClientGone, answer_or_gone, until_gone
from art.server.upstreams import Upstream, route_of
from art.server.upstreams_answer import error_events
from art.server.upstreams_exchange import Exchange, Head, Passed
from art.store.records import Role
from art.store.rollout_rows import no_rollout
from art.types.upstreams import UpstreamCall


async def pass_on(
    request: Request, headers: CallHeaders, upstream: Upstream, body: dict[str, Any]
) -> Response:
    """Answer with what the upstream answers. The key may infer; a rollout's key, inside its rollout.

    NotFound for a route that the upstream does not serve or a rollout that is not there, Conflict for one that has ended,
    Overloaded, UpstreamFailed, DeadlineExceeded.
    """
    gateway: Gateway = request.app.state.gateway
    principal: Principal = request.state.principal
    principal.require(Role.INFER)
    route = route_of(request.url.path)
    upstream.check_route(route)
    rollout_id, session = await _place(gateway, headers, principal)
    seconds = upstream.config.timeout if session is None else _seconds(upstream, session)
    record = UpstreamCall(
        call_id=f"up-{uuid.uuid4().hex}",
        rollout_id=rollout_id,
        agent=headers.agent,
        upstream=upstream.name,
        model=upstream.model,
        route=route,
        outcome="failed",
        started_at=time.time(),
    )
    project = session.row.project if session is not None else principal.project or headers.project

    async def keep(record: UpstreamCall, answer: object) -> None:
        gateway.meters.charge(principal, tokens_of(record.usage))
        await gateway.store.add_upstream_call(
            record, project=project, key_id=principal.key_id, request=body, answer=answer
        )

    passed = Passed(
        upstream,
        request.url.path,
        route,
        content=_content(body, upstream),
        headers=upstream.headers({name.lower(): value for name, value in request.headers.items()}, route),
    )
    exchange = Exchange(passed, record, keep=keep, seconds=seconds, off_loop=gateway.sessions.off_loop)
    _start(exchange, gateway, session)
    try:
        head = await answer_or_gone(request, exchange.head())
    except ClientGone:
        await exchange.cancel()
        return Response(status_code=499)  # nobody reads it
    except BaseException:
        await exchange.cancel()
        raise
    if head.body is None:
        return PassedStream(exchange, head, request.url.path)
    return Response(head.body, status_code=head.status, headers=head.headers)


def _content(body: dict[str, Any], upstream: Upstream) -> bytes:
    """The request as the upstream gets it: under its own model name."""
    try:
        text = json.dumps({**body, "model": upstream.model}, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise InvalidInput("the request holds a number that JSON cannot carry", cause=str(error)) from error
    return text.encode()


def _seconds(upstream: Upstream, session: Session) -> float:
    """The longest silence, within the rollout's wall time. LimitReached when that is over."""
    left = session.seconds_left()
    if left is not None and left <= 0:
        raise LimitReached(
            f"the wall time of the rollout {session.id} is over",
            hint="open it with a larger limits.max_seconds",
        )
    return upstream.config.timeout if left is None else min(upstream.config.timeout, left)


def _start(exchange: Exchange, gateway: Gateway, session: Session | None) -> None:
    """Begin, counted among the calls to upstreams and, in a rollout, among those that its end waits for."""
    with ExitStack() as stack:
        stack.enter_context(gateway.upstreams.admission.enter(SHARER.get()))
        if session is not None:
            session.used = time.monotonic()
            stack.enter_context(session.inside())
            session.runs.add(exchange)
            stack.callback(session.runs.discard, exchange)
        exchange.start(stack.pop_all().close)


async def _place(
    gateway: Gateway, headers: CallHeaders, principal: Principal
) -> tuple[str | None, Session | None]:
    """The rollout a call belongs to, found as for any other call.

    A header's id that is new is kept as it is: the call to the model that opens it may come later.
    """
    rollout_id = headers.url_rollout or headers.rollout or principal.rollout_id
    if rollout_id is None:
        return None, None
    principal.require_rollout(rollout_id)
    session = gateway.sessions.opened(rollout_id)
    if session is None:
        new = rollout_id == headers.rollout and headers.url_rollout is None
        if new and await gateway.store.find_rollout(rollout_id) is None:
            check_id(rollout_id)
            principal.require(Role.ROLLOUT)
            return rollout_id, None
        raise ended(await visible_rollout(gateway.store, rollout_id, principal))
    if principal.project not in (None, session.row.project):
        raise no_rollout(rollout_id)
    return rollout_id, session


class PassedStream(Response):
    """A stream handed over byte by byte. No sign of life is put between: it might fall into the middle of an event."""

    def __init__(self, exchange: Exchange, head: Head, path: str) -> None:
        self._exchange = exchange
        self._path = path
        self.status_code = head.status
        self.background = None
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **head.headers})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        finished = False

        async def pump() -> None:
            nonlocal finished
            await send(
                {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            )
            async for chunk in self._chunks():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            finished = True
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        try:
            await until_gone(pump(), receive)
        except OSError:
            pass  # the connection broke while we wrote
        finally:
            if not finished:
                await asyncio.shield(asyncio.ensure_future(self._exchange.cancel()))

    async def _chunks(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._exchange.chunks():
                yield chunk
        except ArtError as error:
            for event in error_events(error, self._path):
                yield event
