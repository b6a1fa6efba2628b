"""Options that take a count (`8k`) or a span of time (`30s`), as files do (config/units)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any

import typer
from pydantic import BeforeValidator, Field

from art.cli._usage import WrongUsage
from art.config import units

_WHOLE = re.compile(r"[0-9]{1,18}")
_NUMBER = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,9})?")


def parse_count(value: Any) -> int:
    """`8000`, `8k` or `1.5M` as a whole number. ValueError for anything else."""
    text = str(value)
    return int(text) if _WHOLE.fullmatch(text) else units.count_of(text)


def parse_seconds(value: Any) -> float:
    """`30s`, `1.5h` or `7d` in seconds; a number alone is in seconds. ValueError for anything else."""
    text = str(value)
    return float(text) if _NUMBER.fullmatch(text) else units.seconds_of(text)


Seconds = Annotated[float, BeforeValidator(parse_seconds), Field(gt=0)]
"""Of a setting: `30s`, `5m`, or a number."""


def count_option(help: str, *names: str, at_least: int = 0, at_most: int | None = None) -> Any:
    """A whole number that may carry a unit: 500, 8k, 1.5M."""
    return typer.Option(*names, help=help, parser=count(at_least, at_most), metavar="COUNT")


def span_option(help: str, *names: str, **more: Any) -> Any:
    """Seconds, more than 0, that may carry a unit: 90, 30s, 5m, 12h, 7d."""
    return typer.Option(*names, help=help, parser=span, metavar="TIME", **more)


def count(at_least: int = 0, at_most: int | None = None) -> Callable[[Any], int]:
    """A parser for typer; it raises ValueError, which typer tells with the option's name."""

    def parse(value: Any) -> int:
        found = parse_count(value)
        if found < at_least or (at_most is not None and found > at_most):
            bounds = f"at least {at_least}" if at_most is None else f"from {at_least} to {at_most}"
            raise ValueError(f"{value} is not {bounds}")
        return found

    return parse


def span(value: Any) -> float:
    """Likewise, in seconds."""
    found = parse_seconds(value)
    if not found > 0:
        raise ValueError(f"{value} is not more than 0 s")
    return found


def seconds_of(text: str, option: str) -> float:
    """`90s`, `30m`, `12h` or `30d` in seconds, for options where a number alone could mean days. WrongUsage otherwise."""
    try:
        return units.seconds_of(text)
    except ValueError as error:
        raise WrongUsage(
            f"{option} is {text!r}", hint="a number and s, m, h or d, such as 30m or 7d"
        ) from error
