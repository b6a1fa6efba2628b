"""The internal chat form: what every dialect parses into and what templates are rendered from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from art.errors import InvalidInput

_M = TypeVar("_M", bound=BaseModel)

Role = Literal["system", "user", "assistant", "tool"]


class FunctionCall(BaseModel):
    """The name and the arguments (JSON text, as the model wrote it or the client sent it)."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: str
    arguments: str = "{}"

    @field_validator("arguments", mode="before")
    @classmethod
    def _as_text(cls, value: object) -> object:
        """Some clients send the arguments as an object instead of JSON text."""
        return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value

    @field_validator("name")
    @classmethod
    def _whole(cls, value: str) -> str:
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ValueError("the name holds a lone surrogate, which is half a character") from error
        return value

    @field_validator("arguments")
    @classmethod
    def _readable(cls, value: str) -> str:
        """Malformed arguments stay the text they are; ones that no reader gets through, and half characters, are refused."""
        try:
            json.dumps(json.loads(value), ensure_ascii=False).encode()
        except RecursionError as error:
            raise ValueError("the arguments are nested too deeply") from error
        except UnicodeEncodeError as error:
            raise ValueError("the arguments hold a lone surrogate, which is half a character") from error
        except ValueError:
            pass
        return value

    def parsed(self) -> Any:
        """The arguments as JSON, or the text itself where it is no JSON."""
        try:
            return json.loads(self.arguments)
        except ValueError:
            return self.arguments


class ToolCall(BaseModel):
    """One tool call of an assistant message."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    id: str = ""
    type: Literal["function"] = "function"
    function: FunctionCall


@dataclass(frozen=True, slots=True)
class Thought:
    """A piece of the model's reasoning."""

    text: str


Piece = str | Thought | ToolCall
"""What a completion consists of, in order: text, reasoning, whole tool calls."""


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether the model may or must call a tool."""

    mode: Literal["auto", "none", "required", "named"] = "auto"
    """`none`: calls stay text. `required`: at least one call. `named`: a call of `name`."""
    name: str | None = None
    allowed: tuple[str, ...] | None = None
    """The tools that may be called at all, by name; None is every one that is offered."""


class Message(BaseModel):
    """One message. Content parts of type text are joined; `developer` is `system`."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    role: Role
    content: str | None = None
    reasoning: str | None = None
    """What the model thought, where the client kept it (`reasoning_content` or `reasoning`)."""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    recorded: str | None = Field(default=None, exclude=True)
    """Which recorded choice it is, where the client says so: `art:<call id>:<choice>`, the signature of a thinking
    block. No field of a request: dialects set it with `model_copy`."""

    @model_validator(mode="before")
    @classmethod
    def _normalise(cls, data: object) -> object:
        if not isinstance(data, dict):
            return data
        data = dict(data)
        data.pop("recorded", None)  # no field of a request
        if data.get("role") == "developer":
            data["role"] = "system"
        if data.get("tool_calls") is None:
            data.pop("tool_calls", None)
        if data.get("function_call") is not None:
            raise ValueError("`function_call` is the API before tools; send `tool_calls`")
        if data.get("reasoning") is None and data.get("reasoning_content") is not None:
            data["reasoning"] = data["reasoning_content"]
        data["content"] = _joined(data.get("content"))
        return data

    @model_validator(mode="after")
    def _possible(self) -> Message:
        if self.tool_calls and self.role != "assistant":
            raise ValueError(f"a message of role {self.role} cannot hold tool calls")
        if self.content is None and self.role in ("system", "user"):
            raise ValueError(f"a message of role {self.role} needs content")
        return self

    @property
    def text(self) -> str:
        """The content, "" where there is none."""
        return self.content or ""

    def to_openai(self) -> dict[str, Any]:
        """As an OpenAI message, for the store and for answers."""
        data: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.reasoning is not None:
            data["reasoning_content"] = self.reasoning
        if self.tool_calls:
            data["tool_calls"] = [call.model_dump() for call in self.tool_calls]
        if self.tool_call_id is not None:
            data["tool_call_id"] = self.tool_call_id
        if self.name is not None:
            data["name"] = self.name
        return data


def _joined(content: object) -> object:
    """Content parts as one text; ValueError for what is not text."""
    if not isinstance(content, list):
        return content
    texts: list[str] = []
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        if kind == "text" and isinstance(part, dict) and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif kind == "refusal" and isinstance(part, dict) and isinstance(part.get("refusal"), str):
            texts.append(part["refusal"])
        else:
            raise ValueError(f"content[{number}] is of type {kind!r}; this model takes text only")
    return "".join(texts)


class FunctionSpec(BaseModel):
    """A function the model may call."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = Field(min_length=1)
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(BaseModel):
    """A tool as the client described it; templates get it as it came."""

    model_config = ConfigDict(extra="allow", frozen=True)

    type: Literal["function"] = "function"
    function: FunctionSpec

    def to_template(self) -> dict[str, Any]:
        """The description without the fields nobody set."""
        return self.model_dump(exclude_unset=True)


def parse_messages(data: object) -> list[Message]:
    """The messages of a request. InvalidInput names the message and the field that is wrong."""
    if not isinstance(data, list) or not data:
        raise InvalidInput("`messages` must be a list with at least one message")
    return [_parsed(Message, item, f"messages[{number}]") for number, item in enumerate(data)]


def parse_tools(data: object) -> list[Tool]:
    """The tools of a request, [] where there are none. InvalidInput names what is wrong."""
    if data is None:
        return []
    if not isinstance(data, list):
        raise InvalidInput("`tools` must be a list")
    return [_parsed(Tool, item, f"tools[{number}]") for number, item in enumerate(data)]


def _parsed(kind: type[_M], item: object, where: str) -> _M:
    try:
        return kind.model_validate(item)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in first["loc"])
        reason = first["msg"].removeprefix("Value error, ")
        raise InvalidInput(f"`{where}{field}` is not valid: {reason}") from error


def template_messages(
    messages: Sequence[Message], *, arguments_as_text: bool = False
) -> list[dict[str, Any]]:
    """The messages as chat templates expect them: text content, and tool arguments as JSON objects.

    A missing content becomes "", because templates add strings and fail on None. `arguments_as_text` is
    for templates that paste the arguments instead of dumping them.
    """
    out: list[dict[str, Any]] = []
    for message in messages:
        data: dict[str, Any] = {"role": message.role, "content": message.text}
        if message.reasoning is not None:
            data["reasoning_content"] = message.reasoning
        if message.tool_calls:
            data["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {
                        "name": call.function.name,
                        "arguments": call.function.arguments if arguments_as_text else call.function.parsed(),
                    },
                }
                for call in message.tool_calls
            ]
        if message.tool_call_id is not None:
            data["tool_call_id"] = message.tool_call_id
        if message.name is not None:
            data["name"] = message.name
        out.append(data)
    return out
