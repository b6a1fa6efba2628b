"""Which conversation of its rollout a call belongs to, told by how it begins.

The system prompts and the openings (the system prompt and the first message behind it) that a session saw are
numbered in their order. A call is stored with the numbers alone: a digest of a text would tell something about it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

from art.tokens.graph import canonical
from art.types.messages import Message

MAX_PLACES = 10_000
"""Openings that a session remembers; later new ones share one number. A rollout has a handful."""


class Place(NamedTuple):
    """Numbers of a call's system prompt and opening, 0 for the first that the rollout's calls had."""

    system: int = 0
    opening: int = 0


class Places:
    """The beginnings that one session has seen."""

    def __init__(self) -> None:
        self._systems: dict[str, int] = {}
        self._openings: dict[str, int] = {}

    def of(self, messages: Sequence[Message]) -> Place:
        """Where a call with these messages belongs."""
        head = list(takewhile(lambda message: message.role == "system", messages))
        return Place(
            _number(self._systems, head),
            _number(self._openings, [*head, *messages[len(head) : len(head) + 1]]),
        )


def _number(seen: dict[str, int], messages: Sequence[Message]) -> int:
    text = json.dumps([canonical(message) for message in messages], ensure_ascii=False)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    if digest not in seen and len(seen) >= MAX_PLACES:
        return MAX_PLACES
    return seen.setdefault(digest, len(seen))
