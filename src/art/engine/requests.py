"""Requests and events as messages of `art.ipc`, checked where they enter the worker."""

from __future__ import annotations

import math
from dataclasses import asdict, fields
from typing import Any, TypeVar

from art.engine.protocol import AdapterCheck, AdapterRef, EngineCapabilities, Sampled, SampleRequest
from art.errors import InvalidInput, PromptTooLong, UnsupportedOption

MAX_TOP_LOGPROBS = 20
"""As OpenAI's API allows; each costs an event's size on every token."""

T = TypeVar("T", SampleRequest, AdapterRef)


def parse_sample(params: dict[str, Any], capabilities: EngineCapabilities) -> SampleRequest:
    """The SampleRequest of a generate message. InvalidInput or PromptTooLong when it cannot be served."""
    request = _from_params(
        SampleRequest, {**params, "stop_token_ids": tuple(params.get("stop_token_ids", ()))}
    )
    check_token_ids("prompt_token_ids", request.prompt_token_ids, capabilities.vocab_size)
    check_token_ids("stop_token_ids", request.stop_token_ids, capabilities.vocab_size, may_be_empty=True)
    if len(request.prompt_token_ids) >= capabilities.context_length:
        raise PromptTooLong(
            f"the prompt has {len(request.prompt_token_ids)} tokens",
            cause=f"the context holds {capabilities.context_length}, completion included",
            hint="shorten the history, or serve the model with a longer context",
        )
    _check(_is_int(request.max_tokens) and request.max_tokens >= 1, "max_tokens", request.max_tokens, ">= 1")
    _check(
        _is_number(request.temperature) and request.temperature >= 0,
        "temperature",
        request.temperature,
        ">= 0",
    )
    _check(_is_number(request.top_p) and 0 < request.top_p <= 1, "top_p", request.top_p, "in (0, 1]")
    _check(_is_int(request.top_k) and request.top_k >= 0, "top_k", request.top_k, ">= 0 (0 is off)")
    _check(_is_int(request.seed), "seed", request.seed, "an integer")
    _check(
        _is_int(request.top_logprobs) and 0 <= request.top_logprobs <= MAX_TOP_LOGPROBS,
        "top_logprobs",
        request.top_logprobs,
        f"in [0, {MAX_TOP_LOGPROBS}]",
    )
    _check(isinstance(request.grammar, str), "grammar", request.grammar, "text")
    if request.grammar and not capabilities.grammar:
        raise UnsupportedOption(
            f"the {capabilities.kind} engine follows no grammar here",
            cause="the model's folder has no tokenizer.json",
            hint="ask for the form in the prompt and check it in the reward",
        )
    return request


def parse_adapter(params: dict[str, Any], capabilities: EngineCapabilities) -> AdapterRef:
    """The AdapterRef of a load_adapter message. InvalidInput when it cannot be one."""
    ref = _from_params(AdapterRef, params)
    _check(isinstance(ref.version, str) and bool(ref.version), "version", ref.version, "a non-empty name")
    _check(isinstance(ref.path, str) and bool(ref.path), "path", ref.path, "a folder")
    check_token_ids("probe_token_ids", ref.probe_token_ids, capabilities.vocab_size, may_be_empty=True)
    return ref


def check_token_ids(name: str, token_ids: object, vocab_size: int, *, may_be_empty: bool = False) -> None:
    """InvalidInput unless `token_ids` is a list of ids in [0, vocab_size)."""
    if not isinstance(token_ids, list | tuple) or not (token_ids or may_be_empty):
        raise InvalidInput(f"{name} must be a {'' if may_be_empty else 'non-empty '}list of token ids")
    for token in token_ids:
        if not _is_int(token) or not 0 <= token < vocab_size:
            raise InvalidInput(f"{name} holds {token!r}", cause=f"token ids are 0 to {vocab_size - 1}")


def sampled_message(key: int, event: Sampled) -> dict[str, Any]:
    """An event message. Fields at their defaults are left out: one leaves for every token."""
    body: dict[str, Any] = {"token_ids": event.token_ids, "logprobs": event.logprobs}
    if event.top_logprobs:
        body["top_logprobs"] = event.top_logprobs
    if event.forced:
        body["forced"] = event.forced
    if event.finish_reason is not None:
        body["finish_reason"] = event.finish_reason
    if event.cached_tokens:
        body["cached_tokens"] = event.cached_tokens
    return {"id": key, "event": body}


def parse_sampled(body: dict[str, Any]) -> Sampled:
    """The Sampled of an event message's body; the gateway's side of `sampled_message`."""
    return Sampled(
        token_ids=list(body["token_ids"]),
        logprobs=list(body["logprobs"]),
        top_logprobs=[
            [(int(token), float(logp)) for token, logp in row] for row in body.get("top_logprobs", ())
        ],
        forced=[bool(forced) for forced in body.get("forced", ())],
        finish_reason=body.get("finish_reason"),
        cached_tokens=int(body.get("cached_tokens", 0)),
    )


def as_result(value: AdapterCheck | EngineCapabilities) -> dict[str, Any]:
    """A result or ready message's body."""
    return asdict(value)


def _from_params(kind: type[T], params: dict[str, Any]) -> T:
    known = {field.name for field in fields(kind)}
    unknown = sorted(set(params) - known)
    if unknown:
        raise InvalidInput(
            f"unknown parameter {unknown[0]!r} of {kind.__name__}", hint=f"known: {', '.join(sorted(known))}"
        )
    try:
        return kind(**params)
    except TypeError as error:
        raise InvalidInput(f"this is no {kind.__name__}", cause=str(error)) from error


def _check(good: bool, name: str, value: object, rule: str) -> None:
    if not good:
        raise InvalidInput(f"{name} is {value!r}", cause=f"it must be {rule}")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
