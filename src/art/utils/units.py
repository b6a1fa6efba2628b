"""Counts and spans of time as people write them: 8k, 1.5M, 30s, 12h. On the command line and in files alike."""

from __future__ import annotations

import math
import re
from decimal import Decimal

COUNT_UNITS = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000}
"""Decimal, in either case: 8k is 8,000."""
SPAN_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 24 * 3600, "w": 7 * 24 * 3600}
"""In seconds."""
_COUNT = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)([kKmMgG]?)")
_SPAN = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)(ms|s|m|h|d|w)?")


def parse_count(value: str | int | float) -> int:
    """`8000`, `8k` or `1.5M` as a whole number. ValueError for anything else, `1.0001k` included."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    text = str(value).strip().replace("_", "")
    found = _COUNT.fullmatch(text)
    exact = Decimal(found[1]) * COUNT_UNITS[found[2].lower()] if found is not None else None
    if exact is None or exact != int(exact):
        raise ValueError(f"{value!r} is no count: a whole number such as 500, 8k or 1.5M")
    return int(exact)


def parse_seconds(value: str | int | float, *, bare: bool = True) -> float:
    """`30s`, `1.5h`, `90d` or `250ms` in seconds; a number alone is in seconds, unless `bare` forbids it. ValueError otherwise."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf:
        return float(value)
    found = _SPAN.fullmatch(str(value).strip().lower())
    if found is None or (found[2] is None and not bare):
        raise ValueError(f"{value!r} is no span of time: a number and s, m, h or d, such as 30s, 5m or 7d")
    return float(found[1]) * SPAN_UNITS[found[2] or "s"]


def show_seconds(seconds: float) -> str:
    """A span for a person: `0.4 s`, `35 s`, `12 min`, `3.5 h`, `2 d`."""
    if seconds < 10:
        return f"{seconds:.2g} s"
    for limit, unit, name in ((120, 1, "s"), (2 * 3600, 60, "min"), (2 * 86400, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds / 86400:.3g} d"


def show_count(count: float) -> str:
    """A count for a person: `950`, `8.2k`, `1.5M`."""
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(count) >= unit:
            return f"{count / unit:.3g}{name}"
    return f"{count:.3g}"
