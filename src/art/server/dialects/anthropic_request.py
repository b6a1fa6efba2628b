"""An Anthropic Messages request, read option by option. Nothing is ignored in silence.

An option is used, or it changes nothing about the sampled text and is accepted, or it is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from art.errors import InvalidInput, UnsupportedOption
from art.server.calls import CallRequest
from art.server.dialects.anthropic_messages import (
    check_tool_choice,
    parse_conversation,
    parse_tool_choice,
    parse_tools,
)
from art.server.dialects.options import (
    MAX_STOPS,
    flag,
    integer,
    refuse_unknown,
    refuse_unless_neutral,
    sampling_options,
)
from art.server.dialects.serving import Ask

DIALECT = "anthropic.messages"

#: Options that do not touch what is sampled.
HARMLESS = frozenset(
    {
        "betas",
        "billing_policy",
        "cache_control",
        "diagnostics",
        "fallback_credit_token",
        "inference_geo",
        "metadata",
        "service_tier",
        "user_profile_id",
        "workspace_id",
    }
)
#: Options with the values that mean what is done anyway; any other value is refused.
NEUTRAL: dict[str, tuple[object, ...]] = {
    "compaction": (None,),
    "container": (None,),
    "fallbacks": (None, []),
    "mcp_servers": (None, []),
    "speed": (None, "standard"),
}
_PROMPT = [
    "model",
    "messages",
    "system",
    "tools",
    "tool_choice",
    "thinking",
    "output_config",
    "output_format",
    "context_management",
]
_SAMPLING = ["thread", "max_tokens", "stop_sequences", "temperature", "top_p", "top_k", "seed", "stream"]
COUNTED = frozenset({*_PROMPT, *HARMLESS, *NEUTRAL})
KNOWN = frozenset({*COUNTED, *_SAMPLING})

_EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
"""Anthropic's levels -> those of templates that have `reasoning_effort`."""


@dataclass(frozen=True, slots=True)
class MessagesRequest(Ask):
    """A parsed Messages request."""

    show_thinking: bool
    """False: thinking blocks come without their text, with their signature alone."""
    previous: str | None = None
    """The message whose conversation goes on (`thread`); the request then has the new messages only."""


def parse_messages_request(body: object, *, size: int = 0) -> MessagesRequest:
    """InvalidInput or UnsupportedOption naming the option that cannot be followed. `size`: bytes of the body."""
    body = _object(body, KNOWN)
    previous = _previous(body)
    call = _call(body, _sampling(body), size)
    if previous is None:
        check_tool_choice(call.tool_choice, call.tools)
    return MessagesRequest(
        call=call, stream=flag(body, "stream"), show_thinking=_shown(body), previous=previous
    )


def parse_count_request(body: object, *, size: int = 0) -> CallRequest:
    """A request of `count_tokens`: the prompt's options, without those of sampling."""
    call = _call(_object(body, COUNTED), {}, size)
    check_tool_choice(call.tool_choice, call.tools)
    return call


def _object(body: object, known: frozenset[str]) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise InvalidInput("the request's body must be a JSON object")
    refuse_unknown(body, known)
    refuse_unless_neutral(body, NEUTRAL)
    return body


def _call(body: Mapping[str, Any], asked: dict[str, Any], size: int) -> CallRequest:
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise InvalidInput("`model` must be the name of a model", hint="GET /v1/models lists them")
    _check_edits(body.get("context_management"))
    tools = parse_tools(body.get("tools"))
    choice, several = parse_tool_choice(body.get("tool_choice"))
    effort, schema = _output(body)
    return CallRequest(
        model=model,
        messages=parse_conversation(body.get("system"), body.get("messages")),
        tools=tools,
        asked=asked,
        tool_choice=choice,
        parallel_tool_calls=several,
        response_schema=schema,
        wishes={**_thinking(body), **effort},
        dialect=DIALECT,
        size=size,
    )


