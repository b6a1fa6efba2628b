"""The world outside, for the programs: one HTTP server that answers as a judge, a generator, a prompted model
and the hosted training service do. Standard library only.

It answers with plausible data in the shapes of the public APIs, and knows nothing about who asks.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qsl

COUNT = 4
"""Trajectories that the programs have judged at a time, and scenarios that they ask for."""
ANSWERS = ("yes", "no", "maybe")

Json = dict[str, Any]


class FakeServices:
    """`with FakeServices() as services: services.url` is an OpenAI-compatible base URL ending in /v1."""

    def __init__(self) -> None:
        handler = type("Handler", (_Handler,), {"hosted": Hosted(), "turns": itertools.count()})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> FakeServices:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=10)


class Hosted:
    """The hosted training service's state: models with steps, and jobs that are done as soon as they are made."""

    def __init__(self) -> None:
        self.models: dict[str, Json] = {}
        self.steps: dict[str, list[int]] = {}
        self.jobs: dict[str, Json] = {}

    def create(self, body: Json) -> Json:
        key = f"{body.get('entity') or 'acme'}-{body['project']}-{body['name']}"
        entity = body.get("entity") or "acme"
        self.models.setdefault(key, {**body, "id": key, "entity": entity, "run_id": f"run-{key}"})
        self.steps.setdefault(key, [0])
        return self.models[key]

    def train(self, body: Json) -> Json:
        model, groups = body["model_id"], body["trajectory_groups"]
        self.steps[model].append(self.steps[model][-1] + 1)
        job = f"job-{len(self.jobs)}"
        self.jobs[job] = {"sequences": sum(len(group["trajectories"]) for group in groups)}
        return {"id": job, "model_id": model}

    def checkpoints(self, model: str, query: dict[str, str]) -> Json:
        steps = sorted(self.steps[model], reverse=query.get("order", "asc") == "desc")
        rows = [{"id": f"{model}-{step}", "step": step, "metrics": {}} for step in steps]
        return page(rows, query)

    def delete_checkpoints(self, model: str, steps: list[int]) -> Json:
        there = [step for step in steps if step in self.steps[model]]
        self.steps[model] = [step for step in self.steps[model] if step not in there]
        return {"deleted_count": len(there), "not_found_steps": sorted(set(steps) - set(there))}

    def events(self, job: str, query: dict[str, str]) -> Json:
        rows = [
            {"type": "training_started", "data": {"num_sequences": self.jobs[job]["sequences"]}},
            {"type": "gradient_step", "data": {"loss": 0.5, "grad_norm": 0.1}},
            {"type": "training_ended", "data": {}},
        ]
        return page([{"id": f"{job}-{i}", **row} for i, row in enumerate(rows)], query)


