"""The program against a service of the test's own: it needs nothing of ART."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

FOLDER = Path(__file__).parent.parent


class Service(BaseHTTPRequestHandler):
    """Answers `yes`, and remembers what it was asked."""

    asked: ClassVar[list[dict[str, Any]]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append({"path": self.path, "key": self.headers["Authorization"], **body})
        answer = json.dumps({"choices": [{"message": {"role": "assistant", "content": "yes"}}]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""


@pytest.fixture
def service() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Service) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


def test_it_asks_where_it_is_told_and_prints_the_answer(service: str) -> None:
    done = subprocess.run(
        [sys.executable, "agent.py"],
        cwd=FOLDER,
        env={
            **os.environ,
            "OPENAI_BASE_URL": service,
            "OPENAI_API_KEY": "k",
            "ART_SCENARIO": json.dumps({"review": "Lovely."}),
            "NO_PROXY": "127.0.0.1",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "yes\n"
    (asked,) = Service.asked
    assert (asked["path"], asked["key"]) == ("/v1/chat/completions", "Bearer k")
    assert asked["messages"][-1] == {"role": "user", "content": "Lovely."}
