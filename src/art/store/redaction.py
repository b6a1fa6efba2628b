"""The one hook that every stored text and token array passes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from art.store.records import CallText, LoggedTrajectory, RewardChange, RolloutRow
from art.types.tokens import CallRecord

J = TypeVar("J")
M = TypeVar("M", RolloutRow, RewardChange)
TRUE_TEXT = "text"
"""Array of a sealed record: the call's text as it was, UTF-8 of its JSON."""
LARGE_CHARACTERS = 8 * 1024
"""A text up to this is read in about five milliseconds; a longer one would keep other calls waiting."""


@dataclass(frozen=True, slots=True)
class KeptCall:
    """What is kept of a call."""

    call: CallRecord
    text: CallText
    hides: bool = False
    """The tokens say what the text no longer says: they are sealed, and the text as it was with them."""


class Redaction(Protocol):
    """Changes content before it is written. Ids, counts, rewards and times are not content.

    `project` is whose rule holds; None is the server's own. All methods may be called from any thread.
    """

    def content(self, value: Any, project: str | None = None) -> Any:
        """What is kept of JSON-like data that holds text: metadata, tools, logs, what upstreams were asked."""
        ...

    def report(self, value: Any, project: str | None = None) -> Any:
        """What is kept of texts that say what went wrong: reasons and errors of ART itself, with what they quote."""
        ...

    def call(self, call: CallRecord, text: CallText, project: str | None = None) -> KeptCall:
        """What is kept of a call."""
        ...

    def seals(self, project: str | None = None) -> bool:
        """Whether tokens whose text nobody looked at are sealed."""
        ...


class KeepEverything:
    """Stores content as it is."""

    def content(self, value: J, project: str | None = None) -> J:
        return value

    def report(self, value: J, project: str | None = None) -> J:
        return value

    def call(self, call: CallRecord, text: CallText, project: str | None = None) -> KeptCall:
        return KeptCall(call, text)

    def seals(self, project: str | None = None) -> bool:
        return False


async def kept_call(redact: Redaction, call: CallRecord, text: CallText, project: str | None) -> KeptCall:
    """What is kept of a call; a long one is read on a thread."""
    if isinstance(redact, KeepEverything):
        return KeptCall(call, text)
    said = [*text.tail, *text.completions, *(text.tools or ())]
    if sum(map(_size, said)) <= LARGE_CHARACTERS:
        return redact.call(call, text, project)
    return await asyncio.to_thread(redact.call, call, text, project)


async def kept_content(redact: Redaction, value: J, project: str | None) -> J:
    """What is kept of a large piece of content, read on a thread."""
    if isinstance(redact, KeepEverything):
        return value
    found: J = await asyncio.to_thread(redact.content, value, project)
    return found


def kept_metadata(redact: Redaction, item: M, project: str | None) -> M:
    """The record with what is kept of its metadata."""
    return item.model_copy(update={"metadata": redact.content(item.metadata, project)})


async def kept_trajectory(redact: Redaction, item: LoggedTrajectory) -> LoggedTrajectory:
    """A logged trajectory with what is kept of its body."""
    return item.model_copy(update={"body": await kept_content(redact, item.body, item.project)})


def with_true_text(arrays: dict[str, np.ndarray], text: CallText) -> dict[str, np.ndarray]:
    """The arrays of a sealed record."""
    return {**arrays, TRUE_TEXT: np.frombuffer(text.model_dump_json().encode(), dtype=np.uint8)}


def _size(value: Any) -> int:
    if isinstance(value, dict):
        return sum(_size(item) for item in value.values())
    if isinstance(value, list):
        return sum(_size(item) for item in value)
    return len(value) if isinstance(value, str) else 1
