"""Options of a request's body, read and checked alike in every dialect. InvalidInput and UnsupportedOption name the option."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Any

from art.errors import InvalidInput, UnsupportedOption
from art.server.body import INT64_MAX


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


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if value < low:
        raise InvalidInput(f"`{name}` is {str(value)[:40]}, the least is {low}")
    if value > high:
        raise InvalidInput(f"`{name}` is {str(value)[:40]}, the most is {high}")
