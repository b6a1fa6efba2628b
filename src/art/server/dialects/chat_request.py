"""An OpenAI chat-completions request, read option by option. Nothing is ignored in silence.

An option is used, or it changes nothing about the sampled text and is accepted, or it is refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from art.errors import InvalidInput, UnsupportedOption
from art.server.calls import CallRequest
from art.server.dialects.options import flag, integer, number, refuse_unknown, refuse_unless_neutral
from art.server.dialects.serving import Ask
from art.server.sampling import UNSUPPORTED
from art.types.messages import ToolChoice, parse_messages, parse_tools

MAX_CHOICES = 128
"""As OpenAI's API allows."""
MAX_STOPS = 16
MAX_TOP_LOGPROBS = 20

#: Options that do not touch what is sampled.
HARMLESS = frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "priority",
        "request_id",
        "return_token_ids",
        "return_tokens_as_token_ids",
        "include_stop_str_in_output",
    }
)
#: Options with the values that mean what is done anyway; any other value is refused.
NEUTRAL: dict[str, tuple[object, ...]] = {
    "add_generation_prompt": (None, True),
    "audio": (None,),
    "best_of": (None, 1),
    "continue_final_message": (None, False),
    "echo": (None, False),
    "function_call": (None,),
    "functions": (None,),
    "ignore_eos": (None, False),
    "min_tokens": (None, 0),
    "modalities": (None, ["text"]),
    "prompt_logprobs": (None, 0),
    "skip_special_tokens": (None, True),
    "stop_token_ids": (None, []),
    "use_beam_search": (None, False),
    "verbosity": (None,),
    "web_search_options": (None,),
}
_READ = [
    "model",
    "messages",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "n",
    "temperature",
    "top_p",
    "top_k",
    "max_tokens",
    "max_completion_tokens",
    "seed",
    "stop",
    "logprobs",
    "top_logprobs",
    "stream",
    "stream_options",
    "response_format",
    "chat_template_kwargs",
    "reasoning_effort",
]
KNOWN = frozenset({*_READ, *HARMLESS, *NEUTRAL, *UNSUPPORTED})


@dataclass(frozen=True, slots=True)
class ChatRequest(Ask):
    """A parsed chat request."""

    include_usage: bool


def parse_chat_request(body: object, *, size: int = 0) -> ChatRequest:
    """InvalidInput or UnsupportedOption naming the option that cannot be followed. `size`: bytes of the body."""
    if not isinstance(body, dict):
        raise InvalidInput("the request's body must be a JSON object")
    refuse_unknown(body, KNOWN)
    _refuse_unsupported(body)
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise InvalidInput("`model` must be the name of a model", hint="GET /v1/models lists them")
    stream = flag(body, "stream")
    return ChatRequest(
        call=CallRequest(
            model=model,
            messages=parse_messages(body.get("messages")),
            tools=parse_tools(body.get("tools")),
            options=_template_options(body),
            asked=_sampling(body),
            n=integer(body, "n", 1, MAX_CHOICES) or 1,
            tool_choice=ToolChoice("none" if body.get("tool_choice") == "none" else "auto"),
            parallel_tool_calls=body.get("parallel_tool_calls") is not False,
            size=size,
        ),
        stream=stream,
        include_usage=stream and _include_usage(body),
    )


def _refuse_unsupported(body: dict[str, Any]) -> None:
    refuse_unless_neutral(body, NEUTRAL)
    form = body.get("response_format")
    kind = form.get("type") if isinstance(form, dict) else form
    if kind not in (None, "text"):
        raise UnsupportedOption(
            f"`response_format` of type {kind!r} is not supported",
            cause="the engine has no grammar-constrained sampling",
            hint="ask for the format in the prompt and check it in the reward",
        )
    choice = body.get("tool_choice")
    if choice not in (None, "auto", "none"):
        raise UnsupportedOption(
            f"`tool_choice` {choice!r} is not supported",
            cause="a forced call needs grammar-constrained sampling",
            hint='use "auto" or "none"',
        )


def _sampling(body: dict[str, Any]) -> dict[str, Any]:
    """The sampling options that are given, checked. None counts as not given, as in OpenAI's API."""
    asked: dict[str, Any] = {}
    for name, low, high in (("temperature", 0.0, 100.0), ("top_p", 0.0, 1.0)):
        value = number(body, name, low, high)
        if value is not None:
            asked[name] = value
    if asked.get("top_p") == 0.0:
        raise InvalidInput("`top_p` must be over 0", hint="temperature=0 is greedy")
    limit = integer(body, "max_completion_tokens", 1, None)
    limit = limit if limit is not None else integer(body, "max_tokens", 1, None)
    top_k = integer(body, "top_k", -1, None)
    for name, found in (
        ("max_tokens", limit),
        ("seed", integer(body, "seed", None, None)),
        ("top_k", max(top_k, 0) if top_k is not None else None),  # vLLM's clients write -1 for off
        ("top_logprobs", integer(body, "top_logprobs", 0, MAX_TOP_LOGPROBS)),
        ("stop", _stops(body) or None),
    ):
        if found is not None:
            asked[name] = found
    flag(body, "logprobs")  # they are always there; the type is checked all the same
    for name in UNSUPPORTED:
        if body.get(name) is not None:
            asked[name] = body[name]
    return asked


def _stops(body: dict[str, Any]) -> tuple[str, ...]:
    value = body.get("stop")
    stops = [value] if isinstance(value, str) else value or []
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
        raise InvalidInput("`stop` must be a text or a list of texts that are not empty")
    if len(stops) > MAX_STOPS:
        raise InvalidInput(f"`stop` holds {len(stops)} texts, at most {MAX_STOPS} are possible")
    return tuple(stops)


def _template_options(body: dict[str, Any]) -> dict[str, Any]:
    options = body.get("chat_template_kwargs")
    if options is not None and not isinstance(options, dict):
        raise InvalidInput("`chat_template_kwargs` must be an object")
    found = dict(options or {})
    for name in ("messages", "tools", "add_generation_prompt"):
        if name in found:
            raise InvalidInput(f"`chat_template_kwargs` cannot set {name!r}")
    if body.get("reasoning_effort") is not None:
        found["reasoning_effort"] = body["reasoning_effort"]
    return found


def _include_usage(body: dict[str, Any]) -> bool:
    options = body.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict):
        raise InvalidInput("`stream_options` must be an object")
    unknown = set(options) - {"include_usage", "include_obfuscation", "continuous_usage_stats"}
    if unknown or options.get("continuous_usage_stats"):
        name = next(iter(unknown), "continuous_usage_stats")
        raise UnsupportedOption(f"`stream_options.{name}` is not supported", hint="leave it out")
    return bool(options.get("include_usage"))
