"""Errors as HTTP answers: what happened, why, what to do, and a stable code."""

from __future__ import annotations

import math
from typing import Any, Literal

from starlette.responses import JSONResponse

from art.errors import ArtError, Overloaded
from art.server.headers import API_HEADERS

Shape = Literal["control", "openai", "anthropic"]
"""How an error is written: as the control API's, or as the one a dialect's clients read."""


def shape_of(path: str) -> Shape:
    """The shape of errors on this path. Inference routes (`/v1/...`, `/r/<rollout>/v1/...`) answer as their dialect does."""
    if not path.startswith(("/v1/", "/r/")):
        return "control"
    _, _, route = path.rpartition("/v1/")
    return "anthropic" if route == "messages" or route.startswith("messages/") else "openai"


def error_body(error: ArtError, shape: Shape) -> dict[str, Any]:
    """The JSON body. The dialects' SDKs show `message` alone, so there it carries cause and hint as well."""
    if shape == "control":
        return {"error": error.to_dict()}
    if shape == "anthropic":
        kind = _ANTHROPIC_TYPES.get(
            error.status, "invalid_request_error" if error.status < 500 else "api_error"
        )
        # Anthropic's SDK reads its codes there, among them `thread_not_found`.
        more = {"type": kind, "message": str(error), "details": {"error_code": error.code}}
        return {"type": "error", "error": {**error.to_dict(), **more}}
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    return {"error": {**error.to_dict(), "message": str(error), "type": kind, "param": None}}


_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Anthropic's `error.type` by HTTP status, as its API reference lists them."""


def error_response(error: ArtError, shape: Shape) -> JSONResponse:
    headers = dict(API_HEADERS)
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, Overloaded):
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after)))
    return JSONResponse(error_body(error, shape), status_code=error.status, headers=headers)
