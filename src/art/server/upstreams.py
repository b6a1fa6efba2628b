"""Named upstreams: where they are, what they serve, and the keys that never leave the server."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

import httpx2
from pydantic import SecretStr

from art.config.upstreams import UpstreamConfig, read_key
from art.errors import NotFound
from art.server.admission import Admission

OPENAI_ROUTES = frozenset({"chat/completions", "responses", "completions", "embeddings"})
ANTHROPIC_ROUTES = frozenset({"messages", "messages/count_tokens"})
KNOWN_ROUTES = OPENAI_ROUTES | ANTHROPIC_ROUTES
CONNECT_SECONDS = 10.0
"""A host that is up takes a connection within a round trip; one that is down should be known soon."""
IDLE_CONNECTIONS = 64
"""Kept open per upstream, so that a call needs no new handshake."""
ANTHROPIC_VERSION = "2023-06-01"
"""The only version of Anthropic's API so far, for clients that name none."""
_FORWARDED = ("accept", "openai-beta", "anthropic-version", "anthropic-beta", "idempotency-key")
"""Headers of the client's request that mean something to the upstream. Its key, cookies and our own headers stay here."""
_ROUTE = re.compile(r"(?:/r/[^/]+)?/v1/(.+)")


class Upstream:
    """One upstream and its connections."""

    def __init__(self, name: str, config: UpstreamConfig) -> None:
        self.name = name
        self.config = config
        self.model = config.model or name
        self._key = read_key(name, config)
        timeout = httpx2.Timeout(config.timeout, connect=min(CONNECT_SECONDS, config.timeout))
        self.client = httpx2.AsyncClient(
            timeout=timeout,
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=IDLE_CONNECTIONS),
            follow_redirects=False,  # a key and a conversation go to the configured host and to no other
            trust_env=not _is_loopback(config.base_url),  # a proxy cannot reach this machine's loopback
        )

    def check_route(self, route: str) -> None:
        """NotFound naming the setting when the upstream does not serve `route`."""
        dialect = self.config.dialect
        routes = {"openai": OPENAI_ROUTES, "anthropic": ANTHROPIC_ROUTES, None: KNOWN_ROUTES}[dialect]
        if route in routes or route in self.config.routes:
            return
        if route in KNOWN_ROUTES:
            cause = f"server.upstreams.{self.name}.dialect is {dialect!r}"
        else:
            cause = f"server.upstreams.{self.name}.routes does not name it"
        raise NotFound(
            f"the upstream {self.name} does not serve /v1/{route}",
            cause=cause,
            hint=f"if it does, set routes = [{route!r}] for it",
        )

    def url(self, route: str) -> str:
        return f"{self.config.base_url}/{route}"

    def headers(self, given: Mapping[str, str], route: str) -> dict[str, str]:
        """Headers of the request to the upstream; `given` are the client's, by their names in lower case."""
        out = {name: given[name] for name in _FORWARDED if name in given}
        out["content-type"] = "application/json"
        anthropic = self.config.dialect == "anthropic" or (
            self.config.dialect is None and route in ANTHROPIC_ROUTES
        )
        if anthropic:
            out.setdefault("anthropic-version", ANTHROPIC_VERSION)
        if self._key is not None:
            secret = self._key.get_secret_value()
            out |= {"x-api-key": secret} if anthropic else {"authorization": f"Bearer {secret}"}
        return out

    def scrub(self, raw: bytes) -> bytes:
        """`raw` without the key: some servers repeat in an error what they were sent."""
        secret = (self._key or SecretStr("")).get_secret_value().encode()
        return raw.replace(secret, _SCRUBBED) if secret else raw

    def scrubber(self) -> Scrubber:
        """The same for a stream."""
        return Scrubber((self._key or SecretStr("")).get_secret_value().encode())


class Scrubber:
    """A stream without the key, also where the key lies across two of its pieces. What cannot be the key leaves at once."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._held = b""

    def feed(self, piece: bytes) -> bytes:
        """The part that is certain."""
        if not self._secret:
            return piece
        data = (self._held + piece).replace(self._secret, _SCRUBBED)
        longest = min(len(self._secret) - 1, len(data))
        held = next((n for n in range(longest, 0, -1) if data.endswith(self._secret[:n])), 0)
        self._held = data[len(data) - held :]
        return data[: len(data) - held]

    def finish(self) -> bytes:
        """What was held back, at the end."""
        held, self._held = self._held, b""
        return held


_SCRUBBED = b"[the key]"


class Upstreams:
    """All upstreams of one server, by the name that requests give as their model."""

    def __init__(self, configs: Mapping[str, UpstreamConfig], *, max_waiting: int) -> None:
        self._by_name = {name: Upstream(name, config) for name, config in configs.items()}
        self.admission = Admission(max_waiting)

    @property
    def names(self) -> list[str]:
        return list(self._by_name)

    def find(self, body: object) -> Upstream | None:
        """The upstream that a request's body names."""
        model = body.get("model") if isinstance(body, dict) else None
        return self._by_name.get(model) if isinstance(model, str) else None

    async def close(self) -> None:
        for upstream in self._by_name.values():
            await upstream.client.aclose()


def route_of(path: str) -> str:
    """What follows `/v1/` in an inference path, "" for any other path."""
    found = _ROUTE.fullmatch(path)
    return found[1] if found is not None else ""


def not_served(path: str, *, model: object = None) -> NotFound:
    """The answer for an inference route that is neither served nor configured, naming the setting that would add it."""
    route = route_of(path)
    what = f"/v1/{route} is not served here"
    if isinstance(model, str):
        what += f" for the model {model[:200]!r}"
    settings = 'base_url = "https://.../v1"'
    if route not in KNOWN_ROUTES:
        settings += f', routes = ["{route[:200]}"]'
    return NotFound(
        what,
        cause="only configured upstreams serve it, by their name as the model",
        hint=f"add an upstream: [server.upstreams.NAME] {settings} (see docs/upstreams.md)",
    )


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
