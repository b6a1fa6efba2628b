"""An OpenAI Responses request, read option by option. Nothing is ignored in silence.

An option is used, or it changes nothing about the sampled text and is accepted, or it is refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from art.errors import InvalidInput, UnsupportedOption
from art.server.calls import CallRequest
from art.server.dialects.options import (
    effort_wish,
    flag,
    refuse_unknown,
    refuse_unless_neutral,
    sampling_options,
    template_options,
)
from art.server.dialects.responses_items import Item, parse_input
from art.server.dialects.serving import Ask
from art.server.sampling import UNSUPPORTED
from art.types.messages import Tool, ToolChoice, parse_tools

DIALECT = "openai.responses"
LOGPROBS, ENCRYPTED = "message.output_text.logprobs", "reasoning.encrypted_content"
INCLUDES = frozenset({LOGPROBS, ENCRYPTED})
MAX_METADATA = 16
"""Pairs, as OpenAI's API allows."""

#: Options that do not touch what is sampled.
HARMLESS = frozenset(
    {
        "max_tool_calls",  # bounds hosted tools, and there are none
        "metadata",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "user",
    }
)
#: Options with the values that mean what is done anyway; any other value is refused.
NEUTRAL: dict[str, tuple[object, ...]] = {
    "access_programs": (None,),
    "background": (None, False),
    "background_options": (None,),
    "context_management": (None, []),
    "conversation": (None,),
    "image": (None,),
    "moderation": (None,),
    "prompt": (None,),
    "truncation": (None, "disabled"),
}
#: The same for a tool.
TOOL_NEUTRAL: dict[str, tuple[object, ...]] = {
    "allowed_callers": (None, ["direct"]),
    "async": (None, False),
    "defer_loading": (None, False),
}
_READ = frozenset(
    {
        "chat_template_kwargs",
        "include",
        "input",
        "instructions",
        "max_output_tokens",
        "model",
        "parallel_tool_calls",
        "previous_response_id",
        "reasoning",
        "seed",
        "stop",
        "store",
        "stream",
        "stream_options",
        "temperature",
        "text",
        "tool_choice",
        "tools",
        "top_k",
        "top_logprobs",
        "top_p",
    }
)
KNOWN = frozenset({*_READ, *HARMLESS, *NEUTRAL, *UNSUPPORTED})
#: Options that an answer repeats, with what it says where they were not given.
ECHOED: dict[str, Any] = {
    "max_output_tokens": None,
    "metadata": {},
    "previous_response_id": None,
    "prompt_cache_key": None,
    "safety_identifier": None,
    "tool_choice": "auto",
    "top_logprobs": 0,
    "truncation": "disabled",
    "user": None,
}


@dataclass(frozen=True, slots=True)
class ResponsesRequest(Ask):
    """A parsed request. Its call has no messages until `responses_chain.resolved` has put them together."""

    items: list[Item]
    instructions: str | None
    previous: str | None
    """`previous_response_id`."""
    include: frozenset[str]


def parse_responses_request(body: object, *, size: int = 0) -> ResponsesRequest:
    """InvalidInput or UnsupportedOption naming the option that cannot be followed. `size`: bytes of the body."""
    if not isinstance(body, dict):
        raise InvalidInput("the request's body must be a JSON object")
    refuse_unknown(body, KNOWN)
    refuse_unless_neutral(body, NEUTRAL)
    _check_stream_options(body)
    model = _text(body, "model")
    if not model:
        raise InvalidInput("`model` must be the name of a model", hint="GET /v1/models lists them")
    instructions, previous = _text(body, "instructions"), _text(body, "previous_response_id")
    items = parse_input(body.get("input"))
    if not items and previous is None and not instructions:
        raise InvalidInput("`input` must be a text or a list with at least one item")
    flag(body, "store")
    flag(body, "parallel_tool_calls")
    return ResponsesRequest(
        call=CallRequest(
            model=model,
            messages=[],
            tools=_tools(body),
            options=template_options(body),
            wishes=effort_wish(_effort(body)),
            asked=sampling_options(body, "max_output_tokens"),
            tool_choice=_tool_choice(body),
            parallel_tool_calls=body.get("parallel_tool_calls") is not False,
            response_schema=_schema(body),
            dialect=DIALECT,
            kept={
                "store": body.get("store") is not False,
                "instructions": instructions is not None,
                "echo": _echo(body),
            },
            size=size,
        ),
        stream=flag(body, "stream"),
        items=items,
        instructions=instructions,
        previous=previous,
        include=frozenset(_include(body.get("include"))),
    )


def _text(body: dict[str, Any], name: str) -> str | None:
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidInput(f"`{name}` must be a text, not {str(value)[:80]!r}")
    return value


def _object(body: dict[str, Any], name: str, known: Sequence[str]) -> dict[str, Any]:
    """An option that is an object; {} where it is not given. UnsupportedOption for fields that nobody reads."""
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidInput(f"`{name}` must be an object")
    for field, content in value.items():
        if field not in known and content is not None:
            raise UnsupportedOption(f"`{name}.{field}` is not supported", hint="leave it out")
    return value


def _check_stream_options(body: dict[str, Any]) -> None:
    _object(body, "stream_options", ["include_obfuscation"])  # padding against eavesdroppers: none is sent


