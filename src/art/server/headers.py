"""What every answer tells a browser: to guess no types, show it in no frame, pass no address on, run nothing from elsewhere.

No answer carries CORS headers: pages of other origins can read nothing here.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import Message, Send

from art.types import protocol

_ALWAYS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",  # for browsers that do not know frame-ancestors
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    protocol.PROTOCOL_HEADER: str(protocol.OURS),
}
API_HEADERS = {
    **_ALWAYS,
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Cache-Control": "no-store",  # answers hold texts and keys
}
"""Of an answer that is no page."""
_PAGE_POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self' data:",
    "font-src": "'self'",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'self'",
    "frame-ancestors": "'none'",
}


def page_headers() -> dict[str, str]:
    """Headers of a page of ours, and of the scripts and styles it loads: from this server alone, nothing inline."""
    policy = "; ".join(f"{name} {value}" for name, value in _PAGE_POLICY.items())
    return {
        **_ALWAYS,
        "Content-Security-Policy": policy,
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cache-Control": "no-cache",  # asked for anew after an upgrade
    }


def with_headers(send: Send, told: Callable[[int], None]) -> Send:
    """`send` that adds API_HEADERS to an answer, as far as it does not say the same otherwise, and tells its status."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            told(message["status"])
            given = list(message.get("headers", ()))
            names = {name.lower() for name, _ in given}
            message["headers"] = given + [line for line in _LINES if line[0] not in names]
        await send(message)

    return sending


_LINES = [(name.lower().encode(), value.encode()) for name, value in API_HEADERS.items()]
