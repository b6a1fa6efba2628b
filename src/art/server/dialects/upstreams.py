"""Inference routes that no dialect serves: passed on where an upstream is configured for them, else 404 with the setting."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Scope

from art.errors import ArtError
from art.server.auth import Principal
from art.server.body import bounded_body, read_json
from art.server.dialects.serving import call_headers
from art.server.responses import error_response, shape_of
from art.server.state import Gateway
from art.server.upstreams import not_served
from art.server.upstreams_serving import pass_on
from art.store.records import Role


class _PostOnly(Route):
    """A route that takes no notice of other methods, so that theirs stay `not found` and not `method not allowed`."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, found = super().matches(scope)
        return (Match.NONE, {}) if match is Match.PARTIAL else (match, found)


def routes() -> list[Route]:
    """Behind the dialects' own: the first match serves."""
    path = "/v1/{route:path}"
    return [_PostOnly(prefix + path, others, methods=["POST"]) for prefix in ("", "/r/{rollout}")]


async def others(request: Request) -> Response:
    """Pass a request on to the upstream that its model names."""
    path = request.url.path
    gateway: Gateway = request.app.state.gateway
    principal: Principal = request.state.principal
    try:
        principal.require(Role.INFER)
        if request.headers.get("content-type", "application/json").split(";")[0] != "application/json":
            raise not_served(path)
        raw = await bounded_body(request, gateway.settings.max_body_bytes)
        body = await gateway.sessions.off_loop.run(len(raw), read_json, raw or b"{}")
        upstream = gateway.upstreams.find(body)
        if upstream is None:
            raise not_served(path, model=body.get("model") if isinstance(body, dict) else None)
        return await pass_on(request, call_headers(request), upstream, body)
    except ArtError as error:
        return error_response(error, shape_of(path))