def _previous(body: Mapping[str, Any]) -> str | None:
    """The message that a thread goes on from; None for a thread's first request and for one without a thread."""
    thread = _config(body, "thread")
    if not thread or thread.get("type") == "create":  # every answer is kept here
        return None
    previous = thread.get("previous_message_id")
    if thread.get("type") != "continue" or not isinstance(previous, str):
        raise InvalidInput(
            '`thread` must be {"type": "create"} or {"type": "continue", "previous_message_id": ...}'
        )
    for name in ("system", "tools"):
        if body.get(name):
            raise InvalidInput(f"`{name}` cannot be given anew to a `thread` that goes on")
    return previous


def _sampling(body: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling options that are given, checked."""
    asked = sampling_options(body, "max_tokens")
    if "max_tokens" not in asked:
        raise InvalidInput("`max_tokens` is missing", hint="the most tokens that the answer may have")
    stops = _stops(body.get("stop_sequences"))
    return {**asked, "stop": stops} if stops else asked


def _stops(value: object) -> tuple[str, ...]:
    stops = [] if value is None else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
        raise InvalidInput("`stop_sequences` must be a list of texts that are not empty")
    if len(stops) > MAX_STOPS:
        raise InvalidInput(f"`stop_sequences` holds {len(stops)} texts, at most {MAX_STOPS} are possible")
    return tuple(stops)


def _thinking(body: Mapping[str, Any]) -> dict[str, Any]:
    """The wish to think or not, under the names that chat templates have for it; `adaptive` leaves it to the model."""
    config = _config(body, "thinking")
    kind = config.get("type")
    if config and kind not in ("enabled", "disabled", "adaptive"):
        raise InvalidInput(f"`thinking.type` must be enabled, disabled or adaptive, not {str(kind)[:40]!r}")
    integer(config, "budget_tokens", 1, None)  # no model here counts its thoughts; max_tokens bounds them
    if kind not in ("enabled", "disabled"):
        return {}
    return {"enable_thinking": kind == "enabled", "thinking": kind == "enabled"}


def _shown(body: Mapping[str, Any]) -> bool:
    display = _config(body, "thinking").get("display")
    if display not in (None, "summarized", "omitted"):
        raise InvalidInput(f"`thinking.display` must be summarized or omitted, not {str(display)[:40]!r}")
    return display != "omitted"


def _output(body: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Effort as a wish, and the JSON schema of the answer."""
    config = _config(body, "output_config")
    refuse_unknown(config, {"effort", "format"})
    effort, form = config.get("effort"), config.get("format") or body.get("output_format")
    if effort is not None and effort not in tuple(_EFFORTS):
        raise InvalidInput(f"`output_config.effort` must be one of {', '.join(_EFFORTS)}")
    wish = {} if effort is None else {"reasoning_effort": _EFFORTS[effort]}
    if form is None:
        return wish, None
    if not isinstance(form, dict) or form.get("type") != "json_schema":
        raise UnsupportedOption("`output_config.format` must be of type json_schema")
    if not isinstance(form.get("schema"), dict):
        raise InvalidInput("`output_config.format.schema` must be an object")
    return wish, form["schema"]


def _config(body: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = body.get(name)
    if value is not None and not isinstance(value, dict):
        raise InvalidInput(f"`{name}` must be an object")
    return value or {}


def _check_edits(value: object) -> None:
    """Edits of the context on the server's side would train on what was not asked; only the one that edits nothing passes."""
    edits = value.get("edits") if isinstance(value, dict) else value
    for edit in edits if isinstance(edits, list) else [edits]:
        kind = edit.get("type") if isinstance(edit, dict) else edit
        keeps = (
            isinstance(edit, dict) and str(kind).startswith("clear_thinking_") and edit.get("keep") == "all"
        )
        if edit is not None and not keeps:
            raise UnsupportedOption(
                f"`context_management` of type {str(kind)[:60]!r} is not supported",
                hint="shorten the history in the agent; what it sends is what the model sees",
            )
