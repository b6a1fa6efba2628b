"""Requests that a page of somebody else's has a browser send (CSRF): told by their Origin header, and refused.

Browsers put `Origin` into every request that may change something, and a page cannot change it (Fetch standard,
section 3.2). Programs do not send it. A key is needed all the same: this is the second lock of the door.
"""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from art.errors import Forbidden

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Of requests that change nothing (RFC 9110, section 9.2.1)."""
_DEFAULT_PORTS = {"http": 80, "https": 443}


def check_origin(method: str, headers: Headers, names: Collection[str]) -> None:
    """Forbidden when a page of another origin sent a request that may change something.

    Ours is the origin that the Host header names, and `names` (those the server was told, of a proxy before it) at
    the scheme's own port.
    """
    if method in SAFE_METHODS:
        return
    for origin in headers.getlist("origin"):
        if not _is_ours(origin, headers.get("host", ""), names):
            raise Forbidden(
                f"a page of {origin[:200]!r} sent this request, which may change something",
                cause="browsers may change things from this server's own pages only",
                hint="send it from a program; behind a proxy name the server with --set server.allowed_hosts=NAME and pass the Host header on",
            )


def _is_ours(origin: str, host: str, names: Collection[str]) -> bool:
    try:
        parts = urlsplit(origin)
        default = _DEFAULT_PORTS[parts.scheme]
        name, port = (parts.hostname or "").lower(), parts.port or default
        asked = urlsplit(f"//{host}")
        here = (asked.hostname or "").lower(), asked.port or default
    except (KeyError, ValueError):  # "null", a file, an extension; or no origin at all
        return False
    if not name or parts.path or parts.query or parts.fragment or parts.username is not None:
        return False
    return (name, port) == here or (name in names and port == default)
