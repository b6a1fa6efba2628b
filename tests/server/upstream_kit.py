"""A tiny upstream with odd habits: the first part of the path says which."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SSE = (
    b'data: {"id":"1","choices":[{"delta":{"content":"Gr\xc3\xbc"}}]}\n\n'
    b": a comment, and an event without a space\n\n"
    b'data:{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\r\n\r\n'
    b"data: [DONE]\n\n"
)
MESSAGES_SSE = (
    b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":7,"output_tokens":1}}}\n\n'
    b'event: message_delta\ndata: {"type":"message_delta","usage":{"output_tokens":9}}\n\n'
)


class OddUpstream(ThreadingHTTPServer):
    """Remembers what it was sent."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[dict[str, Any]] = []
        self.left = threading.Event()
        """Set when a client has left the `endless` stream."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def odd_upstream() -> Iterator[OddUpstream]:
    """It serves while the `with` lasts."""
    server = OddUpstream()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: OddUpstream

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length", 0)))
        _, habit, _, *route = self.path.split("/")
        headers = {name.lower(): value for name, value in self.headers.items()}
        seen = {
            "habit": habit,
            "route": "/".join(route),
            "headers": headers,
            "body": json.loads(raw),
        }
        self.server.requests.append(seen)
        getattr(self, f"_{habit}")(seen)

    do_GET = do_POST

    def log_message(self, format: str, *args: Any) -> None:
        return None

    def _say(self, status: int, body: bytes, kind: str = "application/json", **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _begin_stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _echo(self, seen: dict[str, Any]) -> None:
        self._say(200, json.dumps({**seen, "usage": {"total_tokens": 5}}).encode())

    def _refuse(self, seen: dict[str, Any]) -> None:
        token = seen["headers"].get("authorization", "")
        self._say(401, json.dumps({"error": {"message": f"wrong key: {token}"}}).encode())

    def _tell(self, seen: dict[str, Any]) -> None:
        token = seen["headers"].get("authorization", "")
        self._say(400, json.dumps({"error": {"message": f"you sent {token}"}}).encode())

    def _busy(self, seen: dict[str, Any]) -> None:
        body = b'{"error": {"message": "slow down", "type": "rate_limit"}}'
        self._say(429, body, Retry_After="7", X_RateLimit_Remaining="0", Set_Cookie="a=b")

    def _crash(self, seen: dict[str, Any]) -> None:
        self._say(500, b"<h1>Internal error</h1>", "text/html")

    def _page(self, seen: dict[str, Any]) -> None:
        self._say(200, b"<h1>Welcome</h1>", "text/html")

    def _empty(self, seen: dict[str, Any]) -> None:
        self._say(200, b"")

    def _wall(self, seen: dict[str, Any]) -> None:
        self._say(403, b"<h1>Blocked by the proxy</h1>", "text/html")

    def _elsewhere(self, seen: dict[str, Any]) -> None:
        self._say(307, b"", Location=f"{self.server.url}/echo/v1/chat/completions")

    def _slow(self, seen: dict[str, Any]) -> None:
        time.sleep(3)

    def _pieces(self, seen: dict[str, Any]) -> None:
        """In pieces that cut events and characters."""
        self._begin_stream()
        whole = MESSAGES_SSE if seen["route"] == "messages" else SSE
        for start in range(0, len(whole), 29):
            self._chunk(whole[start : start + 29])
            time.sleep(0.002)
        self._chunk(b"")

    def _breaks(self, seen: dict[str, Any]) -> None:
        self._begin_stream()
        self._chunk(SSE[:90])
        self.close_connection = True

    def _endless(self, seen: dict[str, Any]) -> None:
        self._begin_stream()
        try:
            while True:
                self._chunk(b'data: {"choices":[{"delta":{"content":"tick"}}]}\n\n')
                time.sleep(0.05)
        except OSError:
            self.server.left.set()
            self.close_connection = True
