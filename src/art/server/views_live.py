"""What happens now: the stream of changes, and how the server is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from art.errors import Forbidden
from art.server.endpoint import ApiCall, ApiRoute
from art.server.guard import bearer
from art.server.live import Listener, Live
from art.server.state import Gateway
from art.store.changes import Change
from art.store.records import Role
from art.types.wire_views import QueueInfo, ServerView
from art.version import package_version

PAGE_BYTES = 4096
"""Of this system's memory; /proc counts in pages."""


async def events(call: ApiCall) -> Response:
    """`?project=` and `&name=` narrow it down. The stream ends with the key, and when the server stops."""
    asked = call.request.query_params
    project = asked.get("project")
    if project is not None:
        call.principal.require_project(project)
    live, who = call.gateway.live, call.principal
    live.check_room(who.account)
    listener = Listener(own=who.project, project=project, name=asked.get("name"), account=who.account)
    stream = stream_of(call.gateway, listener, bearer(call.request.headers))
    return EventStream(stream, live, listener)


class EventStream(StreamingResponse):
    """Counts its listener from the moment at which there was found to be room, not from its first line: many that come
    at once would all find it."""

    def __init__(self, lines: AsyncGenerator[str, None], live: Live, listener: Listener) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(lines, media_type="text/event-stream", headers=headers)
        self._live = live
        self._listener = listener

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._live.listening(self._listener):
            await super().__call__(scope, receive, send)


async def stream_of(gateway: Gateway, listener: Listener, key: str) -> AsyncGenerator[str, None]:
    """The stream's lines."""
    with gateway.live.listening(listener):
        yield ": listening\n\n"
        async for parcel in gateway.live.parcels(listener):
            if await gateway.keys.authenticate(key) is None:
                return
            yield "".join(map(_event, parcel)) or ": keep-alive\n\n"


def _event(change: Change) -> str:
    data: dict[str, object] = {"project": change.project, "name": change.name, "id": change.id}
    if change.status:
        data["status"] = change.status
    if change.step is not None:
        data["step"] = change.step
    return f"event: {change.kind}\ndata: {json.dumps(data)}\n\n"


async def server_view(call: ApiCall) -> ServerView:
    """For administrators, and for keys of all projects: the figures are sums over all of them."""
    who = call.principal
    if who.project is not None and who.role is not Role.ADMIN:
        raise Forbidden(
            "how the server is concerns every project, and this key belongs to one",
            hint="use a key of all projects, or an admin key",
        )
    gateway, rates = call.gateway, call.gateway.live.rates
    workers = [*gateway.engines.health(), gateway.trainer.health()]
    shown = [worker if who.project is None else worker.model_copy(update={"stats": {}}) for worker in workers]
    live = not gateway.read_only
    return ServerView(
        version=package_version(),
        started_at=gateway.started_at,
        read_only=gateway.read_only,
        queues=await _queues(gateway) if live else [],
        workers=[worker.model_dump(mode="json") for worker in shown] if live else [],
        sampled_tokens_per_second=rates.per_second("tokens") if live else None,
        calls_per_minute=rates.per_minute("calls") if live else None,
        refused_per_minute=rates.per_minute("refused") if live else None,
        memory_bytes=await asyncio.to_thread(memory_bytes),
        store_bytes=await gateway.sizes.total(gateway.root / "server"),
        open_connections=len(gateway.connections),
    )


async def _queues(gateway: Gateway) -> list[QueueInfo]:
    waiting, running = gateway.versions.turns_now()
    jobs = await gateway.store.remarks.open_jobs()
    most = gateway.settings.max_waiting_calls
    return [
        QueueInfo(name="calls", waiting=waiting, running=running, limit=most),
        QueueInfo(name="jobs", waiting=jobs.get("queued", 0), running=jobs.get("running", 0)),
        QueueInfo(name="store", waiting=gateway.store.work[0], running=0),
    ]


def memory_bytes() -> int:
    """Resident memory of the gateway's process; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return 0


ROUTES = [
    ApiRoute(
        "GET", "/api/v1/views/events", Role.INFER, events,
        "What changes, as it does: rollout, step, checkpoint, job, log; resync: anything", media_type="text/event-stream",
    ),
    ApiRoute("GET", "/api/v1/views/server", Role.INFER, server_view, "How the server is, now", response=ServerView),
]  # fmt: skip
