"""Health and the API's own description."""

from __future__ import annotations

import os
from collections.abc import Sequence

from starlette.responses import JSONResponse

from art.server import openapi
from art.server.endpoint import ApiCall, ApiRoute
from art.store.records import Role
from art.types.wire import Health
from art.version import package_version


async def health(call: ApiCall) -> Health:
    """`degraded` when a worker that was started is not there. What workers do is told to who may see all projects."""
    gateway = call.gateway
    workers = [*gateway.engines.health(), gateway.trainer.health()]
    # A worker that has sent a heartbeat was started; one that was never needed is not missed.
    missing = any(not worker.alive and worker.last_heartbeat_age is not None for worker in workers)
    if call.principal.project is not None:
        # Their figures are sums over projects, and name versions of all of them.
        workers = [worker.model_copy(update={"stats": {}}) for worker in workers]
    return Health(
        status="degraded" if missing else "ok",
        version=package_version(),
        pid=os.getpid(),
        started_at=gateway.started_at,
        path=str(gateway.root),
        workers=workers,
        deterministic=gateway.settings.deterministic,
    )


def routes(others: Sequence[ApiRoute]) -> list[ApiRoute]:
    """These routes; the description covers them and `others`."""
    table: list[ApiRoute] = []

    async def description(_call: ApiCall) -> JSONResponse:
        return JSONResponse(openapi.describe(table, version=package_version()))

    table += [
        ApiRoute("GET", "/api/v1/health", Role.INFER, health, "State of the server", response=Health),
        ApiRoute("GET", "/api/v1/openapi.json", Role.INFER, description, "This description"),
        *others,
    ]
    return table
