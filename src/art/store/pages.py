"""Pages of a list: where the next one begins, as a text that nobody needs to read."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from art.errors import InvalidInput

Key = tuple[float | int | str | None, ...]


def cursor_of(kind: str, *key: float | int | str | None) -> str:
    """The cursor behind a row; `kind` is the list and its order, so that no other list takes it."""
    return base64.urlsafe_b64encode(json.dumps([kind, *key]).encode()).decode().rstrip("=")


def key_of(kind: str, cursor: str, *, parts: int) -> Key:
    """What `cursor_of` was given. InvalidInput for what is no cursor of this list."""
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        found: Any = json.loads(base64.urlsafe_b64decode(padded.encode("ascii")))
    except (ValueError, binascii.Error, RecursionError):
        found = None
    right = isinstance(found, list) and len(found) == parts + 1 and found[0] == kind
    if not right or not all(map(_could_be, found[1:])):
        raise InvalidInput(
            "the cursor is none of this list in this order",
            hint="take it from `next` of the page before, with the same filter and sort",
        )
    return tuple(found[1:])


def _could_be(value: object) -> bool:
    """Whether a column may hold it: a cursor made by hand can say anything that JSON can."""
    if isinstance(value, str):
        return value.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in value)
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    return value is None or isinstance(value, float)
