"""HTTP to one ART server, from any number of event loops.

A call passes three layers: `Connection.request` turns error bodies into art's errors and repeats what was
interrupted; `GatewayTransport` finds the server, adds the key, and waits out a restart; one pool of connections per event loop does the work. The OpenAI clients we hand out use the
same transport, so agents' calls get the same treatment.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

import httpx2
from pydantic import BaseModel

from art import errors
from art.backends.events import EventReader
from art.errors import (
    ArtError,
    ConfigError,
    InfraError,
    NotFound,
    Overloaded,
    ServerUnreachable,
    Unauthorized,
)
from art.types import protocol
from art.utils.console import Notices

if TYPE_CHECKING:
    from art.backends.api import ControlApi

PLACEHOLDER_URL = "http://art-server.invalid"
"""Stands in base URLs until the server's address is known; the transport replaces it."""
PLACEHOLDER_KEY = "art"
"""Likewise for the key."""
FIRST_CONTACT_SECONDS = 4.0
"""How long a server that never answered is tried: a wrong address should show at once."""
OUTAGE_SECONDS = 60.0
"""How long a server that has answered before may be away: a restart takes seconds."""
ANSWERED_SECONDS = 3.0
"""How long a request is repeated to which the server answers that a part of it failed: long enough for a
queue to drain, short enough for an error to show."""
CONNECT_SECONDS = 5.0
READ_SECONDS = 120.0
"""Longest silence within an ordinary request. Registration and streams set their own."""
_NO_KEY = f"Bearer {PLACEHOLDER_KEY}"
_BACKOFF_FIRST, _BACKOFF_LAST = 0.1, 2.0


@dataclass(frozen=True)
class Endpoint:
    """Where a server answers, and the key to use there."""

    url: str
    key: str


class Locator(Protocol):
    """How a connection finds its server."""

    async def locate(self) -> Endpoint:
        """The server's address; starts it where that is this side's job."""
        ...

    async def recover(self) -> None:
        """Called when nothing answers at the address; may start the server again."""
        ...


class FixedEndpoint:
    """A server that somebody else runs."""

    def __init__(self, url: str, key: str) -> None:
        self._endpoint = Endpoint(url.rstrip("/"), key)

    async def locate(self) -> Endpoint:
        return self._endpoint

    async def recover(self) -> None:
        """Nothing to do from here but wait."""


class GatewayTransport(httpx2.AsyncBaseTransport):
    """Sends requests to the server of a connection, wherever it is and from whatever loop."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._pools: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopPool] = WeakKeyDictionary()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        endpoint = await self._connection.endpoint()
        self._address(request, endpoint)
        give_up = time.monotonic() + self._connection.patience
        pause = _BACKOFF_FIRST
        while True:
            try:
                response = await (await self._pool()).handle_async_request(request)
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                if (failed := _tls_failure(error)) is not None:
                    raise self._untrusted(endpoint, failed) from error
                # Nothing was sent: safe to repeat, whatever the method.
                if time.monotonic() + pause >= give_up:
                    raise self._unreachable(endpoint, error) from error
                await self._connection.recover()
                await asyncio.sleep(pause)
                pause = min(pause * 2, _BACKOFF_LAST)
            else:
                self._connection.answered()
                await _check_protocol(response)
                return response

    def _address(self, request: httpx2.Request, endpoint: Endpoint) -> None:
        target = httpx2.URL(endpoint.url)
        prefix = target.raw_path.rstrip(b"/")
        path = request.url.raw_path
        if request.url.host == httpx2.URL(PLACEHOLDER_URL).host and prefix:
            path = prefix + path
        request.url = request.url.copy_with(
            scheme=target.scheme, host=target.host, port=target.port, raw_path=path
        )
        request.headers["Host"] = target.netloc.decode("ascii")
        request.headers[protocol.PROTOCOL_HEADER] = str(protocol.OURS)
        if request.headers.get("Authorization", _NO_KEY) == _NO_KEY:
            request.headers["Authorization"] = f"Bearer {endpoint.key}"

    async def _pool(self) -> httpx2.AsyncHTTPTransport:
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None:
            pool = self._pools[loop] = _LoopPool(self._connection.tls())
            await pool.close_with_loop()
        return pool.transport

    def _untrusted(self, endpoint: Endpoint, error: ssl.SSLError) -> ServerUnreachable:
        if isinstance(error, ssl.SSLCertVerificationError):
            return ServerUnreachable(
                f"the certificate of {endpoint.url} is not trusted",
                cause=error.verify_message,
                hint="where a CA of your own signed it: SSL_CERT_FILE=ca.pem in the environment, or"
                ' RemoteBackend(url, key, verify="ca.pem"); the name in the URL must stand in the certificate',
            )
        return ServerUnreachable(
            f"{endpoint.url} does not speak TLS as it should",
            cause=str(error),
            hint="a server without --tls-cert has an http:// address",
        )

    def _unreachable(self, endpoint: Endpoint, error: Exception) -> ServerUnreachable:
        return ServerUnreachable(
            f"no ART server answers at {endpoint.url}",
            cause=f"{type(error).__name__}: {error}",
            hint="start one there with `art serve --port PORT`, or correct the URL",
        )

    async def aclose(self) -> None:
        """Close the running loop's pool; those of other loops end with their loops."""
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        if pool is not None:
            await pool.aclose()


