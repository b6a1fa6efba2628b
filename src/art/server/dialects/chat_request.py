"""An OpenAI chat-completions request, read option by option. Nothing is ignored in silence.

An option is used, or it changes nothing about the sampled text and is accepted, or it is refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass

from art.errors import InvalidInput
from art.server.calls import CallRequest
from art.server.dialects.options import (
    effort_wish,
    flag,
    include_usage,
    integer,
    refuse_unknown,
    refuse_unless_neutral,
    sampling_options,
    template_options,
)
from art.server.dialects.serving import Ask
from art.server.dialects.structured_options import response_schema, tool_choice
from art.server.sampling import UNSUPPORTED
from art.types.messages import parse_messages, parse_tools

MAX_CHOICES = 128
"""As OpenAI's API allows."""

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
    refuse_unless_neutral(body, NEUTRAL)
    flag(body, "logprobs")  # they are always there; the type is checked all the same
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise InvalidInput("`model` must be the name of a model", hint="GET /v1/models lists them")
    stream = flag(body, "stream")
    return ChatRequest(
        call=CallRequest(
            model=model,
            messages=parse_messages(body.get("messages")),
            tools=parse_tools(body.get("tools")),
            options=template_options(body),
            wishes=effort_wish(body.get("reasoning_effort")),
            asked=sampling_options(body, "max_completion_tokens", "max_tokens"),
            n=integer(body, "n", 1, MAX_CHOICES) or 1,
            tool_choice=tool_choice(body),
            parallel_tool_calls=body.get("parallel_tool_calls") is not False,
            response_schema=response_schema(body),
            size=size,
        ),
        stream=stream,
        include_usage=stream and include_usage(body),
    )
