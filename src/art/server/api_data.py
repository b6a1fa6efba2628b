"""Deleting what was recorded."""

from __future__ import annotations

import time

from art.server.endpoint import ApiCall, ApiRoute
from art.store.purge import PurgeFilter
from art.store.records import Role
from art.types.wire_purge import Purged, PurgeData


async def purge(call: ApiCall) -> Purged:
    """What runs, or waits in a training job, is kept and counted."""
    request = call.body(PurgeData)
    if call.principal.project is not None:
        call.principal.require_project(request.project or "every project")
    age = request.older_than_seconds
    wanted = PurgeFilter(
        project=request.project,
        rollout_ids=request.rollout_ids,
        before=None if age is None else time.time() - age,
    )
    purged = await call.gateway.store.purge(wanted, dry_run=request.dry_run)
    call.gateway.keys.forget()  # those of the rollouts are gone
    return purged


ROUTES = [
    ApiRoute(
        "POST", "/api/v1/data/purge", Role.ADMIN, purge, "Delete recorded rollouts, calls and texts for good",
        request=PurgeData, response=Purged, changes=True,
    ),
]  # fmt: skip
