"""What people add: flags and notes on rollouts, saved views of a project, the configuration of a run."""

from __future__ import annotations

from art.errors import InvalidInput, NotFound
from art.server.endpoint import ApiCall, ApiRoute
from art.server.ownership import visible_rollout
from art.store.records import Role
from art.types.wire_views import Note, RunConfig, SavedView, SavedViews


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
    project, remarks = call.param("project"), call.gateway.store.remarks
    await remarks.put_saved(project, call.body(SavedView), call.principal.key_id)
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
    await call.gateway.store.remarks.put_run_config(project, name, config)
    return await call.gateway.store.remarks.run_config(project, name) or config


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
