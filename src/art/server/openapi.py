"""The OpenAPI 3.1 description, generated from the route table."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from art.server.endpoint import ApiRoute
from art.server.openapi_dialects import inference_paths

_REFERENCE = "#/components/schemas/{model}"
_ERROR: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message", "cause", "hint"],
            "properties": {name: {"type": "string"} for name in ("code", "message", "cause", "hint")},
        }
    },
}


def describe(routes: Iterable[ApiRoute], *, version: str) -> dict[str, Any]:
    """The description of `routes` as JSON-like data."""
    table = list(routes)
    requests = {route.request for route in table if route.request}
    responses = {route.response for route in table if route.response}
    wanted: list[tuple[type[BaseModel], Any]] = [(kind, "validation") for kind in _ordered(requests)]
    wanted += [(kind, "serialization") for kind in _ordered(responses)]
    references, definitions = models_json_schema(wanted, ref_template=_REFERENCE)
    paths: dict[str, dict[str, Any]] = {}
    for route in table:
        operation: dict[str, Any] = {
            "operationId": _operation_id(route),
            "summary": route.summary,
            "security": [{"key": []}],
            "x-art-role": route.role.value,
            "responses": {
                "200": {"description": "Success", "content": _content(route, references)},
                "default": {
                    "description": "An error: what happened, why, what to do",
                    "content": {"application/json": {"schema": {"$ref": _REFERENCE.format(model="Error")}}},
                },
            },
        }
        parameters = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in re.findall(r"{(\w+)(?::\w+)?}", route.path)
        ]
        parameters += [{"name": name, "in": "header", "schema": {"type": "string"}} for name in route.headers]
        if parameters:
            operation["parameters"] = parameters
        if route.request is not None:
            schema = references[route.request, "validation"]
            operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
        path = re.sub(r"{(\w+):\w+}", r"{\1}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = operation
    paths |= inference_paths({"type": "object", "required": ["error"]})
    return {
        "openapi": "3.1.0",
        "info": {"title": "ART control API and inference routes", "version": version},
        "paths": paths,
        "components": {
            "schemas": {**definitions.get("$defs", {}), "Error": _ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _ordered(kinds: set[type[BaseModel]]) -> list[type[BaseModel]]:
    return sorted(kinds, key=lambda kind: kind.__name__)


def _operation_id(route: ApiRoute) -> str:
    words = re.sub(r":\w+|[{}]", "", route.path.removeprefix("/api/v1/")).split("/")
    return "_".join([route.method.lower(), *words]).replace(".", "_")


def _content(route: ApiRoute, references: dict[Any, Any]) -> dict[str, Any]:
    if route.response is None:
        return {route.media_type: {}}
    return {"application/json": {"schema": references[route.response, "serialization"]}}
