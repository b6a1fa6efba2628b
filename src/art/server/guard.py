"""What every request passes before a route sees it: Host, Origin, body bound, key, protocol, quotas; and every answer after it."""

from __future__ import annotations

import re
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from art.errors import ArtError, BodyTooLarge, Forbidden, Overloaded, ReadOnly, Unauthorized
from art.server.auth import Principal
from art.server.headers import with_headers
from art.server.origin import SAFE_METHODS, check_origin
from art.server.page import NOBODY, is_page
from art.server.responses import error_response, shape_of
from art.server.state import Gateway
from art.types import protocol

_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z._-]+)(?::[0-9]{1,5})?")
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


class Guard:
    """Innermost of the middleware: it needs the gateway, and nothing runs before it has let a request in."""

    def __init__(self, app: ASGIApp, gateway: Gateway) -> None:
        self._app = app
        self._gateway = gateway
        settings = gateway.settings
        host = settings.host.lower()
        self._told = frozenset(name.lower() for name in settings.allowed_hosts)
        names = {*LOOPBACK_NAMES, f"[{host}]" if ":" in host else host, *self._told}
        # A server that others may reach is known by names it cannot know itself, unless it was told them.
        self._hosts = names if settings.is_loopback or self._told else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, send = Headers(scope=scope), with_headers(send, self._answered)
        leave: Callable[[], None] | None = None
        try:
            self._check_host(headers.get("host", ""))
            check_origin(scope["method"], headers, self._told)
            bounded = self._bound(headers, receive)
            page = is_page(scope["method"], scope["path"])
            principal = NOBODY if page else await self._principal(headers)
            self._check_changes(scope["method"])
            scope.setdefault("state", {})["principal"] = principal
            if (client := headers.get(protocol.PROTOCOL_HEADER)) is not None:
                protocol.check_client(protocol.spoken(client))
            if scope["method"] == "POST" and shape_of(scope["path"]) != "control":  # a request to a model
                leave = await self._gateway.meters.enter(principal)
        except ArtError as error:
            response = error_response(error, shape_of(scope["path"]))
            await response(scope, receive, send)
            return
        try:
            await self._app(scope, bounded, send)
        finally:
            if leave is not None:
                leave()

    def _answered(self, status: int) -> None:
        if status == Overloaded.status:
            self._gateway.live.rates.count("refused")

    def _check_changes(self, method: str) -> None:
        """Refuse what a server without engine, trainer and writer cannot do."""
        if self._gateway.read_only and method not in SAFE_METHODS:
            raise ReadOnly(
                "this is the dashboard of a folder that no server runs on: it shows, and neither samples nor changes anything",
                cause=f"{self._gateway.root} was opened with art ui",
                hint=f"start a server on it: art serve --path {self._gateway.root}",
            )

    def _check_host(self, host: str) -> None:
        """Refuse names that are not ours: a web page may point its own name at 127.0.0.1 (DNS rebinding)."""
        name = host_name(host)
        if self._hosts is not None and name not in self._hosts:
            raise Forbidden(
                f"the Host header names {host!r}, which is not this server",
                hint="use http://127.0.0.1, or start the server with --set server.allowed_hosts=NAME",
            )

    def _bound(self, headers: Headers, receive: Receive) -> Receive:
        limit = self._gateway.settings.max_body_bytes
        too_large = BodyTooLarge(
            f"the request's body is over {limit} bytes",
            hint="send fewer trajectories at once, or raise max_body_bytes of the server",
        )
        announced = headers.get("content-length", "0")
        if announced.isdigit() and int(announced) > limit:
            raise too_large
        seen = 0

        async def bounded() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > limit:
                raise too_large
            return message

        return bounded

    async def _principal(self, headers: Headers) -> Principal:
        token = bearer(headers)
        if not token:
            raise Unauthorized(
                "this server wants a key",
                hint="send `Authorization: Bearer KEY`; the admin key lies in server/admin.key in its folder",
            )
        principal = await self._gateway.keys.authenticate(token)
        if principal is None:
            raise Unauthorized(
                "this key is not known here, or it has expired",
                hint="the admin key lies in server/admin.key in the server's folder; a rollout's key ends with the key that opened it",
            )
        return principal


def bearer(headers: Headers) -> str:
    """The key of a request: `Authorization: Bearer`, or `x-api-key` as Anthropic's SDK sends it."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return token.strip()
    return headers.get("x-api-key", "").strip()


def host_name(host: str) -> str:
    """The name in a Host header, without its port, in lower case; "" for what is no `name[:port]`.

    Read whole, not up to the first colon: `localhost:1@evil` and `[::1]x` are not this machine.
    RFC 9112, section 3.2; RFC 3986, section 3.2.2, without percent-encoding, which no name of ours needs.
    """
    found = _HOST.fullmatch(host)
    return found["name"].lower() if found is not None else ""
