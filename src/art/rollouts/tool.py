"""A tool as a model sees it and as a program runs it: a plain function, with or without an OpenAI definition."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from art.errors import ConfigError, InvalidInput
from art.utils.threads import in_thread

ToolFunction: TypeAlias = Callable[..., Any]
Definition: TypeAlias = Mapping[str, Any]
"""`{"type": "function", "function": {"name", "description", "parameters"}}`, or the inner object alone."""

DEFINITION = "tool_definition"
"""Attribute of a function that was made for a definition; wrappers keep it."""
_EMPTY = inspect.Parameter.empty


@dataclass(frozen=True)
class Tool:
    """A function under a name, with what a model is told of it."""

    name: str
    function: ToolFunction
    definition: dict[str, Any]
    """OpenAI's, for `tools=` of a chat completion."""
    types: Mapping[str, TypeAdapter[Any]] = field(default_factory=dict)
    """Of the parameters, where the definition was read from the function."""

    @classmethod
    def of(cls, given: ToolFunction | tuple[Definition, ToolFunction]) -> Tool:
        """From a function, or from a definition and the function that does it.

        ConfigError where a function cannot be described to a model, or a definition is none.
        """
        definition, function = (
            given if isinstance(given, tuple) else (getattr(given, DEFINITION, None), given)
        )
        if not callable(function):
            raise ConfigError(
                f"a {type(function).__name__} is no tool",
                hint="give functions, or pairs of an OpenAI tool definition and its function",
            )
        if definition is None:
            return _described(function)
        whole = openai_definition(definition)
        return cls(whole["function"]["name"], function, whole)

    def arguments(self, given: object) -> dict[str, Any]:
        """What a model wrote as arguments, JSON text or an object, as the function takes it. InvalidInput says what is wrong."""
        data = given
        if isinstance(given, str):
            try:
                data = json.loads(given or "{}")
            except (ValueError, RecursionError) as error:
                raise InvalidInput(f"the arguments of {self.name} are no JSON", cause=str(error)) from error
        if not isinstance(data, Mapping):
            raise InvalidInput(f"the arguments of {self.name} must be a JSON object")
        read = {str(name): self._typed(str(name), value) for name, value in data.items()}
        try:
            arguments_of(self.function, (), read)
        except TypeError as error:
            raise InvalidInput(f"{self.name} cannot be called so", cause=str(error)) from error
        return read

    async def call(self, arguments: Mapping[str, Any]) -> Any:
        """What the function returns; one that does not await runs in a thread of its own."""
        if is_async(self.function):
            return await self.function(**arguments)
        result = await in_thread(lambda: self.function(**arguments), name="art-tool")
        return await result if inspect.isawaitable(result) else result

    def _typed(self, name: str, value: Any) -> Any:
        if name not in self.types:
            return value
        try:
            return self.types[name].validate_python(value)
        except ValidationError as error:
            reason = error.errors(include_url=False)[0]["msg"]
            raise InvalidInput(f"`{name}` of {self.name} is not valid", cause=reason) from error


def is_async(function: ToolFunction) -> bool:
    """Whether calling it gives a coroutine."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - an object whose __call__ is a coroutine function
    )


def name_of(function: ToolFunction) -> str:
    """The name under which a model calls it."""
    definition = getattr(function, DEFINITION, None)
    if definition is not None:
        return str(openai_definition(definition)["function"]["name"])
    return str(getattr(function, "__name__", type(function).__name__))


def arguments_of(
    function: ToolFunction, positional: tuple[Any, ...], named: Mapping[str, Any]
) -> dict[str, Any]:
    """A call's arguments by parameter name, defaults included, `**` ones under their own names. TypeError as the call would."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # a builtin that tells nothing about itself
        if positional:
            raise TypeError(f"{name_of(function)} must be called by the names of its parameters") from None
        return dict(named)
    bound = signature.bind(*positional, **named)
    bound.apply_defaults()
    found = dict(bound.arguments)
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            found.update(found.pop(parameter.name))
    return found


def declared_arguments(definition: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a tool of which there is a definition alone. TypeError, as a function raises it, for missing and unknown ones."""
    function = definition["function"]
    parameters = function.get("parameters") or {}
    known, required = parameters.get("properties"), parameters.get("required") or ()
    missing = [name for name in required if name not in given]
    unknown = [name for name in given if known is not None and name not in known]
    if missing or (unknown and not parameters.get("additionalProperties")):
        wrong = f"lacks {', '.join(missing)}" if missing else f"does not take {', '.join(unknown)}"
        raise TypeError(f"{function['name']} {wrong}")
    return dict(given)


def openai_definition(given: Definition) -> dict[str, Any]:
    """The definition in the form of chat completions, from that form or from the inner object. ConfigError for neither."""
    inner = given.get("function", given)
    if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str) or not inner["name"]:
        raise ConfigError(
            "a tool definition has no name",
            hint='write it like {"type": "function", "function": {"name": ..., "parameters": {...}}}',
        )
    return {"type": "function", "function": {key: value for key, value in inner.items() if key != "type"}}


def _described(function: ToolFunction) -> Tool:
    """The tool of a function: its name, its docstring, and its parameters' types as a JSON schema."""
    name = name_of(function)
    try:
        parameters = inspect.signature(function).parameters.values()
        hints = get_type_hints(_annotated(function), include_extras=True)
        types: dict[str, TypeAdapter[Any]] = {}
        for one in parameters:
            if one.kind in (one.POSITIONAL_ONLY, one.VAR_POSITIONAL):
                raise ConfigError(
                    f"{name} cannot be a tool as it is",
                    cause=f"its parameter {one.name} cannot be given by name",
                    hint="models name their arguments; wrap it in a function whose parameters have names",
                )
            if one.kind is not one.VAR_KEYWORD:
                types[one.name] = TypeAdapter(hints.get(one.name, Any))
        schema = _schema(types, {one.name: one.default for one in parameters if one.name in types})
    except (NameError, TypeError, ValueError, PydanticUserError) as error:
        raise ConfigError(
            f"{name} cannot be described to a model",
            cause=f"{type(error).__name__}: {error}"[:500],
            hint="annotate its parameters with plain types, or give a pair (definition, function)",
        ) from error
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        schema["additionalProperties"] = True
    described = {"name": name, "description": inspect.getdoc(function) or "", "parameters": schema}
    return Tool(name, function, {"type": "function", "function": described}, types)


def _schema(types: Mapping[str, TypeAdapter[Any]], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON schema of an object of these parameters."""
    schemas, shared = TypeAdapter.json_schemas(
        [(name, "validation", adapter) for name, adapter in types.items()]
    )
    properties = {name: dict(schemas[name, "validation"]) for name in types}
    for name, default in defaults.items():
        if isinstance(default, str | int | float | bool) or (default is None):
            properties[name]["default"] = default
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in types if defaults[name] is _EMPTY],
        "additionalProperties": False,
        **({"$defs": shared["$defs"]} if "$defs" in shared else {}),
    }


def _annotated(function: ToolFunction) -> Any:
    """Where the annotations stand: on the function, or on what an object is called by."""
    return function if inspect.isroutine(function) else type(function).__call__
