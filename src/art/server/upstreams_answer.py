"""What an upstream answered: usage, events, and its failures in our words. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import httpx2

from art.errors import ArtError, DeadlineExceeded, UpstreamFailed
from art.server.responses import error_body, shape_of
from art.server.upstreams import Upstream, route_of

_PASSED = ("content-type", "retry-after", "retry-after-ms", "request-id", "x-request-id", "x-should-retry")
_PASSED_PREFIXES = ("x-ratelimit-", "anthropic-ratelimit-")
MARK = "X-ART-Upstream"
"""Header of an answer that an upstream gave: its name."""
MAX_CAUSE = 500
"""Characters of an upstream's own words in an error."""


def answer_headers(upstream: Upstream, response: httpx2.Response) -> dict[str, str]:
    """Headers of the upstream's answer that concern the client."""
    kept = {
        name: upstream.scrub(value.encode("latin-1", "replace")).decode("latin-1")
        for name, value in response.headers.items()
        if name in _PASSED or name.startswith(_PASSED_PREFIXES)
    }
    return {**kept, MARK: upstream.name}


def is_stream(response: httpx2.Response) -> bool:
    return response.status_code == 200 and response.headers.get("content-type", "").startswith(
        "text/event-stream"
    )


def said(raw: bytes) -> str:
    """An upstream's own words about an error, cut to a readable length."""
    try:
        data = json.loads(raw)
        inner = data.get("error", data) if isinstance(data, dict) else data
        text = inner.get("message", raw.decode()) if isinstance(inner, dict) else str(inner)
    except (ValueError, RecursionError):
        text = raw.decode("utf-8", "replace")
    return str(text).strip()[:MAX_CAUSE]


def failure(upstream: Upstream, status: int, raw: bytes, *, location: str = "") -> ArtError | None:
    """The error that a status stands for; None for a status that is passed on as it is."""
    name = upstream.name
    location = upstream.scrub(location.encode(errors="replace")).decode(errors="replace")
    if 300 <= status < 400:
        return UpstreamFailed(
            f"the upstream {name} answered {status}, a redirect",
            cause=f"it points to {location[:200]!r}; redirects are not followed, so that the key stays with its host",
            hint=f"put the final address into server.upstreams.{name}.base_url",
        )
    if status in (401, 407):
        config = upstream.config
        where = config.api_key_env or config.api_key_file or "no key is configured: name api_key_env"
        return UpstreamFailed(
            f"the upstream {name} refused the server's key ({status})",
            cause=said(raw),
            hint=f"check the key of server.upstreams.{name} ({where}) and start the server again",
        )
    if status >= 500:
        return UpstreamFailed(f"the upstream {name} failed with {status}", cause=said(raw))
    if status < 200:
        return UpstreamFailed(f"the upstream {name} answered {status}, which is no answer")
    return None


def broken(upstream: Upstream, error: Exception) -> ArtError:
    """A failed exchange as one of our errors."""
    name = upstream.name
    if isinstance(error, TimeoutError | httpx2.TimeoutException):
        return DeadlineExceeded(
            f"the upstream {name} was silent for {upstream.config.timeout:g} s",
            hint=f"raise server.upstreams.{name}.timeout if its answers take longer",
        )
    cause = f"{type(error).__name__}: {error}"[:MAX_CAUSE]
    if isinstance(error, httpx2.ConnectError):
        return UpstreamFailed(
            f"the upstream {name} cannot be reached",
            cause=cause,
            hint=f"check that it runs, and server.upstreams.{name}.base_url",
        )
    return UpstreamFailed(f"the connection to the upstream {name} broke", cause=cause, hint="try again")


def wrong_json(upstream: Upstream, status: int, raw: bytes) -> UpstreamFailed:
    """An answer that its dialect's clients could not read."""
    return UpstreamFailed(
        f"the upstream {upstream.name} answered {status} with what is no JSON, or JSON with NaN or half a character",
        cause=f"it begins: {raw[:100]!r}" if raw else "it is empty",
        hint=f"check server.upstreams.{upstream.name}.base_url; it ends in the version, as /v1",
    )


def error_events(error: ArtError, path: str) -> Iterator[bytes]:
    """An error after a stream has begun, in the dialect's shape. The blank line ends an event that was cut."""
    shape = shape_of(path)
    body = error_body(error, shape)
    event = ""
    if shape == "anthropic":
        event = "event: error\n"
    elif route_of(path) == "responses":
        event = "event: error\n"
        body = {"type": "error", "code": error.code, "message": str(error), "param": None}
    yield f"\n\n{event}data: {json.dumps(body, ensure_ascii=False)}\n\n".encode()


def events(raw: bytes) -> list[Any]:
    """The JSON of a stream's events; what is no JSON (`[DONE]`) is left out, as is an event that was cut."""
    found: list[Any] = []
    for line in raw.split(b"\n"):
        if line.startswith(b"data:"):
            try:
                found.append(json.loads(line[5:]))
            except (ValueError, RecursionError):
                continue
    return found


def usage_of(answer: object) -> dict[str, Any]:
    """The usage in an answer or in a stream's events, under the upstream's own names; later figures win."""
    found: dict[str, Any] = {}
    for item in answer if isinstance(answer, list) else [answer]:
        if not isinstance(item, Mapping):
            continue
        for holder in (item.get("message"), item.get("response"), item):
            given = holder.get("usage") if isinstance(holder, Mapping) else None
            if isinstance(given, Mapping):
                found |= given
    return found


Outcome = Literal["answered", "refused", "failed", "cancelled"]


def outcome_of(status: int) -> Outcome:
    return "answered" if status < 400 else "refused"
