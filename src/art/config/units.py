"""Counts and spans of time as people write them: `8k`, `1.5M`, `64Mi`; `30s`, `5m`, `2h`, `1d`."""

from __future__ import annotations

import re
from decimal import Decimal
from types import NoneType
from typing import Any, get_args

COUNTS = {"k": 1000, "M": 1000**2, "G": 1000**3, "Ki": 1024, "Mi": 1024**2, "Gi": 1024**3}
"""`k` is 1,000, as in `steps = "1k"`; `Ki` is 1,024, for bytes and the like."""
SPANS = {
    "ms": Decimal("0.001"),
    "s": Decimal(1),
    "m": Decimal(60),
    "h": Decimal(3600),
    "d": Decimal(24 * 3600),
}
NONE = "none"
"""What a file or a variable says for a setting that is switched off: TOML has no word for it."""
_COUNT = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)(k|M|G|Ki|Mi|Gi)")
_SPAN = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)(ms|s|m|h|d)")
_TIMES = ("seconds", "timeout")


def count_of(text: str) -> int:
    """`8k` as 8000. ValueError for what is no whole number with a unit."""
    found = _COUNT.fullmatch(text)
    number = None if found is None else Decimal(found[1]) * COUNTS[found[2]]
    if number is None or number != int(number):
        raise ValueError(f"{text!r} is no count; write it like 8k, 1.5M or 64Mi")
    return int(number)


def seconds_of(text: str) -> float:
    """`5m` as 300.0. ValueError for what is no number with a unit."""
    found = _SPAN.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no span of time; write it like 30s, 5m, 2h or 1d")
    return float(Decimal(found[1]) * SPANS[found[2]])


def kinds(annotation: Any) -> set[Any]:
    """The plain types that an annotation is made of: `Annotated[int, ...] | None` is int and NoneType."""
    parts = [part for part in get_args(annotation) if isinstance(part, type) or get_args(part)]
    if not parts or getattr(annotation, "__origin__", None) in (tuple, list, dict):
        return {getattr(annotation, "__origin__", None) or annotation}
    return set().union(*(kinds(part) for part in parts))


def with_units(name: str, annotation: Any, value: Any) -> Any:
    """`value` of the setting `name`, a number where it is a text with a unit, None where it is `none`.

    Anything else is left as it is: whether it fits the setting is not known here.
    """
    if not isinstance(value, str):
        return value
    known = kinds(annotation)
    text = value.strip()
    if text.lower() == NONE and NoneType in known and str not in known:
        return None
    if int in known and _COUNT.fullmatch(text):
        return count_of(text)
    if float in known and name.endswith(_TIMES) and _SPAN.fullmatch(text):
        return seconds_of(text)
    return value
