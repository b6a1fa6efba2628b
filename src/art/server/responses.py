"""Errors as HTTP answers: what happened, why, what to do, and a stable code."""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse

from art.errors import ArtError, Overloaded

RETRY_AFTER_SECONDS = 1
"""Of a 429: a queue place is free again when one of the running calls ends."""


def is_openai_path(path: str) -> bool:
    """True for inference routes (`/v1/...`, `/r/<rollout>/v1/...`), which answer in OpenAI's shape."""
    return path.startswith(("/v1/", "/r/"))


def error_body(error: ArtError, *, openai: bool) -> dict[str, Any]:
    """The JSON body. OpenAI's SDK shows `message` alone, so there it carries cause and hint as well."""
    if not openai:
        return {"error": error.to_dict()}
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    return {"error": {**error.to_dict(), "message": str(error), "type": kind, "param": None}}


def error_response(error: ArtError, *, openai: bool) -> JSONResponse:
    headers: dict[str, str] = {}
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, Overloaded):
        headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
    return JSONResponse(error_body(error, openai=openai), status_code=error.status, headers=headers)
