"""GET /v1/models, also under /r/{rollout}/v1."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from art.errors import ArtError
from art.server.auth import Principal
from art.server.responses import error_response
from art.server.state import Gateway
from art.server.versions import ModelEntry
from art.store.records import Role


def routes() -> list[Route]:
    """The list, and one model by its name."""
    return [
        Route(prefix + path, endpoint, methods=["GET"])
        for prefix in ("", "/r/{rollout}")
        for path, endpoint in (("/v1/models", list_models), ("/v1/models/{model:path}", get_model))
    ]


async def list_models(request: Request) -> Response:
    """Every model the key may see."""
    try:
        gateway, project = _seen(request)
    except ArtError as error:
        return error_response(error, "openai")
    data = [_model(entry, entry.step) for entry in gateway.versions.entries(project)]
    data += [_upstream(name, gateway) for name in gateway.upstreams.names]
    ends = {"first_id": data[0]["id"] if data else None, "last_id": data[-1]["id"] if data else None}
    return JSONResponse({"object": "list", "data": data, "has_more": False, **ends})


async def get_model(request: Request) -> Response:
    """One model; `@step` names a step of it."""
    try:
        gateway, project = _seen(request)
        if request.path_params["model"] in gateway.upstreams.names:
            return JSONResponse(_upstream(request.path_params["model"], gateway))
        entry, step = gateway.versions.resolve(request.path_params["model"], project)
    except ArtError as error:
        return error_response(error, "openai")
    return JSONResponse(_model(entry, step))


def _seen(request: Request) -> tuple[Gateway, str | None]:
    principal: Principal = request.state.principal
    principal.require(Role.INFER)
    if "rollout" in request.path_params:
        principal.require_rollout(request.path_params["rollout"])
    return request.app.state.gateway, principal.project


def _upstream(name: str, gateway: Gateway) -> dict[str, Any]:
    return _both(name, gateway.started_at, "upstream")


def _model(entry: ModelEntry, step: int) -> dict[str, Any]:
    info = entry.checkpoints.get(step)
    created = info.created_at if info is not None and info.created_at else entry.row.created_at
    return {
        **_both(entry.wire_name, created, entry.row.project),
        "root": entry.row.base.name,
        "max_model_len": entry.context_length,
        "max_input_tokens": entry.context_length,
        "art": {"step": step, "latest": entry.step, "steps": sorted(entry.checkpoints)},
    }


def _both(name: str, created: float, owner: str) -> dict[str, Any]:
    """A model as OpenAI's and as Anthropic's SDK read it: the two forms have no name in common that means two things."""
    return {
        "id": name,
        "object": "model",
        "created": int(created),
        "owned_by": owner,
        "type": "model",
        "display_name": name,
        "created_at": datetime.fromtimestamp(int(created), UTC).isoformat(),
        "lifecycle": "active",
    }