def page(rows: list[Json], query: dict[str, str]) -> Json:
    """The rows behind the one that `after` names, `limit` of them."""
    first = next((i + 1 for i, row in enumerate(rows) if row["id"] == query.get("after")), 0)
    end = first + int(query.get("limit", len(rows)))
    return {"data": rows[first:end], "has_more": end < len(rows)}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hosted: Hosted
    turns: Iterator[int]
    lock = threading.Lock()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()

    def log_message(self, format: str, *arguments: Any) -> None:
        return

    def _answer(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = json.loads(raw) if raw else {}
        path, _, query = self.path.partition("?")
        with self.lock:
            if path.removeprefix("/v1") == "/chat/completions" and self.command == "POST":
                return self._chat(body)
            found = self._hosted(path.removeprefix("/v1"), dict(parse_qsl(query)), body)
        return self._send(200 if found is not None else 404, found or {"error": {"message": f"no {path}"}})

    def _hosted(self, path: str, query: dict[str, str], body: Json) -> Json | None:
        match (self.command, path.strip("/").split("/")):
            case ("POST", ["preview", "models"]):
                return self.hosted.create(body)
            case ("DELETE", ["preview", "models", model]):
                return {"id": model, "deleted": self.hosted.models.pop(model, None) is not None}
            case ("POST", ["preview", "models", _, "log"]):
                return {"ok": True}
            case ("GET", ["preview", "models", model, "checkpoints"]):
                return self.hosted.checkpoints(model, query)
            case ("DELETE", ["preview", "models", model, "checkpoints"]):
                return self.hosted.delete_checkpoints(model, body["steps"])
            case ("POST", ["preview", "training-jobs"]):
                return self.hosted.train(body)
            case ("GET", ["preview", "training-jobs", job, "events"]):
                return self.hosted.events(job, query)
        return None

    def _chat(self, body: Json) -> None:
        content, calls = reply(body, next(self.turns))
        if body.get("stream"):
            return self._stream(body, content)
        message: Json = {"role": "assistant", "content": content, "refusal": None}
        if calls:
            message["tool_calls"] = calls
        choice = {
            "index": 0,
            "finish_reason": "tool_calls" if calls else "stop",
            "message": message,
            "logprobs": logprobs(content or "") if body.get("logprobs") else None,
        }
        usage = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
        head = {"id": "chatcmpl-1", "created": 1, "model": body["model"]}
        return self._send(200, {**head, "object": "chat.completion", "choices": [choice], "usage": usage})

    def _stream(self, body: Json, content: str | None) -> None:
        head = {"id": "chatcmpl-1", "created": 1, "model": body["model"], "object": "chat.completion.chunk"}
        deltas: list[tuple[Json, str | None]] = [
            ({"role": "assistant", "content": ""}, None),
            ({"content": content}, None),
            ({}, "stop"),
        ]
        lines = []
        for delta, finish in deltas:
            scored = logprobs(content or "") if body.get("logprobs") and delta.get("content") else None
            choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": scored}
            lines.append(f"data: {json.dumps({**head, 'choices': [choice]})}\n\n")
        self._send_bytes(200, "".join([*lines, "data: [DONE]\n\n"]).encode(), "text/event-stream")

    def _send(self, status: int, body: Json) -> None:
        self._send_bytes(status, json.dumps(body).encode(), "application/json")

    def _send_bytes(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def reply(body: Json, turn: int) -> tuple[str | None, list[Json]]:
    """(content, tool calls): what the schema asks for, else a call of a tool, else one of ANSWERS."""
    text = json.dumps(body.get("messages", []))
    schema = json.dumps(body.get("response_format") or {})
    if "scores" in schema or "trajectory_id" in text:
        return json.dumps({"scores": list(scores(text))}), []
    if "scenarios" in schema:
        tasks = [{"task": f"What is the balance of a-{i}?", "difficulty": 1 + i} for i in range(COUNT)]
        return json.dumps({"scenarios": tasks}), []
    names = [tool["function"]["name"] for tool in body.get("tools") or []]
    if names:
        done = any(message.get("role") == "tool" for message in body["messages"])
        name = "complete_task" if done and "complete_task" in names else names[0]
        arguments = {"summary": "done"} if name == "complete_task" else {"account": "a-1"}
        call = {"name": name, "arguments": json.dumps(arguments)}
        return None, [{"id": f"call-{turn}", "type": "function", "function": call}]
    return ANSWERS[turn % len(ANSWERS)], []


def scores(text: str) -> Iterator[Json]:
    """One score per trajectory that the judge was shown, from 0 up to 1."""
    ids = list(dict.fromkeys(re.findall(r'trajectory id=\\?["\']([^"\'\\]+)', text)))
    ids = ids or [str(number) for number in range(1, COUNT + 1)]
    for place, key in enumerate(ids):
        yield {
            "trajectory_id": key,
            "explanation": f"number {place + 1} of {len(ids)}",
            "score": place / max(1, len(ids) - 1),
        }


def logprobs(content: str) -> Json:
    """One token per character, as a byte-level model has."""
    rows = [
        {"token": char, "bytes": list(char.encode()), "logprob": -0.5, "top_logprobs": []} for char in content
    ]
    return {"content": rows, "refusal": None}
