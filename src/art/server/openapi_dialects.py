"""The inference routes in the OpenAPI description: request schemas as far as they are ours to say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from art.store.records import Role
from art.types.policy import Purpose

_TEXT: dict[str, Any] = {"type": "string"}
_COUNT: dict[str, Any] = {"type": "integer", "minimum": 1}
_PARTS: dict[str, Any] = {"anyOf": [_TEXT, {"type": "array", "items": {"type": "object"}}]}
_SAMPLING: dict[str, Any] = {
    "temperature": {"type": "number", "minimum": 0},
    "top_p": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    "stream": {"type": "boolean"},
}
_MESSAGE: dict[str, Any] = {
    "type": "object",
    "required": ["role"],
    "properties": {
        "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
        "content": {"anyOf": [*_PARTS["anyOf"], {"type": "null"}]},
        "reasoning_content": _TEXT,
        "tool_calls": {"type": "array", "items": {"type": "object"}},
        "tool_call_id": _TEXT,
        "name": _TEXT,
    },
}
_CHAT: dict[str, Any] = {
    "required": ["model", "messages"],
    "properties": {
        "model": _TEXT,
        "messages": {"type": "array", "items": _MESSAGE, "minItems": 1},
        "tools": {"type": "array", "items": {"type": "object"}},
        "tool_choice": {"anyOf": [{"enum": ["auto", "none", "required"]}, {"type": "object"}]},
        "parallel_tool_calls": {"type": "boolean"},
        "response_format": {"type": "object"},
        "n": {"type": "integer", "minimum": 1, "maximum": 128},
        "max_tokens": _COUNT,
        "max_completion_tokens": _COUNT,
        "stop": {"anyOf": [_TEXT, {"type": "array", "items": _TEXT}]},
        "seed": {"type": "integer"},
        "top_k": {"type": "integer"},
        "logprobs": {"type": "boolean"},
        "top_logprobs": {"type": "integer", "minimum": 0, "maximum": 20},
        "stream_options": {"type": "object"},
        **_SAMPLING,
    },
}
_COMPLETIONS: dict[str, Any] = {
    "required": ["model", "prompt"],
    "properties": {
        "model": _TEXT,
        "prompt": {"anyOf": [_TEXT, {"type": "array", "items": {"anyOf": [_TEXT, {"type": "integer"}]}}]},
        "n": _CHAT["properties"]["n"],
        "max_tokens": _COUNT,
        "stop": _CHAT["properties"]["stop"],
        "seed": {"type": "integer"},
        **_SAMPLING,
    },
}
_RESPONSES: dict[str, Any] = {
    "required": ["model", "input"],
    "properties": {
        "model": _TEXT,
        "input": _PARTS,
        "instructions": {"anyOf": [_TEXT, {"type": "null"}]},
        "previous_response_id": {"anyOf": [_TEXT, {"type": "null"}]},
        "tools": _CHAT["properties"]["tools"],
        "tool_choice": _CHAT["properties"]["tool_choice"],
        "max_output_tokens": _COUNT,
        "text": {"type": "object"},
        "reasoning": {"type": "object"},
        "store": {"type": "boolean"},
        **_SAMPLING,
    },
}
_PROMPT: dict[str, Any] = {
    "model": _TEXT,
    "messages": {
        "type": "array",
        "minItems": 1,
        "items": {
            "type": "object",
            "required": ["role", "content"],
            "properties": {"role": {"enum": ["user", "assistant"]}, "content": _PARTS},
        },
    },
    "system": _PARTS,
    "tools": _CHAT["properties"]["tools"],
    "tool_choice": {"type": "object"},
    "thinking": {"type": "object"},
}
_MESSAGES: dict[str, Any] = {
    "required": ["model", "messages", "max_tokens"],
    "properties": {
        **_PROMPT,
        "max_tokens": _COUNT,
        "stop_sequences": {"type": "array", "items": _TEXT},
        "top_k": {"type": "integer"},
        **_SAMPLING,
    },
}
_COUNT_TOKENS: dict[str, Any] = {"required": ["model", "messages"], "properties": _PROMPT}
_EMBEDDINGS: dict[str, Any] = {
    "required": ["model", "input"],
    "properties": {"model": _TEXT, "input": {"anyOf": [_TEXT, {"type": "array"}]}},
}

_ROUTES: tuple[tuple[str, str, str, dict[str, Any] | None], ...] = (
    ("POST", "/v1/chat/completions", "OpenAI Chat Completions", _CHAT),
    ("POST", "/v1/completions", "OpenAI Completions", _COMPLETIONS),
    ("POST", "/v1/responses", "OpenAI Responses", _RESPONSES),
    ("POST", "/v1/messages", "Anthropic Messages", _MESSAGES),
    ("POST", "/v1/messages/count_tokens", "Tokens of an Anthropic prompt", _COUNT_TOKENS),
    ("POST", "/v1/embeddings", "Passed on to an upstream of that name", _EMBEDDINGS),
    ("GET", "/v1/models", "The models that a call may name", None),
)
_HEADERS: dict[str, dict[str, Any]] = {
    "X-ART-Rollout": _TEXT,
    "X-ART-Project": _TEXT,
    "X-ART-Scenario": _TEXT,
    "X-ART-Group": _TEXT,
    "X-ART-Member": {"type": "integer", "minimum": 0},
    "X-ART-Agent": _TEXT,
    "X-ART-Purpose": {"type": "string", "enum": [purpose.value for purpose in Purpose]},
}


def inference_paths(error: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The paths of the inference routes, plain and inside a rollout. `error` is the schema of an error."""
    paths: dict[str, dict[str, Any]] = {}
    for prefix in ("", "/r/{rollout}"):
        for method, path, summary, schema in _ROUTES:
            operation = _operation(prefix, method, path, summary, schema, error)
            paths.setdefault(prefix + path, {})[method.lower()] = operation
    return paths


def _operation(
    prefix: str, method: str, path: str, summary: str, schema: dict[str, Any] | None, error: dict[str, Any]
) -> dict[str, Any]:
    name = "_".join([method.lower(), *(["rollout"] if prefix else []), *path.strip("/").split("/")])
    content: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
    if schema is not None and "stream" in schema["properties"]:
        content["text/event-stream"] = {}
    operation: dict[str, Any] = {
        "operationId": name,
        "summary": summary,
        "security": [{"key": []}],
        "x-art-role": Role.INFER.value,
        "parameters": list(_parameters(prefix)),
        "responses": {
            "200": {"description": "Success", "content": content},
            "default": {
                "description": "An error in the dialect's own shape",
                "content": {"application/json": {"schema": error}},
            },
        },
    }
    if schema is not None:
        body = {"type": "object", **schema}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return operation


def _parameters(prefix: str) -> Iterator[dict[str, Any]]:
    if prefix:
        yield {"name": "rollout", "in": "path", "required": True, "schema": _TEXT}
        return  # the URL says which rollout
    for header, schema in _HEADERS.items():
        yield {"name": header, "in": "header", "schema": schema}
