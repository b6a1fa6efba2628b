"""What comes in: how many bytes of requests the server holds at once, how many connections, how long a body may take.

Outside of the routes, so that a request that cannot be taken is told so before its body is read.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from art.errors import Overloaded, RequestTimeout
from art.server.admission import SHARER, Admission, Ticket
from art.server.auth import Principal
from art.server.body import whole_number
from art.server.connections import most_connections
from art.server.responses import error_response, shape_of
from art.server.session import Session
from art.server.state import Gateway

_ROLLOUT = re.compile(r"/r/([^/]+)/v1/")
BODY_SECONDS = 600.0
"""For a whole body, whatever its pace: 64 MiB at a hundred kilobytes a second."""


@dataclass(frozen=True, slots=True)
class Asker:
    """On whose behalf a request comes, as far as it can be told before it is read."""

    sharer: str
    """Its project, or its key where that serves every project."""
    session: Session | None

    @contextmanager
    def counted(self) -> Iterator[None]:
        """An Overloaded within is a failure of ART's: the rollout's agent is not to blame for what becomes of it."""
        try:
            yield
        except Overloaded:
            if self.session is not None:
                self.session.failed += 1
            raise

    def take(self, admission: Admission, amount: int = 1) -> Ticket:
        """A place. Overloaded where there is none."""
        with self.counted():
            return admission.take(self.sharer, amount)


def asker_of(gateway: Gateway, principal: Principal, *, rollout: str | None, project: str | None) -> Asker:
    """Who asks. `rollout` and `project` are what URL or headers say; another project's count for nothing."""
    rollout = rollout or principal.rollout_id
    session = gateway.sessions.opened(rollout) if rollout is not None else None
    if session is not None and (
        principal.project not in (None, session.row.project) or principal.rollout_id not in (None, rollout)
    ):
        session = None
    if session is not None:
        return Asker(session.row.project, session)
    return Asker(principal.project or project or f"key {principal.key_id}", None)


class Intake:
    """Middleware behind the guard: it knows whose request it is."""

    def __init__(self, app: ASGIApp, gateway: Gateway) -> None:
        self._app = app
        self._gateway = gateway
        bound, what = gateway.settings.max_held_bytes, "bytes of requests are held already"
        # Apart, so that a flood of calls keeps nobody from training, or from ending a rollout.
        self._calls = Admission(bound, what=what)
        self._control = Admission(bound, what=what)
        self._most_connections = most_connections()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        shape = shape_of(scope["path"])
        announced = whole_number(headers.get("content-length", "0")) or 0
        asker = asker_of(
            self._gateway,
            scope["state"]["principal"],
            rollout=named[1] if (named := _ROLLOUT.match(scope["path"])) else headers.get("x-art-rollout"),
            project=headers.get("x-art-project"),
        )
        try:
            SHARER.set(asker.sharer)
            self._check_connections()
            ticket = asker.take(self._control if shape == "control" else self._calls, announced)
        except Overloaded as error:
            response = error_response(error, shape)
            if len(self._gateway.connections) > self._most_connections:
                response.headers["Connection"] = "close"
            await response(scope, receive, send)
            return
        try:
            await self._app(scope, self._bounded(receive, ticket, announced), send)
        finally:
            ticket.close()

    def _check_connections(self) -> None:
        open_now = len(self._gateway.connections)
        if open_now > self._most_connections:
            raise Overloaded(
                f"{open_now} connections are open",
                cause=f"this server's process may have {self._most_connections}",
                hint="try again after a second; or raise the limit of open files (ulimit -n)",
            )

    def _bounded(self, receive: Receive, ticket: Ticket, announced: int) -> Receive:
        """`receive` within the deadlines, counting what was not announced."""
        silence = self._gateway.settings.silent_client_seconds
        loop = asyncio.get_running_loop()
        last, counted, seen, whole = loop.time() + BODY_SECONDS, announced, 0, False

        async def bounded() -> Message:
            nonlocal counted, seen, whole
            if whole:  # from here on it is asked whether the client is still there
                return await receive()
            try:
                async with asyncio.timeout_at(min(loop.time() + silence, last)):
                    message = await receive()
            except TimeoutError:
                raise RequestTimeout(
                    f"the request's body did not arrive: {seen} bytes of it are here",
                    cause=f"nothing came for {silence:.0f} s, or all of it took {BODY_SECONDS:.0f} s",
                    hint="send it again",
                ) from None
            seen += len(message.get("body", b""))
            if seen > counted:
                ticket.grow(seen - counted)
                counted = seen
            whole = not message.get("more_body", False)
            return message

        return bounded
