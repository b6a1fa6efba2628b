"""`tool_choice` and `response_format` of OpenAI's chat completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from art.errors import InvalidInput, UnsupportedOption
from art.types.messages import ToolChoice


def tool_choice(body: Mapping[str, Any]) -> ToolChoice:
    """Whether and which tool may or must be called. Whether there is such a tool is asked when the call is planned."""
    choice = body.get("tool_choice")
    if choice is None:
        return ToolChoice()
    if isinstance(choice, str):
        return _mode(choice)
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind == "function":
        return ToolChoice("named", _function_name(choice, "tool_choice"))
    if kind == "allowed_tools":
        return _allowed(choice.get("allowed_tools"))
    raise _unknown("tool_choice", kind if isinstance(choice, dict) else choice)


def response_schema(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """The JSON schema of the answer's text; {} is any object, None free text."""
    form = body.get("response_format")
    if form is None:
        return None
    if not isinstance(form, dict):
        raise InvalidInput("`response_format` must be an object")
    kind = form.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return {}
    if kind != "json_schema":
        raise _unknown("response_format", kind)
    described = form.get("json_schema")
    if not isinstance(described, dict):
        raise InvalidInput("`response_format.json_schema` must be an object with a `schema`")
    schema = described.get("schema")
    if not isinstance(schema, dict):
        raise InvalidInput("`response_format.json_schema.schema` must be a JSON schema")
    return schema


def _mode(choice: str) -> ToolChoice:
    if choice == "auto":
        return ToolChoice("auto")
    if choice == "none":
        return ToolChoice("none")
    if choice == "required":
        return ToolChoice("required")
    raise _unknown("tool_choice", choice)


def _allowed(allowed: object) -> ToolChoice:
    """`{"mode": "auto" | "required", "tools": [...]}`: the model sees all tools and may call these."""
    tools = allowed.get("tools") if isinstance(allowed, dict) else None
    if not isinstance(allowed, dict) or not isinstance(tools, list):
        raise InvalidInput("`tool_choice.allowed_tools` must be an object with `mode` and `tools`")
    names = tuple(
        _function_name(tool, f"tool_choice.allowed_tools.tools[{number}]")
        for number, tool in enumerate(tools)
    )
    mode = allowed.get("mode")
    if mode == "auto":
        return ToolChoice("auto", allowed=names)
    if mode == "required":
        return ToolChoice("required", allowed=names)
    raise _unknown("tool_choice.allowed_tools.mode", mode)


def _function_name(choice: object, where: str) -> str:
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or not name:
        raise InvalidInput(f"`{where}.function.name` must be the name of a tool")
    return name


def _unknown(option: str, value: object) -> UnsupportedOption:
    known = {
        "tool_choice": '"auto", "none", "required", {"type": "function", ...} or {"type": "allowed_tools", ...}',
        "response_format": "text, json_object or json_schema",
        "tool_choice.allowed_tools.mode": "auto or required",
    }
    return UnsupportedOption(
        f"`{option}` {str(value)[:80]!r} is not supported", hint=f"what is: {known[option]}"
    )
