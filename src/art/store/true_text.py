"""What redacted calls said before they were redacted, for as long as their sealed tokens are there.

An agent that refers to its earlier answers gets what it was given, not what is left of it for people to read; and a
choice that lost its mark is known again by its own words.
"""

from __future__ import annotations

import json
from typing import Any

from art.store.records import CallText
from art.store.redaction import TRUE_TEXT
from art.store.store import Store
from art.types.tokens import CallRecord


async def true_text(store: Store, call: CallRecord) -> CallText | None:
    """The call's text as it was; None where only what redaction left of it is there."""
    if call.blob is None:
        return None
    if not call.blob.sealed:
        return await store.text_of(call.call_id)
    arrays = await store.read_arrays(call.blob)
    return CallText.model_validate(json.loads(arrays[TRUE_TEXT].tobytes()))


async def true_history(store: Store, call: CallRecord) -> list[dict[str, Any]] | None:
    """All messages that a call was given, oldest first; None where some of them are redacted for good."""
    if (
        call.blob is not None and not call.blob.sealed
    ):  # nor is any call before it: what goes on from a sealed one is
        return await store.history_of(call.call_id)
    chain: list[CallText] = []
    current: CallRecord | None = call
    while current is not None:
        text = await true_text(store, current)
        if text is None:
            return None
        chain.append(text)
        parent = current.parent_call_id
        current = None if parent is None else await store.get_call(parent)
    messages: list[dict[str, Any]] = []
    for number in range(len(chain) - 1, -1, -1):
        messages += chain[number].tail
        if number:
            messages.append(chain[number].completions[chain[number - 1].parent_choice])
    return messages