class _LoopPool:
    """The connections of one event loop, closed when that loop ends."""

    def __init__(self, tls: ssl.SSLContext | bool) -> None:
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=15.0)
        self.transport = httpx2.AsyncHTTPTransport(limits=limits, verify=tls)
        self._ending = self._until_end()

    async def close_with_loop(self) -> None:
        """`asyncio.run` closes the loop's asynchronous generators at its end: one of them is ours."""
        await anext(self._ending)

    async def aclose(self) -> None:
        await self._ending.aclose()

    async def _until_end(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            await self.transport.aclose()


class Connection:
    """One server, as the control API and the OpenAI clients reach it."""

    def __init__(
        self, locator: Locator, *, outage_seconds: float = OUTAGE_SECONDS, verify: str | None = None
    ) -> None:
        """`verify`: a file or folder of CA certificates that an https server is checked against, in place of this
        machine's own (which `SSL_CERT_FILE` names too)."""
        self._locator = locator
        self._verify = verify
        self._outage_seconds = outage_seconds
        self._has_answered = False
        self.notices = Notices()
        self.transport = GatewayTransport(self)
        self._client = httpx2.AsyncClient(
            transport=self.transport,
            base_url=PLACEHOLDER_URL,
            timeout=httpx2.Timeout(READ_SECONDS, connect=CONNECT_SECONDS),
        )

    @cached_property
    def api(self) -> ControlApi:
        """The control API over this connection."""
        from art.backends.api import ControlApi

        return ControlApi(self)

    @cached_property
    def sync_transport(self) -> httpx2.HTTPTransport:
        """For synchronous agents; thread-safe, shared by all their rollouts."""
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=15.0)
        return httpx2.HTTPTransport(limits=limits, verify=self.tls())

    def tls(self) -> ssl.SSLContext | bool:
        """What https servers are checked against; True is what this machine trusts. ConfigError for a file that is none."""
        if self._verify is None:
            return True
        folder = os.path.isdir(self._verify)
        try:
            return ssl.create_default_context(
                cafile=None if folder else self._verify, capath=self._verify if folder else None
            )
        except OSError as error:
            raise ConfigError(
                f"the CA certificates {self._verify} cannot be read", cause=str(error), hint="a file in PEM"
            ) from error

    @property
    def patience(self) -> float:
        """Seconds a silent server is waited for."""
        return self._outage_seconds if self._has_answered else FIRST_CONTACT_SECONDS

    async def endpoint(self) -> Endpoint:
        """The server's address and key; starts the server where the locator does."""
        return await self._locator.locate()

    async def recover(self) -> None:
        """Nothing answers: let the locator act."""
        await self._locator.recover()

    def answered(self) -> None:
        """The server answered, so from now on an outage is waited out."""
        self._has_answered = True

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: BaseModel | None = None,
        idempotency_key: str | None = None,
        read_seconds: float = READ_SECONDS,
    ) -> Any:
        """The decoded JSON answer of a control request.

        An interrupted request is sent again: every control request is idempotent, by nature or by key.
        ArtError as the server sent it; ServerUnreachable, Unauthorized and InfraError as they arise here.
        """
        headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
        content = None if body is None else body.model_dump_json()
        if content is not None:
            headers["Content-Type"] = "application/json"
        started = time.monotonic()
        pause = _BACKOFF_FIRST
        while True:
            try:
                response = await self._client.request(
                    method,
                    path,
                    content=content,
                    headers=headers,
                    timeout=httpx2.Timeout(read_seconds, connect=CONNECT_SECONDS),
                )
                if response.is_success:
                    return response.json()
                failure = error_of(response)
                patience = ANSWERED_SECONDS if isinstance(failure, InfraError | Overloaded) else 0.0
            except httpx2.TransportError as error:
                failure = _interrupted(method, path, error)
                patience = self.patience
            if time.monotonic() + pause >= started + patience:
                raise failure
            await asyncio.sleep(pause)
            pause = min(pause * 2, _BACKOFF_LAST)

    @asynccontextmanager
    async def events(
        self, path: str, *, last_event_id: int, silence_seconds: float
    ) -> AsyncIterator[AsyncIterator[Mapping[str, Any]]]:
        """A server-sent event stream of JSON objects, resumed after `last_event_id` (0: from the start).

        httpx2.TransportError when it breaks off, or stays silent for `silence_seconds`; InfraError for what is no event.
        """
        headers = {"Accept": "text/event-stream"}
        if last_event_id:
            headers["Last-Event-ID"] = str(last_event_id)
        timeout = httpx2.Timeout(silence_seconds, connect=CONNECT_SECONDS)
        async with self._client.stream("GET", path, headers=headers, timeout=timeout) as response:
            if not response.is_success:
                await response.aread()
                raise error_of(response)
            yield _json_events(response)

    def stream(self, path: str, *, silence_seconds: float) -> AbstractAsyncContextManager[httpx2.Response]:
        """A long answer as it comes. httpx2.TransportError when it breaks off, or stays silent for so long."""
        timeout = httpx2.Timeout(silence_seconds, connect=CONNECT_SECONDS)
        return self._client.stream("GET", path, timeout=timeout)

    def aclose(self) -> Awaitable[None]:
        """Close the running loop's connections."""
        return self.transport.aclose()


