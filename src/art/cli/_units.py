"""Options that take a count (`8k`) or a span of time (`30s`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer

from art.cli._usage import WrongUsage
from art.utils.units import parse_count, parse_seconds


def count_option(help: str, *names: str, at_least: int = 0, at_most: int | None = None) -> Any:
    """A whole number that may carry a unit: 500, 8k, 1.5M."""
    return typer.Option(*names, help=help, parser=count(at_least, at_most), metavar="COUNT")


def span_option(help: str, *names: str, above: float = 0.0, **more: Any) -> Any:
    """Seconds that may carry a unit: 90, 30s, 5m, 12h, 7d. More than `above` seconds."""
    return typer.Option(*names, help=help, parser=span(above), metavar="TIME", **more)


def count(at_least: int = 0, at_most: int | None = None) -> Callable[[Any], int]:
    """A parser for typer; it raises ValueError, which typer tells with the option's name."""

    def parse(value: Any) -> int:
        found = parse_count(value)
        if found < at_least or (at_most is not None and found > at_most):
            bounds = f"at least {at_least}" if at_most is None else f"from {at_least} to {at_most}"
            raise ValueError(f"{value} is not {bounds}")
        return found

    return parse


def span(above: float = 0.0) -> Callable[[Any], float]:
    """Likewise, in seconds."""

    def parse(value: Any) -> float:
        found = parse_seconds(value)
        if found <= above:
            raise ValueError(f"{value} is not more than {above:g} s")
        return found

    return parse


def seconds_of(text: str, option: str) -> float:
    """`90s`, `30m`, `12h` or `30d` in seconds, for options where a number alone could mean days. WrongUsage otherwise."""
    try:
        return parse_seconds(text, bare=False)
    except ValueError as error:
        raise WrongUsage(
            f"{option} is {text!r}", hint="a number and s, m, h or d, such as 30m or 7d"
        ) from error
