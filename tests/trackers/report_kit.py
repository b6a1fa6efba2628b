"""One short run that every tracker is told: two rows and a batch of two rollouts, and what may be found of it where."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from art.integrations.registry import make
from art.integrations.reporter import Reporter
from art.integrations.seen import CallSeen, RolloutBatch, RolloutSeen, ToolSeen
from art.integrations.tracker import PublishedStep, Row, RunInfo, Tracker
from art.integrations.worker import Job

DEADLINE = 60.0
SECRET = "the code is 4711"
"""Said in every message: found where content was asked for, and nowhere else."""
BEGAN = 1_790_000_000.0
ROWS = (
    Row(1, "train", {"train/reward": 0.25, "loss/train": 1.5, "costs/all": 0.01}, BEGAN),
    Row(2, "train", {"train/reward": 0.75, "loss/train": 0.5}, BEGAN + 10),
    Row(2, "val", {"val/reward": 0.5}, BEGAN + 11),
)


def run_info(folder: Path, **fields: Any) -> RunInfo:
    given: dict[str, Any] = {"project": "weather", "name": "agent-001", "run_id": "agent-001", **fields}
    return RunInfo(folder=folder, config={"base_model": "tiny", "lora": {"r": 8}}, **given)


def rollout(member: int) -> RolloutSeen:
    tool = ToolSeen(
        name="get_weather",
        tool_call_id="t1",
        arguments=f'{{"city": "Oslo", "note": "{SECRET}"}}',
        result=SECRET,
        started=BEGAN + 1,
        ended=BEGAN + 2,
    )
    asked = {"role": "user", "content": f"weather in Oslo? {SECRET}"}
    called = {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "t1", "type": "function", "function": {"name": "get_weather", "arguments": tool.arguments}}
        ],
    }
    told = {"role": "tool", "tool_call_id": "t1", "content": SECRET}
    said = {"role": "assistant", "content": f"rain, {SECRET}"}
    common: dict[str, Any] = {
        "version": "weather/agent-001@1",
        "temperature": 1.0,
        "top_p": 1.0,
        "fate": "trained",
    }
    calls = (
        CallSeen(
            call_id=f"call-{member}-0", started=BEGAN, ended=BEGAN + 1, input_tokens=12, output_tokens=5,
            finish_reasons=("tool_calls",), input=(asked,), output=called, tools=(tool,), **common,
        ),
        CallSeen(
            call_id=f"call-{member}-1", started=BEGAN + 2, ended=BEGAN + 3, input_tokens=20, output_tokens=7,
            finish_reasons=("stop",), input=(asked, called, told), output=said, **common,
        ),
    )  # fmt: skip
    return RolloutSeen(
        rollout_id=f"ro-{member}",
        scenario_id="oslo",
        group=0,
        member=member,
        status="trained",
        reward=float(member),
        metrics={"turns": 2.0},
        started=BEGAN,
        ended=BEGAN + 4,
        calls=calls,
        metadata={"city": SECRET},
    )


def batch(*, content: bool) -> RolloutBatch:
    rollouts = tuple(rollout(member) for member in range(2))
    given = rollouts if content else tuple(one.without_content() for one in rollouts)
    return RolloutBatch(step=1, split="train", time=BEGAN + 5, rollouts=given)


def tell(
    asked: dict[str, Any],
    folder: Path,
    *,
    rows: tuple[Row, ...] = ROWS,
    run: RunInfo | None = None,
    checkpoint: PublishedStep | None = None,
    after: Callable[[Tracker], Any] | None = None,
) -> Tracker:
    """Report the run to a tracker by the reporter, to its close; nothing may be lost. `after` is done on its thread."""
    tracker = make(asked)
    reporter = Reporter(run or run_info(folder))
    reporter.add(tracker)
    (worker,) = reporter._workers.values()
    for row in rows:
        reporter.row(row)
    if tracker.about.rollouts:
        told = batch(content=tracker.about.content)
        worker.offer(Job("rollout", len(told.rollouts), lambda tracker: tracker.rollouts(told)))
    if checkpoint is not None:
        reporter.checkpoint(checkpoint)
    if after is not None:
        reporter.ask(tracker.about.name, after, DEADLINE)
    reporter.close(seconds=DEADLINE)
    assert worker.lost.total() == 0
    return tracker


def published(folder: Path) -> PublishedStep:
    """A checkpoint's folder with what is uploaded of it, and what is not."""
    path = folder / "checkpoints" / "0002"
    path.mkdir(parents=True)
    for name in (
        "adapter_config.json",
        "adapter_model.safetensors",
        "manifest.json",
        "optimizer.safetensors",
    ):
        (path / name).write_text(name)
    return PublishedStep(2, path, {"loss/train": 0.5})


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


Answer = Callable[[str, bytes, dict[str, str]], tuple[int, bytes, str]]
"""(method and path, body, headers) -> status, body, content type."""


class Loopback:
    """A small server that keeps what it was sent."""

    def __init__(self, answer: Answer) -> None:
        self.requests: list[tuple[str, bytes, dict[str, str]]] = []
        kept = self.requests

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                body = self._body()
                asked = f"{self.command} {self.path}"
                headers = {name.lower(): value for name, value in self.headers.items()}
                kept.append((asked, body, headers))
                status, said, kind = answer(asked, body, headers)
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)

            def _body(self) -> bytes:
                if self.headers.get("Transfer-Encoding") != "chunked":
                    return self.rfile.read(int(self.headers.get("Content-Length") or 0))
                found = b""
                while size := int(self.rfile.readline(), 16):
                    found += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return found

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer

            def log_message(self, format: str, *arguments: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def sent(self, path: str) -> list[tuple[bytes, dict[str, str]]]:
        """Bodies and headers of what was sent to a path."""
        return [
            (body, headers)
            for asked, body, headers in self.requests
            if asked.partition(" ")[2].startswith(path)
        ]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


@contextmanager
def loopback(answer: Answer) -> Iterator[Loopback]:
    server = Loopback(answer)
    try:
        yield server
    finally:
        server.close()