async def _json_events(response: httpx2.Response) -> AsyncIterator[Mapping[str, Any]]:
    reader = EventReader()
    async for chunk in response.aiter_bytes():
        for event in reader.feed(chunk):
            yield event


def _interrupted(method: str, path: str, error: Exception) -> InfraError:
    return InfraError(
        f"{method} {path} was interrupted",
        cause=f"{type(error).__name__}: {error}",
        hint="the server may have been stopped; see server/logs in its folder",
    )


def error_of(response: httpx2.Response) -> ArtError:
    """The art error an answer carries, or the nearest one its status means."""
    try:
        body = response.json()
    except ValueError:
        body = None
    detail = body.get("error") if isinstance(body, dict) else None
    if isinstance(detail, dict) and detail.get("code"):
        error = errors.from_dict(detail)
        if isinstance(error, Unauthorized) and not error.hint:
            error.hint = _KEY_HINT
        return error
    cause = f"HTTP {response.status_code}: {response.text[:500]}"
    where = f"{response.request.method} {response.request.url.path}"
    if response.status_code in {401, 403}:
        return Unauthorized(f"the server refused the key for {where}", cause=cause, hint=_KEY_HINT)
    if response.status_code == 404:
        return NotFound(
            f"{where} does not exist",
            cause=cause,
            hint="is this the URL of an ART server, and of this version?",
        )
    if response.status_code >= 500:
        return InfraError(f"{where} failed on the server", cause=cause, hint="see server/logs in its folder")
    return ArtError(f"{where} was refused", cause=cause)


async def _check_protocol(response: httpx2.Response) -> None:
    """VersionMismatch for the answer of a server that is too far from us. One that does not say is believed."""
    server = response.headers.get(protocol.PROTOCOL_HEADER)
    if server is None:
        return
    try:
        protocol.check_server(protocol.spoken(server))
    except ArtError:
        await response.aclose()
        raise


_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"})
"""OpenSSL's reasons for an answer that is no TLS; later releases give the second."""


def _tls_failure(error: BaseException) -> ssl.SSLError | None:
    """The TLS error behind a failed connection, where waiting would not mend it; a handshake that broke off is none."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return cause
        if isinstance(cause, ssl.SSLError) and cause.reason in _NO_TLS:
            return cause
        cause = cause.__cause__ or cause.__context__
    return None


_KEY_HINT = (
    "the admin key lies in server/admin.key in the server's folder; pass it as RemoteBackend(url, key)"
)
