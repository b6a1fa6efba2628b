"""The web application: guard, control API, dialects, and errors for people."""

from __future__ import annotations

import logging

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from art.errors import ArtError, InfraError, InvalidInput, MethodNotAllowed, NotFound
from art.server import (
    api_audit,
    api_data,
    api_health,
    api_jobs,
    api_keys,
    api_models,
    api_rollouts,
    export,
    views_detail,
    views_key,
    views_lists,
    views_live,
    views_remarks,
)
from art.server.dialects.anthropic import routes as anthropic_routes
from art.server.dialects.chat import routes as chat_routes
from art.server.dialects.completions import routes as completion_routes
from art.server.dialects.models import routes as model_routes
from art.server.dialects.responses import routes as responses_routes
from art.server.dialects.upstreams import routes as upstream_routes
from art.server.endpoint import ApiRoute, starlette_route
from art.server.guard import Guard
from art.server.intake import Intake
from art.server.page import page_routes
from art.server.responses import error_response, shape_of
from art.server.state import Gateway
from art.server.upstreams import not_served, route_of
from art.store.database import store_error

logger = logging.getLogger(__name__)


def api_routes() -> list[ApiRoute]:
    """The whole control API."""
    return api_health.routes(
        [
            *api_models.ROUTES,
            *api_rollouts.ROUTES,
            *api_jobs.ROUTES,
            *api_keys.ROUTES,
            *api_audit.ROUTES,
            *api_data.ROUTES,
            *views_lists.ROUTES,
            *export.ROUTES,
            *views_detail.ROUTES,
            *views_remarks.ROUTES,
            *views_live.ROUTES,
            *views_key.ROUTES,
        ]
    )


def build_app(gateway: Gateway) -> Starlette:
    """The application over one gateway. Starting and stopping the gateway is not its business."""
    table: list[BaseRoute] = [*page_routes(), *(starlette_route(route) for route in api_routes())]
    table += [*chat_routes(), *responses_routes(), *anthropic_routes(), *completion_routes(), *model_routes()]
    table += upstream_routes()  # the last: what no dialect serves
    app = Starlette(
        routes=table,
        middleware=[Middleware(Guard, gateway=gateway), Middleware(Intake, gateway=gateway)],
        exception_handlers={
            ArtError: _art_error,
            HTTPException: _http_error,
            ClientDisconnect: _client_gone,
            Exception: _bug,
        },
    )
    app.router.redirect_slashes = False
    app.state.gateway = gateway
    return app


async def _art_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ArtError)
    if error.status >= 500:
        logger.error("%s %s: %s", request.method, request.url.path, error)
    return error_response(error, shape_of(request.url.path))


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    where = f"{request.method} {request.url.path}"
    found: ArtError
    if error.status_code == 404 and route_of(request.url.path):
        found = not_served(request.url.path)
    elif error.status_code == 404:
        found = NotFound(
            f"{where} is not served here", hint="the control API is described at /api/v1/openapi.json"
        )
    elif error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        found = MethodNotAllowed(f"{where} is not possible", hint=f"allowed: {allowed}")
    else:
        found = InvalidInput(f"{where} was refused", cause=error.detail)
    return error_response(found, shape_of(request.url.path))


async def _client_gone(_request: Request, _error: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it


async def _bug(request: Request, error: Exception) -> Response:
    """A boundary: what nobody foresaw is logged by the server and told without its insides."""
    logger.exception("%s %s failed", request.method, request.url.path, exc_info=error)
    failed = InfraError(
        "the server failed at this request",
        cause=type(error).__name__,
        hint="the traceback is in server/logs/gateway.log; please report it",
    )
    if isinstance(error, OSError):  # the disk, and no bug
        failed = store_error(error)
    return error_response(failed, shape_of(request.url.path))
