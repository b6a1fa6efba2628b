"""Options of a request's body, read and checked alike in every dialect. InvalidInput and UnsupportedOption name the option."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Any

from art.errors import InvalidInput, UnsupportedOption
from art.server.body import INT64_MAX
from art.server.sampling import UNSUPPORTED

MAX_TOP_LOGPROBS = 20
"""As OpenAI's API allows."""
MAX_STOPS = 16
"""More stop strings than any agent has been seen to send."""


def refuse_unknown(body: Mapping[str, Any], known: Collection[str]) -> None:
    """InvalidInput for an option that nobody here knows, with the nearest one that is known."""
    for name in body:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise InvalidInput(
                f"unknown option `{name}`",
                hint=f"did you mean `{near[0]}`?" if near else "leave it out: it would be ignored",
            )


def refuse_unless_neutral(body: Mapping[str, Any], neutral: Mapping[str, tuple[object, ...]]) -> None:
    """UnsupportedOption for an option whose value is none of those that mean what is done anyway."""
    for name, allowed in neutral.items():
        if name in body and body[name] not in allowed:
            raise UnsupportedOption(f"`{name}` is not supported", hint=f"leave `{name}` out")


def flag(body: Mapping[str, Any], name: str) -> bool:
    """The option as true or false; False where it is not given."""
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise InvalidInput(f"`{name}` must be true or false, not {value!r}")
    return bool(value)


def integer(body: Mapping[str, Any], name: str, low: int | None, high: int | None) -> int | None:
    """The option as an integer of [low, high]; None where it is not given."""
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidInput(f"`{name}` must be an integer, not {value!r}")
    # No engine and no store takes more than 64 bits.
    _check_range(name, value, -INT64_MAX if low is None else low, INT64_MAX if high is None else high)
    return value


def number(body: Mapping[str, Any], name: str, low: float, high: float) -> float | None:
    """The option as a number of [low, high]; None where it is not given."""
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or value != value:
        raise InvalidInput(f"`{name}` must be a number, not {value!r}")
    _check_range(name, value, low, high)  # before the conversion: an integer may be too large for a float
    return float(value)


def sampling_options(body: Mapping[str, Any], *limits: str) -> dict[str, Any]:
    """The sampling options that are given, checked. None counts as not given, as in OpenAI's API.

    `limits`: names of the option that bounds the new tokens; the first that is given holds.
    """
    asked: dict[str, Any] = {}
    for name, low, high in (("temperature", 0.0, 100.0), ("top_p", 0.0, 1.0)):
        value = number(body, name, low, high)
        if value is not None:
            asked[name] = value
    if asked.get("top_p") == 0.0:
        raise InvalidInput("`top_p` must be over 0", hint="temperature=0 is greedy")
    bounds = [bound for name in limits if (bound := integer(body, name, 1, None)) is not None]
    top_k = integer(body, "top_k", -1, None)
    for name, found in (
        ("max_tokens", bounds[0] if bounds else None),
        ("seed", integer(body, "seed", None, None)),
        ("top_k", max(top_k, 0) if top_k is not None else None),  # vLLM's clients write -1 for off
        ("top_logprobs", integer(body, "top_logprobs", 0, MAX_TOP_LOGPROBS)),
        ("stop", stop_strings(body) or None),
    ):
        if found is not None:
            asked[name] = found
    for name in UNSUPPORTED:
        if body.get(name) is not None:
            asked[name] = body[name]
    return asked


def stop_strings(body: Mapping[str, Any]) -> tuple[str, ...]:
    """`stop` as texts; none where it is not given."""
    value = body.get("stop")
    stops = [value] if isinstance(value, str) else value or []
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
        raise InvalidInput("`stop` must be a text or a list of texts that are not empty")
    if len(stops) > MAX_STOPS:
        raise InvalidInput(f"`stop` holds {len(stops)} texts, at most {MAX_STOPS} are possible")
    return tuple(stops)


def template_options(body: Mapping[str, Any]) -> dict[str, Any]:
    """`chat_template_kwargs` as variables of the chat template; one that the template never reads is refused later."""
    options = body.get("chat_template_kwargs")
    if options is not None and not isinstance(options, dict):
        raise InvalidInput("`chat_template_kwargs` must be an object")
    found = dict(options or {})
    for name in ("messages", "tools", "add_generation_prompt"):
        if name in found:
            raise InvalidInput(f"`chat_template_kwargs` cannot set {name!r}")
    return found


def effort_wish(effort: object) -> dict[str, Any]:
    """The reasoning effort as a wish: agents send it to every model, so one whose template has none says so once."""
    if effort is None:
        return {}
    if not isinstance(effort, str):
        raise InvalidInput(f"`reasoning_effort` must be a text, not {str(effort)[:80]!r}")
    return {"reasoning_effort": effort}


def include_usage(body: Mapping[str, Any]) -> bool:
    """Whether the stream is to end with the usage (`stream_options`)."""
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


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if value < low:
        raise InvalidInput(f"`{name}` is {str(value)[:40]}, the least is {low}")
    if value > high:
        raise InvalidInput(f"`{name}` is {str(value)[:40]}, the most is {high}")
