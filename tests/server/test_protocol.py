"""Clients and servers of different versions: they work together, or say which of the two to upgrade."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from chat_kit import Served, says

import art
from art.errors import InvalidInput, VersionMismatch
from art.types import protocol
from art.types.protocol import PROTOCOL_HEADER, Spoken, spoken


def ask(url: str, key: str) -> Any:
    """One control request of our own client."""

    async def main() -> Any:
        async with art.RemoteBackend(url, key) as backend:
            return await backend.connection.request("GET", "/api/v1/health")

    return asyncio.run(main())


def test_a_server_tells_a_client_which_of_the_two_is_too_old(served: Served) -> None:
    newest = protocol.OURS.newest
    together = (str(newest), f"0-{newest}", f"{newest}-{newest + 5}", f"0-{newest + 5}")
    for text in together:
        answer = served.raw("GET", "/api/v1/health", headers={PROTOCOL_HEADER: text})
        assert answer.status_code == 200, text
        assert answer.headers[PROTOCOL_HEADER] == str(protocol.OURS)
    for text, older in ((f"{newest + 1}-{newest + 2}", "server"), ("0", "client")):
        answer = served.raw("GET", "/api/v1/health", headers={PROTOCOL_HEADER: text})
        assert answer.status_code == 400, text
        error = answer.json()["error"]
        assert error["code"] == "version_mismatch"
        assert f"upgrade the {older}" in error["hint"]
    for text in ("", "one", "1-", "3-1", "1-2-3", "-1", "9" * 30):
        answer = served.raw("GET", "/api/v1/health", headers={PROTOCOL_HEADER: text})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_input"), text


def test_a_program_that_is_no_client_of_ours_is_taken_as_it_is(served: Served) -> None:
    answer = served.client().chat.completions.create(model="tests/alpha", messages=says("count"))
    assert answer.choices[0].message.content


def test_a_client_that_is_too_new_says_to_upgrade_the_server(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ask(served.server.url, served.server.admin_key)["status"] == "ok"
    monkeypatch.setattr(protocol, "OURS", Spoken(protocol.OURS.newest + 1, protocol.OURS.newest + 1))
    with pytest.raises(VersionMismatch, match="too far apart") as refused:
        ask(served.server.url, served.server.admin_key)
    assert "upgrade the server" in refused.value.hint


@contextmanager
def server_of(version: str) -> Iterator[str]:
    """A real HTTP server that answers everything as one of that protocol would, refusing nobody."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header(PROTOCOL_HEADER, version)
            self.send_header("Content-Length", "15")
            self.end_headers()
            self.wfile.write(b'{"status":"ok"}')

        def log_message(self, format: str, *args: Any) -> None:
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def test_a_client_looks_at_what_the_server_speaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "OURS", Spoken(3, 5))
    for version in ("3", "1-3", "5-9"):
        with server_of(version) as url:
            assert ask(url, "art_x") == {"status": "ok"}
    for version, older in (("1-2", "server"), ("6", "client")):
        with server_of(version) as url, pytest.raises(VersionMismatch) as refused:
            ask(url, "art_x")
        assert f"upgrade the {older}" in refused.value.hint


def test_ranges_are_read_as_they_are_written() -> None:
    for given in (Spoken(1, 1), Spoken(1, 3)):
        assert spoken(str(given)) == given
    with pytest.raises(InvalidInput, match=PROTOCOL_HEADER):
        spoken("2-1")
