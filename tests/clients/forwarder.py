"""A TCP forwarder between the programs and the server that notes every request and the status it was answered.

Retries hide refusals from the one who looks at a program's outcome; here they are seen.
"""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

CHUNK = 65536
_REQUEST = re.compile(rb"(?:^|\n)(GET|POST|PUT|DELETE|HEAD|OPTIONS|PATCH) (\S+) HTTP/1\.[01]\r\n")
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3}) ")


@dataclass
class Exchange:
    """One request; `status` 0 while it has no answer."""

    method: str
    path: str
    status: int = 0


@dataclass
class Forwarder:
    """Listens on a loopback port of its own and forwards to `port`. One thread per direction and connection."""

    target: int
    exchanges: list[Exchange] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        self._listener.close()

    def of(self, rollout_id: str) -> list[Exchange]:
        """What was asked under a rollout's base URL."""
        return [item for item in self.exchanges if item.path.startswith(f"/r/{rollout_id}/")]

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            server = socket.create_connection(("127.0.0.1", self.target))
            waiting: list[Exchange] = []
            for pump in (self._requests, self._answers):
                threading.Thread(target=pump, args=(client, server, waiting), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket, waiting: list[Exchange]) -> None:
        for data in _chunks(client, server):
            for method, path in _REQUEST.findall(data):
                exchange = Exchange(method.decode(), path.decode())
                waiting.append(exchange)
                self.exchanges.append(exchange)
            _send(server, data)

    def _answers(self, client: socket.socket, server: socket.socket, waiting: list[Exchange]) -> None:
        for data in _chunks(server, client):
            for status in _STATUS.findall(data):
                if not status.startswith(b"1"):  # 100 Continue is no answer
                    waiting.pop(0).status = int(status)
            _send(client, data)


def _chunks(source: socket.socket, sink: socket.socket) -> Iterator[bytes]:
    """What arrives, until either side has closed; the other side is told."""
    try:
        while data := source.recv(CHUNK):
            yield data
    except OSError:
        return
    finally:
        try:
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            sink.close()


def _send(sink: socket.socket, data: bytes) -> None:
    try:
        sink.sendall(data)
    except OSError:
        sink.close()
