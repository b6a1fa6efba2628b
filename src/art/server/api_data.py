"""Deleting what was recorded, now and in future, and where data can go."""

from __future__ import annotations

import time

from art.server.data_flow import flows_of
from art.server.endpoint import ApiCall, ApiRoute
from art.store.purge import PurgeFilter
from art.store.records import Role
from art.types.data_flow import DataFlow
from art.types.wire_purge import Purged, PurgeData
from art.types.wire_retention import RetentionList, RetentionSet, SetRetention


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


async def set_retention(call: ApiCall) -> RetentionSet:
    """What is older goes at once, and from then on by itself; what runs, or waits in a job, is kept until it has ended."""
    request = call.body(SetRetention)
    return await call.gateway.keeper.set(request.project, request.keep_seconds, dry_run=request.dry_run)


async def list_retentions(call: ApiCall) -> RetentionList:
    """Those of the projects that the key may see."""
    mine = call.principal.project
    found = await call.gateway.store.keeping.retentions()
    return RetentionList(retentions=[row for row in found if mine in (None, row.project)])


async def data_flow(call: ApiCall) -> DataFlow:
    """Every place that data can go from here, as things stand now."""
    if call.principal.project is not None:
        call.principal.require_project("every project")
    gateway = call.gateway
    return flows_of(
        gateway.settings,
        gateway.root,
        url=gateway.url,
        keys=await gateway.store.list_keys(),
        retentions=await gateway.store.keeping.retentions(),
    )


ROUTES = [
    ApiRoute(
        "POST", "/api/v1/data/purge", Role.ADMIN, purge, "Delete recorded rollouts, calls and texts for good",
        request=PurgeData, response=Purged, changes=True,
    ),
    ApiRoute(
        "POST", "/api/v1/data/retention", Role.ADMIN, set_retention, "Keep a project's data so long and no longer",
        request=SetRetention, response=RetentionSet, changes=True,
    ),
    ApiRoute(
        "GET", "/api/v1/data/retention", Role.ADMIN, list_retentions, "How long projects' data is kept",
        response=RetentionList,
    ),
    ApiRoute(
        "GET", "/api/v1/data/flow", Role.ADMIN, data_flow, "Every place that data can go, now", response=DataFlow,
    ),
]  # fmt: skip
