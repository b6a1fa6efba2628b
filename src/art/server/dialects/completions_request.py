"""An OpenAI text-completions request: a prompt of text or tokens that is continued as it stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from art.errors import InvalidInput, UnsupportedOption
from art.server.calls import CallRequest
from art.server.dialects.options import (
    MAX_TOP_LOGPROBS,
    flag,
    include_usage,
    integer,
    refuse_unknown,
    refuse_unless_neutral,
    sampling_options,
)
from art.server.dialects.serving import Ask
from art.server.sampling import UNSUPPORTED

DIALECT = "openai.completions"
DEFAULT_MAX_TOKENS = 16
"""As in OpenAI's API: a text has no end of turn by which it would surely stop."""
MAX_CHOICES = 128

#: Options that do not touch what is sampled.
HARMLESS = frozenset(
    {
        "user",
        "metadata",
        "service_tier",
        "priority",
        "request_id",
        "return_token_ids",
        "return_tokens_as_token_ids",
    }
)
#: Options with the values that mean what is done anyway; any other value is refused.
NEUTRAL: dict[str, tuple[object, ...]] = {
    "add_special_tokens": (None, False),
    "echo": (None, False),
    "ignore_eos": (None, False),
    "include_stop_str_in_output": (None, False),
    "min_tokens": (None, 0),
    "prompt_logprobs": (None, 0),
    "skip_special_tokens": (None, True),
    "stop_token_ids": (None, []),
    "suffix": (None, ""),
    "use_beam_search": (None, False),
}
_READ = ["model", "prompt", "n", "best_of", "logprobs", "stream", "stream_options"]
_SAMPLING = ["temperature", "top_p", "top_k", "max_tokens", "seed", "stop"]
KNOWN = frozenset({*_READ, *_SAMPLING, *HARMLESS, *NEUTRAL, *UNSUPPORTED})


@dataclass(frozen=True, slots=True)
class CompletionsRequest(Ask):
    """A parsed text-completions request."""

    include_usage: bool
    logprobs: bool
    """Whether the answer is to show log-probabilities; they are recorded in any case."""


def parse_completions_request(body: object, *, size: int = 0) -> CompletionsRequest:
    """InvalidInput or UnsupportedOption naming the option that cannot be followed. `size`: bytes of the body."""
    if not isinstance(body, dict):
        raise InvalidInput("the request's body must be a JSON object")
    refuse_unknown(body, KNOWN)
    refuse_unless_neutral(body, NEUTRAL)
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise InvalidInput("`model` must be the name of a model", hint="GET /v1/models lists them")
    n = integer(body, "n", 1, MAX_CHOICES) or 1
    if (integer(body, "best_of", 1, None) or n) != n:
        raise UnsupportedOption(
            "`best_of` is not supported",
            cause="answers that are sampled and not given could not be rewarded",
            hint="ask for `n` answers and choose among them",
        )
    asked = {"max_tokens": DEFAULT_MAX_TOKENS, **sampling_options(body, "max_tokens")}
    top = integer(body, "logprobs", 0, MAX_TOP_LOGPROBS)
    if top:
        asked["top_logprobs"] = top
    stream = flag(body, "stream")
    return CompletionsRequest(
        call=CallRequest(
            model=model,
            messages=[],
            prompt=parse_prompt(body),
            asked=asked,
            n=n,
            dialect=DIALECT,
            size=size,
        ),
        stream=stream,
        include_usage=stream and include_usage(body),
        logprobs=top is not None,
    )


def parse_prompt(body: Mapping[str, Any]) -> str | tuple[int, ...]:
    """The one prompt: text, tokens, or a list with one of those."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and prompt and not _is_token(prompt[0]):
        if len(prompt) > 1:
            raise UnsupportedOption(
                f"`prompt` holds {len(prompt)} prompts",
                cause="a call has one prompt, so that it has one place in its rollout",
                hint="send one request for each",
            )
        prompt = prompt[0]
    if isinstance(prompt, str) and prompt:
        return prompt
    if isinstance(prompt, list) and prompt and all(_is_token(token) for token in prompt):
        return tuple(prompt)
    raise InvalidInput("`prompt` must be a text or a list of token ids, not empty")


def _is_token(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