def _include(value: object) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise InvalidInput("`include` must be a list of texts")
    for name in value:
        if name not in INCLUDES:
            raise UnsupportedOption(
                f"`include` of {name!r} is not supported", hint=f"possible: {', '.join(sorted(INCLUDES))}"
            )
    return value


def _tools(body: dict[str, Any]) -> list[Tool]:
    """The flat function tools in the form of chat completions, so that both are the same to a model."""
    given = body.get("tools")
    if given is not None and not isinstance(given, list):
        raise InvalidInput("`tools` must be a list")
    nested = []
    for number, tool in enumerate(given or []):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if not isinstance(tool, dict) or not isinstance(kind, str):
            raise InvalidInput(f"`tools[{number}]` must be an object with a `type`")
        if kind != "function":
            raise UnsupportedOption(
                f"`tools[{number}]` is of type {kind!r}, which this server does not run",
                cause="OpenAI's hosted and built-in tools are programs of OpenAI's servers",
                hint="offer it as a tool of type 'function' and run it in your agent",
            )
        refuse_unless_neutral(tool, TOOL_NEUTRAL)
        left_out = {"type", *TOOL_NEUTRAL}
        function = {name: value for name, value in tool.items() if name not in left_out and value is not None}
        nested.append({"type": "function", "function": function})
    return parse_tools(nested)


def _tool_choice(body: dict[str, Any]) -> ToolChoice:
    """Whether and which tool may or must be called. Whether there is such a tool is asked when the call is planned."""
    choice = body.get("tool_choice")
    if choice is None:
        return ToolChoice()
    kind = choice.get("type") if isinstance(choice, dict) else None
    if isinstance(choice, dict) and kind == "function":
        return ToolChoice("named", _function_name(choice, "tool_choice"))
    if isinstance(choice, dict) and kind == "allowed_tools":
        tools = choice.get("tools")
        if not isinstance(tools, list):
            raise InvalidInput("`tool_choice.tools` must be a list")
        names = tuple(_function_name(tool, f"tool_choice.tools[{at}]") for at, tool in enumerate(tools))
        return replace(_mode(choice.get("mode"), "tool_choice.mode", ("auto", "required")), allowed=names)
    return _mode(choice, "tool_choice", ("auto", "none", "required"))


def _mode(value: object, where: str, known: Sequence[str]) -> ToolChoice:
    for mode in known:
        if value == mode:
            return ToolChoice(cast(Literal["auto", "none", "required"], mode))
    raise UnsupportedOption(
        f"`{where}` {str(value)[:80]!r} is not supported",
        hint=f"what is: {', '.join(known)}, or a tool by name or several as allowed_tools",
    )


def _function_name(tool: object, where: str) -> str:
    name = tool.get("name") if isinstance(tool, dict) and tool.get("type") == "function" else None
    if not isinstance(name, str) or not name:
        raise InvalidInput(f"`{where}` must be of type function, with the `name` of a tool")
    return name


def _schema(body: dict[str, Any]) -> dict[str, Any] | None:
    """The JSON schema of `text.format`; {} is any JSON object, None is free text."""
    text = _object(body, "text", ["format", "verbosity"])
    if text.get("verbosity") not in (None, "medium"):
        raise UnsupportedOption(
            f"`text.verbosity` {text['verbosity']!r} is not supported", hint="ask for it in the instructions"
        )
    form = _object(text, "format", ["type", "name", "schema", "description", "strict"])
    kind = form.get("type", "text")
    if kind == "text":
        return None
    if kind == "json_object":
        return {}
    if kind != "json_schema":
        raise UnsupportedOption(
            f"`text.format` of type {kind!r} is not supported", hint="text, json_object or json_schema"
        )
    schema = form.get("schema")
    if not isinstance(schema, dict):
        raise InvalidInput("`text.format.schema` must be a JSON schema")
    return schema


def _effort(body: dict[str, Any]) -> str | None:
    """`reasoning.effort`, for the chat template. A summary is written by nobody: the reasoning itself is answered."""
    reasoning = _object(body, "reasoning", ["effort", "summary", "generate_summary"])
    for name in ("summary", "generate_summary"):
        if reasoning.get(name) not in (None, "auto"):
            raise UnsupportedOption(
                f"`reasoning.{name}` {reasoning[name]!r} is not supported",
                cause="no summary is written; reasoning items carry the reasoning itself",
                hint="leave it out",
            )
    return _text(reasoning, "effort")


def _echo(body: dict[str, Any]) -> dict[str, Any]:
    """What an answer repeats of the request."""
    metadata = body.get("metadata")
    if metadata is not None and not (
        isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())
    ):
        raise InvalidInput("`metadata` must be an object of texts")
    if len(metadata or {}) > MAX_METADATA:
        raise InvalidInput(
            f"`metadata` holds {len(metadata or {})} pairs, at most {MAX_METADATA} are possible"
        )
    for name in ("user", "prompt_cache_key", "safety_identifier"):
        _text(body, name)
    echo = {name: other if body.get(name) is None else body[name] for name, other in ECHOED.items()}
    text, reasoning = body.get("text") or {}, body.get("reasoning") or {}
    echo["text"] = {"format": text.get("format") or {"type": "text"}, "verbosity": "medium"}
    echo["reasoning"] = {"effort": reasoning.get("effort"), "summary": None}
    echo["parallel_tool_calls"] = body.get("parallel_tool_calls") is not False
    return echo
