"""One table of routes that drives dispatch, authorisation, auditing and the OpenAPI description."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from art.errors import ArtError, Forbidden, InvalidInput, InvalidReward
from art.server.auth import Principal
from art.server.body import read_json, reading
from art.server.state import Gateway
from art.store.damage import UNREADABLE, damaged
from art.store.records import AuditRow, Role

B = TypeVar("B", bound=BaseModel)
logger = logging.getLogger(__name__)

LISTS = ("/api/v1/views/runs", "/api/v1/views/rollouts")
"""Begin the paths of what people look at and a store has much of."""


@dataclass(frozen=True, slots=True)
class ApiCall:
    """One request that has passed its route's rule."""

    gateway: Gateway
    principal: Principal
    request: Request
    payload: BaseModel | None

    def body(self, kind: type[B]) -> B:
        """The parsed body; `kind` is the route's request model."""
        assert isinstance(self.payload, kind)
        return self.payload

    def param(self, name: str) -> str:
        return cast(str, self.request.path_params[name])


Handler = Callable[[ApiCall], Awaitable[BaseModel | Response]]


@dataclass(frozen=True, slots=True)
class ApiRoute:
    """A row of the table. `role` is the one rule of who may call it."""

    method: str
    path: str
    role: Role
    handler: Handler
    summary: str
    request: type[BaseModel] | None = None
    response: type[BaseModel] | None = None
    """None: the route answers with something else than a model (a stream, the description itself)."""
    scoped: bool = False
    """True: a key scoped to a rollout may call it for that rollout (path parameter `rollout_id`)."""
    changes: bool = False
    """True: a successful call is a change and goes into the audit table."""
    media_type: str = "application/json"
    headers: tuple[str, ...] = ()
    """Request headers the route reads, for the description."""

    @property
    def looks(self) -> bool:
        """Whether it reads what may be long: projects take turns at it."""
        return self.method == "GET" and self.path.startswith(LISTS)


def starlette_route(route: ApiRoute) -> Route:
    """The route as the web framework takes it."""

    async def endpoint(request: Request) -> Response:
        gateway: Gateway = request.app.state.gateway
        principal: Principal = request.state.principal
        authorise(route, principal, request.path_params)
        payload = None if route.request is None else parse(route.request, await request.body())
        if payload is not None and isinstance(project := getattr(payload, "project", None), str):
            principal.require_project(project)
        call = ApiCall(gateway, principal, request, payload)
        answer = await (_looked(route, call) if route.looks else route.handler(call))
        if route.changes:
            await gateway.store.add_audit(_audit(route, principal, request, payload))
        if isinstance(answer, Response):
            return answer
        return JSONResponse(answer.model_dump(mode="json"))

    return Route(route.path, endpoint, methods=[route.method], name=f"{route.method} {route.path}")


async def _looked(route: ApiRoute, call: ApiCall) -> BaseModel | Response:
    """The answer of a route that reads lists, in its project's turn; Damaged where what was kept has another form."""
    principal, params = call.principal, call.request.path_params
    async with call.gateway.looks.turn(principal.project or str(params.get("project", "")), principal.key_id):
        try:
            return await route.handler(call)
        except ArtError:
            raise
        except UNREADABLE as error:
            # No row was seen to be broken, so it may be a fault of ours: an operator is to see where.
            logger.error("%s %s could not be answered", route.method, route.path, exc_info=error)
            raise damaged("/".join(map(str, params.values())) or "a run", error) from error


def authorise(route: ApiRoute, principal: Principal, path_params: dict[str, Any]) -> None:
    """The one rule: the route's role, the key's project, the key's rollout."""
    principal.require(route.role)
    if principal.rollout_id is not None:
        if not route.scoped:
            raise Forbidden(
                "this key is scoped to one rollout and may only call models in it",
                hint="use the key of the program that opened the rollout",
            )
        principal.require_rollout(str(path_params.get("rollout_id", "")))
    if "project" in path_params:
        principal.require_project(str(path_params["project"]))


def parse(kind: type[B], raw: bytes) -> B:
    """The body as `kind`; InvalidInput naming the fields that cannot be right."""
    data = read_json(raw or b"{}")
    try:
        with reading("the request's body"):
            return kind.model_validate(data)
    except ValidationError as error:
        raise invalid(error) from error


def invalid(error: ValidationError) -> InvalidInput:
    """A validation error as one of ours: each field with what is wrong about it."""
    found = error.errors(include_url=False, include_context=False)
    lines = [f"{'.'.join(str(part) for part in item['loc']) or 'body'}: {item['msg']}" for item in found[:8]]
    if len(found) > 8:
        lines.append(f"and {len(found) - 8} more")
    rewards = all(item["loc"] and item["loc"][-1] == "reward" for item in found)
    kind = InvalidReward if rewards else InvalidInput
    return kind("the request cannot be right", cause="; ".join(lines), hint="see /api/v1/openapi.json")


def _audit(route: ApiRoute, principal: Principal, request: Request, payload: BaseModel | None) -> AuditRow:
    target = "/".join(str(value) for value in request.path_params.values())
    if not target and payload is not None:
        parts = (getattr(payload, name, None) for name in ("project", "name", "model", "rollout_id"))
        target = "/".join(str(part) for part in parts if part)
    where = request.client.host if request.client is not None else ""
    return AuditRow(
        key_id=principal.key_id, action=f"{route.method} {route.path}", target=target, detail={"from": where}
    )
