"""What a browser is told, and what a page of somebody else's cannot make it do."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from chat_kit import Served, says
from starlette.datastructures import Headers

from art.errors import Forbidden
from art.server.headers import API_HEADERS, page_headers
from art.server.origin import check_origin


def is_refused(origin: str | None, *, host: str = "127.0.0.1:7999", method: str = "POST") -> bool:
    headers = {"host": host} if origin is None else {"host": host, "origin": origin}
    try:
        check_origin(method, Headers(headers), {"art.example.com"})
    except Forbidden:
        return True
    return False


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        (None, "127.0.0.1:7999"),
        ("http://127.0.0.1:7999", "127.0.0.1:7999"),
        ("http://localhost:7999", "LocalHost:7999"),
        ("http://[::1]:7999", "[::1]:7999"),
        ("https://art.example.com", "art.example.com"),
        ("https://art.example.com", "127.0.0.1:7999"),  # a proxy that does not pass the Host header on
        ("https://art.example.com:8443", "art.example.com:8443"),
        ("http://gpu", "gpu:80"),
    ],
)
def test_our_own_pages_and_programs_may_change_things(origin: str | None, host: str) -> None:
    assert not is_refused(origin, host=host)


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "",
        "http://evil.example.com",
        "https://127.0.0.1",
        "http://127.0.0.1:8000",
        "http://localhost:7999",
        "http://127.0.0.1:7999.evil.example.com",
        "http://127.0.0.1:7999@evil.example.com",
        "http://evil.example.com/127.0.0.1:7999",
        "http://art.example.com:8080",
        "https://art.example.com.evil.example.com",
        "chrome-extension://abcdefgh",
        "file://",
        "http://127.0.0.1:99999",
        "http://127.0.0.1:7999 http://evil.example.com",
    ],
)
def test_pages_of_others_may_not(origin: str) -> None:
    assert is_refused(origin)
    for method in ("PUT", "PATCH", "DELETE"):
        assert is_refused(origin, method=method)
    for method in ("GET", "HEAD", "OPTIONS"):
        assert not is_refused(origin, method=method)


def test_one_foreign_origin_among_several_is_enough() -> None:
    lines = [(b"host", b"a:1"), (b"origin", b"http://a:1"), (b"origin", b"http://evil.example.com")]
    with pytest.raises(Forbidden):
        check_origin("POST", Headers(raw=lines), ())


def test_a_live_server_refuses_them(served: Served) -> None:
    body = {"model": "tests/alpha", "messages": says("count")}
    page = {"Origin": "https://evil.example.com"}
    for path in ("/v1/chat/completions", "/api/v1/rollouts", "/api/v1/keys"):
        answer = served.raw("POST", path, body, headers=page)
        assert answer.status_code == 403, path
        assert "evil.example.com" in answer.json()["error"]["message"]
    assert served.raw("POST", "/v1/chat/completions", body, headers={"Origin": served.server.url}).is_success
    # It may look, but nothing here tells its browser to hand over what it sees.
    looked = served.raw("GET", "/api/v1/health", headers=page)
    assert looked.status_code == 200
    asked = httpx2.options(
        f"{served.server.url}/v1/chat/completions",
        headers={**page, "Access-Control-Request-Method": "POST"},
        timeout=30,
    )
    assert asked.status_code == 401
    for answer in (looked, asked):
        assert not [name for name in answer.headers if name.startswith("access-control-")]


def answers(served: Served) -> list[tuple[str, httpx2.Response]]:
    chat = {"model": "tests/alpha", "messages": says("count")}
    return [
        ("an answer", served.raw("GET", "/api/v1/health")),
        ("the description", served.raw("GET", "/api/v1/openapi.json")),
        ("a completion", served.raw("POST", "/v1/chat/completions", chat)),
        ("a stream", served.raw("POST", "/v1/chat/completions", {**chat, "stream": True})),
        ("bad input", served.raw("POST", "/v1/chat/completions", {"model": 1})),
        ("no key", httpx2.get(f"{served.server.url}/api/v1/health", timeout=30)),
        ("no route", served.raw("GET", "/nothing")),
        ("another method", served.raw("DELETE", "/api/v1/health")),
    ]


def test_every_answer_has_the_headers(served: Served) -> None:
    for name, answer in answers(served):
        for header, value in API_HEADERS.items():
            if (name, header) == ("a stream", "Cache-Control"):
                continue  # it says so itself: no-cache
            assert answer.headers.get(header) == value, (name, header)
        assert len(answer.headers.get_list("content-security-policy")) == 1, name
        assert "server" not in answer.headers, name


def test_a_fault_of_ours_is_answered_with_them_too() -> None:
    """It is answered outside of the guard, by the outermost middleware."""
    import asyncio

    from starlette.requests import Request

    from art.server.app import _bug

    scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/api/v1/health", "headers": []}
    answer = asyncio.run(_bug(Request(scope), RuntimeError("oops")))
    assert {name: answer.headers.get(name) for name in API_HEADERS} == API_HEADERS


def test_a_page_runs_nothing_from_elsewhere() -> None:
    policy = dict(part.split(" ", 1) for part in page_headers()["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert "unsafe" not in str(policy)
    assert page_headers()["X-Content-Type-Options"] == "nosniff"
