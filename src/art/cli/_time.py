"""Spans of time as people write them on a command line."""

from __future__ import annotations

import re

from art.cli._usage import WrongUsage

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 24 * 3600}


def seconds_of(text: str, option: str) -> float:
    """`90s`, `30m`, `12h` or `30d` in seconds. ConfigError for anything else."""
    found = re.fullmatch(r"([0-9]{1,9})([smhd])", text)
    if found is None:
        raise WrongUsage(f"{option} is {text!r}", hint="a number and s, m, h or d, such as 30m or 7d")
    return int(found[1]) * UNITS[found[2]]
