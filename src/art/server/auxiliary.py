"""Which calls of a rollout are work on the side: titles, summaries, probes. Pure functions.

Only calls that nothing goes on from can be, and the caller's word (`X-ART-Auxiliary`, `auxiliary` of a reward), an
agent label and a reward of its own settle it. Otherwise, of such a call that does not end its conversation:

    asked for at most 16 tokens, and another call for more            a probe, a classification
    has no tools, stands alone, and another call has tools            a title, a summary
    another system prompt than the first call's, no tools,            a title in a rollout without tools
    starts a conversation that has no second call,
    and the first call's conversation has one or has tools

A call stands alone when it neither goes on from a served answer nor is gone on from. A conversation is told by its
opening: the system prompt and the first message behind it. Its last call ends it, however it was asked, unless the
conversation begins anew afterwards (same system prompt, other opening), as after a summary. If all calls of a rollout
would be on the side, none is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from art.types.tokens import CallRecord

TINY_TOKENS = 16
"""What asks for no more is no answer of an agent that otherwise asks for more."""
SAID = "the caller says so"


def judge(calls: Sequence[CallRecord], rule: Literal["detect", "train"] = "detect") -> dict[str, str | None]:
    """Per call id of one rollout, why it is a call on the side, or None for one that is not."""
    found = {call.call_id: None if rule == "train" else _reason(call, calls) for call in calls}
    if all(found.values()):
        found = dict.fromkeys(found)
    for call in calls:
        if call.auxiliary_asked is not None:
            found[call.call_id] = SAID if call.auxiliary_asked else None
    return found


def judged(calls: Sequence[CallRecord], rule: Literal["detect", "train"] = "detect") -> list[CallRecord]:
    """The calls of one rollout with what is on the side marked as such."""
    verdicts = judge(calls, rule)
    return [
        call.model_copy(
            update={
                "auxiliary": verdicts[call.call_id] is not None,
                "auxiliary_reason": verdicts[call.call_id] or "",
            }
        )
        for call in calls
    ]


def _reason(call: CallRecord, calls: Sequence[CallRecord]) -> str | None:
    others = [other for other in calls if other is not call]
    continued = {other.parent_call_id for other in calls}
    if call.agent is not None or any(choice.reward is not None for choice in call.choices):
        return None
    if not others or call.call_id in continued or _ends_its_conversation(call, others, continued):
        return None
    asked = _asked_tokens(call)
    if asked is not None and asked <= TINY_TOKENS and any(_asks_for_more(other) for other in others):
        return f"it asked for {asked} tokens at most, and others for more"
    if call.parent_call_id is not None or call.tool_count:
        return None
    if any(other.tool_count for other in others):
        return "it has no tools, and others have"
    first = min(calls, key=lambda other: other.number)
    main = [other for other in others if other.system_number == first.system_number]
    if (
        call.system_number != first.system_number
        and not any(other.opening_number == call.opening_number for other in others)
        and any(_stands(other, continued) for other in main)
    ):
        return "it has another system prompt than the first call, and no second call"
    return None


def _ends_its_conversation(
    call: CallRecord, others: Sequence[CallRecord], continued: set[str | None]
) -> bool:
    """The last word of a conversation with more than this call, and not one that it begins anew from."""
    mine = [other for other in others if other.opening_number == call.opening_number]
    if call.parent_call_id is None and not any(_stands(other, continued) for other in mine):
        return False
    if any(other.number > call.number for other in mine):
        return False
    return not any(
        other.number > call.number
        and other.parent_call_id is None
        and other.system_number == call.system_number
        and other.opening_number != call.opening_number
        for other in others
    )


def _stands(call: CallRecord, continued: set[str | None]) -> bool:
    """It is part of an agent's work: it may act, or was gone on from."""
    return call.tool_count > 0 or call.call_id in continued


def _asked_tokens(call: CallRecord) -> int | None:
    asked = call.sampling_asked.get("max_tokens")
    return asked if isinstance(asked, int) else None


def _asks_for_more(call: CallRecord) -> bool:
    asked = _asked_tokens(call)
    return asked is None or asked > TINY_TOKENS
