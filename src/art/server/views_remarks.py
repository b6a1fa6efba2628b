"""What people add: flags and notes on rollouts, saved views of a project, the configuration of a run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from art.errors import InvalidInput, NotFound
from art.server.endpoint import ApiCall, ApiRoute
from art.server.ownership import visible_rollout
from art.store.records import Role
from art.store.sql import dumps
from art.types.wire_views import Note, RunConfig, SavedView, SavedViews

DEEPEST_CONFIG = 50
LONGEST_CONFIG = 1_000_000
"""Characters; it is part of the answer each time that somebody looks at the run."""


async def put_note(call: ApiCall) -> Note:
    """What is sent replaces what was there; neither flag nor note takes it away. Who and when are the server's to say."""
    store = call.gateway.store
    row = await visible_rollout(store, call.param("rollout_id"), call.principal)
    return await store.remarks.put_note(row.rollout_id, row.project, call.body(Note), call.principal.key_id)


async def list_saved(call: ApiCall) -> SavedViews:
    """Of the project in the query; a key of one project may leave it out."""
    project = call.request.query_params.get("project") or call.principal.project
    if not project:
        raise InvalidInput("of which project?", hint="?project=NAME")
    call.principal.require_project(project)
    return SavedViews(views=await call.gateway.store.remarks.saved(project))


async def put_saved(call: ApiCall) -> SavedViews:
    """A view of the same name is replaced; the project's views with it."""
    project, remarks, view = call.param("project"), call.gateway.store.remarks, call.body(SavedView)
    if not view.location.startswith("/"):  # `key=...` would be a link that takes the reader's key away
        raise InvalidInput(
            f"{view.location[:100]!r} is no view",
            hint="the part of its address behind #, which begins with /",
        )
    await remarks.put_saved(project, view, call.principal.key_id)
    return SavedViews(views=await remarks.saved(project))


async def delete_saved(call: ApiCall) -> SavedViews:
    """Those that are left."""
    project, name = call.param("project"), call.request.query_params.get("name", "")
    remarks = call.gateway.store.remarks
    if not await remarks.delete_saved(project, name):
        raise NotFound(
            f"the project {project} has no saved view {name[:100]!r}",
            hint=f"GET /api/v1/views/saved?project={project} lists them",
        )
    return SavedViews(views=await remarks.saved(project))


async def put_run_config(call: ApiCall) -> RunConfig:
    """Of the model's newest run; shown with it."""
    project, name = call.param("project"), call.param("name")
    call.gateway.versions.entry(project, name)
    config = call.body(RunConfig)
    _check_config(config)
    await call.gateway.store.remarks.put_run_config(project, name, config)
    return await call.gateway.store.remarks.run_config(project, name) or config


def _check_config(config: RunConfig) -> None:
    """InvalidInput for what could be kept and not be shown again, and for what is too much to show each time."""
    level, depth = [config.config], 0
    while level := [part for item in level for part in _parts(item)]:
        depth += 1
        if depth > DEEPEST_CONFIG:
            raise InvalidInput(f"the configuration is nested more than {DEEPEST_CONFIG} deep")
    try:
        length = len(dumps([config.config, config.origin]))
    except ValueError as error:
        raise InvalidInput(
            "the configuration holds a number that JSON does not have", cause=str(error)
        ) from error
    if length > LONGEST_CONFIG:
        raise InvalidInput(
            f"the configuration has {length} characters", hint=f"at most {LONGEST_CONFIG} are kept"
        )


def _parts(value: Any) -> Iterable[Any]:
    """What a piece of JSON holds."""
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


ROUTES = [
    ApiRoute(
        "PUT", "/api/v1/rollouts/{rollout_id}/note", Role.ROLLOUT, put_note, "Flag a rollout, or leave a note at it",
        request=Note, response=Note, changes=True,
    ),
    ApiRoute(
        "GET", "/api/v1/views/saved", Role.INFER, list_saved, "Saved views of a project: ?project=",
        response=SavedViews,
    ),
    ApiRoute(
        "PUT", "/api/v1/views/saved/{project}", Role.ROLLOUT, put_saved, "Save a view under a name",
        request=SavedView, response=SavedViews, changes=True,
    ),
    ApiRoute(
        "DELETE", "/api/v1/views/saved/{project}", Role.ROLLOUT, delete_saved, "Delete a saved view: ?name=",
        response=SavedViews, changes=True,
    ),
    ApiRoute(
        "PUT", "/api/v1/models/{project}/{name}/run-config", Role.TRAIN, put_run_config,
        "Keep the resolved configuration of a model's newest run", request=RunConfig, response=RunConfig, changes=True,
    ),
]  # fmt: skip
