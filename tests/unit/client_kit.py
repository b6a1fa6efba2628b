"""A small real HTTP server that speaks the control API, for what a whole server cannot be made to do:
drop answers half-way, fall silent, fail a job."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Any, Self

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from art.errors import ArtError

KEY = "art-test-key"
Answer = Callable[[Request], Awaitable[Response]]


class HalfAnswer(Response):
    """Announces more bytes than it sends; the connection then breaks off."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"100")]})
        await send({"type": "http.response.body", "body": b"{", "more_body": False})


class FakeGateway:
    """`with FakeGateway() as gateway:` and `gateway.url`. Everything it was asked is in `requests`."""

    def __init__(self, port: int = 0) -> None:
        self.requests: list[tuple[str, str, dict[str, Any], dict[str, str]]] = []
        self.half_answers = 0
        """So many next requests are answered half."""
        self.refuse: ArtError | None = None
        """The error of every registration."""
        self.events: list[dict[str, Any]] = []
        self.stream_breaks_after = 0
        """Break each event stream after so many events; 0 never does."""
        self.jobs: dict[str, dict[str, Any]] = {}
        self.job_result: dict[str, Any] = {"step": 1, "published": True, "batch": 1}
        self.job_error: dict[str, str] | None = None
        self.job_never_ends = False
        self.called = True
        """Whether a rollout has a call."""
        self.batch = 0
        self.logged_row: dict[str, Any] = {}
        """The row that every log request is answered with."""
        self._socket = socket.create_server(("127.0.0.1", port))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(self._app(), log_level="critical", lifespan="off")
        self._server = uvicorn.Server(config)
        self._server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        while not self._server.started:
            time.sleep(0.005)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join(10)
        self._socket.close()

    def bodies(self, path_end: str) -> list[dict[str, Any]]:
        """The bodies of requests whose path ends so, in order."""
        return [body for _, path, body, _ in self.requests if path.endswith(path_end)]

    def headers(self, path_end: str) -> list[dict[str, str]]:
        return [headers for _, path, _, headers in self.requests if path.endswith(path_end)]

    def _app(self) -> Starlette:
        api = "/api/v1"
        routes = [
            (f"{api}/models", self._register, "POST"),
            (f"{api}/models/{{project}}/{{name}}", self._model, "GET"),
            (f"{api}/models/{{project}}/{{name}}/log", self._log, "POST"),
            (f"{api}/models/{{project}}/{{name}}/history", self._history, "GET"),
            (f"{api}/models/{{project}}/{{name}}/checkpoints", self._checkpoints, "GET"),
            (f"{api}/models/{{project}}/{{name}}/checkpoints", self._delete, "DELETE"),
            (f"{api}/rollouts", self._open, "POST"),
            (f"{api}/rollouts/{{id}}", self._rollout, "GET"),
            (f"{api}/rollouts/{{id}}/reward", self._rollout, "POST"),
            (f"{api}/rollouts/{{id}}/finish", self._rollout, "POST"),
            (f"{api}/jobs", self._submit, "POST"),
            (f"{api}/jobs/{{id}}", self._job, "GET"),
            (f"{api}/jobs/{{id}}/events", self._events, "GET"),
            (f"{api}/jobs/{{id}}/cancel", self._cancel, "POST"),
            ("/v1/chat/completions", self._chat, "POST"),
            ("/r/{id}/v1/chat/completions", self._chat, "POST"),
        ]
        return Starlette(
            routes=[Route(path, self._wrapped(answer), methods=[m]) for path, answer, m in routes]
        )

    def _wrapped(self, answer: Answer) -> Answer:
        async def endpoint(request: Request) -> Response:
            raw = await request.body()
            self.requests.append(
                (request.method, request.url.path, json.loads(raw) if raw else {}, dict(request.headers))
            )
            if self.half_answers:
                self.half_answers -= 1
                return HalfAnswer()
            key = request.headers.get("authorization")
            if key not in {f"Bearer {KEY}", "Bearer art-scoped"}:
                error = {"code": "unauthorized", "message": "wrong key", "cause": "", "hint": ""}
                return JSONResponse({"error": error}, status_code=401)
            return await answer(request)

        return endpoint

    def _info(self, body: dict[str, Any]) -> dict[str, Any]:
        return {
            "project": body["project"],
            "name": body["name"],
            "config": body.get("config") or {"base_model": "base"},
            "base_model_path": "/base",
            "parameters": 1,
            "context_length": 64,
            "step": self.job_result["step"] if self.jobs else 0,
            "batch": self.batch,
            "inference_name": f"{body['project']}/{body['name']}",
            "model_dir": "/models",
            "notes": [],
        }

    async def _register(self, request: Request) -> Response:
        if self.refuse is not None:
            return JSONResponse({"error": self.refuse.to_dict()}, status_code=self.refuse.status)
        return JSONResponse(self._info(await request.json()))

    async def _model(self, request: Request) -> Response:
        return JSONResponse(self._info(dict(request.path_params)))

    async def _log(self, request: Request) -> Response:
        return JSONResponse({"rollouts": 0, "row": self.logged_row})

    async def _history(self, request: Request) -> Response:
        rows = [
            {"step": 1, "val/reward": 0.9},
            {"step": 2, "val/reward": 0.4},
            {"step": 3, "train/reward": 1},
        ]
        return JSONResponse({"rows": rows})

    async def _checkpoints(self, request: Request) -> Response:
        listed = [{"step": step, "path": f"/{step}", "created_at": 0.0} for step in range(4)]
        return JSONResponse({"checkpoints": listed})

    async def _delete(self, request: Request) -> Response:
        return JSONResponse({"deleted": (await request.json())["steps"], "missing": []})

    async def _open(self, request: Request) -> Response:
        rollout = (await request.json())["rollout_id"]
        opened = {
            "rollout_id": rollout,
            "model": "p/m@0",
            "base_url": f"http://inside/r/{rollout}/v1",
            "api_key": "art-scoped",
            "step": 0,
        }
        return JSONResponse(opened)

    async def _rollout(self, request: Request) -> Response:
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "yes"}}
        info = {
            "rollout_id": request.path_params["id"],
            "project": "p",
            "model": "m",
            "step": 0,
            "purpose": "train",
            "status": "finished",
            "messages": [
                {"role": "user", "content": "well?"},
                {"role": "assistant", "content": "yes", "choice": choice},
            ]
            if self.called
            else [],
        }
        return JSONResponse(info)

    async def _submit(self, request: Request) -> Response:
        key = request.headers["idempotency-key"]
        if key not in self.jobs:
            self.jobs[key] = {"job_id": f"job{len(self.jobs)}", "ends": not self.job_never_ends}
            self.batch += 1
        return JSONResponse(self._job_info(self.jobs[key]["job_id"], "queued"))

    def _job_info(self, job_id: str, status: str) -> dict[str, Any]:
        info: dict[str, Any] = {
            "job_id": job_id,
            "project": "p",
            "name": "m",
            "status": status,
            "created_at": 0.0,
        }
        if status == "succeeded":
            info["result"] = self.job_result
        if status == "failed":
            info["error"] = self.job_error
        return info

    async def _job(self, request: Request) -> Response:
        status = "running"
        if self._streamed >= len(self.events) and not self.job_never_ends:
            status = "failed" if self.job_error else "succeeded"
        return JSONResponse(self._job_info(request.path_params["id"], status))

    _streamed = 0

    async def _events(self, request: Request) -> Response:
        seen = int(request.headers.get("last-event-id", "0"))
        rest = [event for event in self.events if event["id"] > seen]
        if self.stream_breaks_after:
            rest = rest[: self.stream_breaks_after]

        async def stream() -> AsyncIterator[str]:
            for event in rest:
                self._streamed = max(self._streamed, event["id"])
                yield f"id: {event['id']}\ndata: {json.dumps(event)}\n\n"

        return StreamingResponse(stream(), media_type="text/event-stream")

    async def _cancel(self, request: Request) -> Response:
        return JSONResponse(self._job_info(request.path_params["id"], "cancelled"))

    async def _chat(self, request: Request) -> Response:
        body = await request.json()
        choice = {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": "yes"},
            "logprobs": {"content": [{"token": "yes", "logprob": -0.5, "bytes": None, "top_logprobs": []}]},
            "token_ids": [7],
            "art": {"call_id": f"call{len(self.requests)}", "choice": 0, "version": "p/m@0"},
        }
        return JSONResponse(
            {
                "id": "c",
                "object": "chat.completion",
                "created": 0,
                "model": body["model"],
                "choices": [choice],
            }
        )


def job_event(number: int, kind: str = "progress", **data: Any) -> dict[str, Any]:
    """One event as the server sends it."""
    return {"id": number, "type": kind, "time": 0.0, "data": data}
