"""Models, checkpoints, history."""

from __future__ import annotations

from art.config.model import ModelConfig
from art.errors import Conflict, NotFound
from art.server import history
from art.server.endpoint import ApiCall, ApiRoute
from art.server.ownership import require_own_files
from art.server.registration import describe, describe_row
from art.server.versions import ModelEntry
from art.store.records import ModelRow, Role
from art.types import wire


async def register(call: ApiCall) -> wire.ModelInfo:
    request = call.body(wire.RegisterModel)
    gateway = call.gateway
    _require_own_files(call, request.config)
    entry = await gateway.registration.register(request.project, request.name, request.config)
    return _told(call, entry)


def _require_own_files(call: ApiCall, config: ModelConfig) -> None:
    for path in (config.base_model, config.initial_adapter):
        require_own_files(call.gateway.root, path, call.principal)


def _told(call: ApiCall, entry: ModelEntry) -> wire.ModelInfo:
    return describe(entry, seen=call.principal.project)


async def list_models(call: ApiCall) -> wire.ModelList:
    mine = call.principal.project
    if call.gateway.read_only:  # of a base model that is gone, too: nothing has to be served
        rows = await call.gateway.store.list_models()
        seen = [row for row in rows if mine in (None, row.project)]
        return wire.ModelList(models=[describe_row(row, seen=mine) for row in seen])
    entries = call.gateway.versions.entries(mine)
    return wire.ModelList(models=[_told(call, entry) for entry in entries])


async def get_model(call: ApiCall) -> wire.ModelInfo:
    if call.gateway.read_only:
        return describe_row(await _row(call), seen=call.principal.project)
    return _told(call, entry_of(call))


async def list_checkpoints(call: ApiCall) -> wire.CheckpointList:
    rows = await call.gateway.store.list_checkpoints(*await _key(call))
    leased = set() if call.gateway.read_only else entry_of(call).leased()
    return wire.CheckpointList(
        checkpoints=[
            wire.Checkpoint(
                step=row.info.step,
                path=row.info.path,
                created_at=row.info.created_at,
                metrics=row.metrics,
                parent_step=row.parent_step,
                leased=row.info.step in leased,
            )
            for row in rows
        ]
    )


async def delete_checkpoints(call: ApiCall) -> wire.DeletedCheckpoints:
    """All of them or none: what cannot be deleted is found before anything is."""
    wanted = dict.fromkeys(call.body(wire.DeleteCheckpoints).steps)
    entry = entry_of(call)
    rows = {row.info.step: row for row in await call.gateway.store.list_checkpoints(*entry.key)}
    used = [step for step in wanted if step in rows and (step == entry.step or step in entry.leased())]
    if used:
        raise Conflict(
            f"steps {used} of {entry.wire_name} are in use, nothing was deleted",
            cause=f"step {entry.step} is the latest; open rollouts and running calls keep their step",
            hint="leave them out, or finish the rollouts first",
        )
    deleted: list[int] = []
    for step in wanted:
        if step in rows:
            await call.gateway.jobs.retention.delete(entry, step, rows[step].info.path)
            deleted.append(step)
    return wire.DeletedCheckpoints(deleted=deleted, missing=[step for step in wanted if step not in rows])


async def fork(call: ApiCall) -> wire.ModelInfo:
    """The latest step that is not after the bound; NotFound with the steps there are."""
    request = call.body(wire.ForkModel)
    _require_own_files(call, request.config)
    source = entry_of(call)
    bound = source.step if request.not_after_step is None else request.not_after_step
    steps = [step for step in source.checkpoints if step <= bound]
    step = max(steps) if steps else source.checkpoint(bound).step
    entry = await call.gateway.registration.fork(
        request.project, request.name, request.config, source=source, step=step
    )
    return _told(call, entry)


async def roll_back(call: ApiCall) -> wire.ModelInfo:
    """Refused while a job of the model is open: it would publish on top of the step it began with."""
    entry = entry_of(call)
    await call.gateway.versions.roll_back(entry, call.body(wire.RollBack).step)
    return _told(call, entry)


async def log(call: ApiCall) -> wire.Logged:
    entry_of(call)
    row = await _row(call)
    return await history.record(call.gateway.store, row, call.body(wire.LogRequest))


async def get_history(call: ApiCall) -> wire.HistoryRows:
    return wire.HistoryRows(rows=await call.gateway.store.list_history(*await _key(call)))


def entry_of(call: ApiCall) -> ModelEntry:
    """The model of the path; NotFound with what exists."""
    return call.gateway.versions.entry(call.param("project"), call.param("name"))


async def _key(call: ApiCall) -> tuple[str, str]:
    """Project and name of the path's model; NotFound with what exists."""
    if call.gateway.read_only:
        row = await _row(call)
        return row.project, row.name
    return entry_of(call).key


async def _row(call: ApiCall) -> ModelRow:
    project, name = call.param("project"), call.param("name")
    row = await call.gateway.store.get_model(project, name)
    if row is None and call.gateway.read_only:
        raise NotFound(f"there is no model {project}/{name}", hint="GET /api/v1/models lists them")
    if row is None:
        raise NotFound(f"the model {project}/{name} is still being registered", hint="try again in a moment")
    return row


_MODEL = "/api/v1/models/{project}/{name}"

ROUTES = [
    ApiRoute(
        "POST", "/api/v1/models", Role.TRAIN, register, "Register a model; idempotent",
        request=wire.RegisterModel, response=wire.ModelInfo, changes=True,
    ),
    ApiRoute("GET", "/api/v1/models", Role.INFER, list_models, "All models", response=wire.ModelList),
    ApiRoute("GET", _MODEL, Role.INFER, get_model, "One model", response=wire.ModelInfo),
    ApiRoute(
        "GET", f"{_MODEL}/checkpoints", Role.INFER, list_checkpoints, "Published steps, oldest first",
        response=wire.CheckpointList,
    ),
    ApiRoute(
        "DELETE", f"{_MODEL}/checkpoints", Role.TRAIN, delete_checkpoints, "Delete steps that are not in use",
        request=wire.DeleteCheckpoints, response=wire.DeletedCheckpoints, changes=True,
    ),
    ApiRoute(
        "POST", f"{_MODEL}/fork", Role.TRAIN, fork, "Register a model that starts from one of this one's steps",
        request=wire.ForkModel, response=wire.ModelInfo, changes=True,
    ),
    ApiRoute(
        "POST", f"{_MODEL}/rollback", Role.TRAIN, roll_back, "Make an earlier step the latest; deletes nothing",
        request=wire.RollBack, response=wire.ModelInfo, changes=True,
    ),
    ApiRoute(
        "POST", f"{_MODEL}/log", Role.TRAIN, log, "Record trajectories and metrics of a step; idempotent",
        request=wire.LogRequest, response=wire.Logged, changes=True,
    ),
    ApiRoute(
        "GET", f"{_MODEL}/history", Role.INFER, get_history, "What was logged, in order",
        response=wire.HistoryRows,
    ),
]  # fmt: skip
