"""What was said in a rollout, as a person reads it, and where the rollouts of a group begin to differ. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from art.store.call_facts import is_tool_error, reasoning_of, text_of
from art.store.records import CallText
from art.types.policy import Fate
from art.types.tokens import CallRecord
from art.types.wire_views import Divergence, Message


def message_of(said: Mapping[str, Any]) -> Message:
    """A stored message (OpenAI's form) for a person."""
    calls = [call for call in said.get("tool_calls") or () if isinstance(call, Mapping)]
    role = str(said.get("role", ""))
    return Message(
        role=role,
        text=text_of(said),
        reasoning=reasoning_of(said),
        tool_calls=[_tool_call(call) for call in calls],
        tool_call_id=said.get("tool_call_id"),
        name=said.get("name"),
        error=is_tool_error(said),
    )


def _tool_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    said = function if isinstance(function, Mapping) else call
    arguments = said.get("arguments", "")
    return {
        "id": str(call.get("id") or ""),
        "name": str(said.get("name") or ""),
        "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False),
    }


def sampled_message(call: CallRecord, text: CallText, index: int) -> Message:
    """What one choice of a call said."""
    said = text.completions[index] if index < len(text.completions) else {"role": "assistant"}
    return message_of(said).model_copy(update={"call_id": call.call_id, "choice": index})


KEPT = frozenset({Fate.TRAINED, Fate.PENDING, Fate.EVALUATION})
"""Fates of what a rollout is judged by; the others were left out of it."""


def last_call(calls: Sequence[CallRecord]) -> CallRecord | None:
    """The call with which a rollout ends: the last one that is not on the side and was not left out.

    A history that was rewritten goes on in a branch of its own, so it need not be in the first call's branch.
    """
    ours = [call for call in calls if not call.auxiliary] or list(calls)
    kept = [call for call in ours if any(choice.fate in KEPT for choice in call.choices)]
    return next(reversed(kept or ours), None)


def main_path(calls: Sequence[CallRecord], texts: Mapping[str, CallText]) -> list[Message]:
    """The messages that lead to a rollout's last call, and what it says: its first choice that was not left out."""
    by_id = {call.call_id: call for call in calls}
    call = last_call(calls)
    messages: list[Message] = []
    choices = () if call is None else call.choices
    continued = next((choice.index for choice in choices if choice.fate in KEPT), 0)
    while call is not None:
        text = texts.get(call.call_id, CallText())
        messages[:0] = [*map(message_of, text.tail), sampled_message(call, text, continued)]
        continued = text.parent_choice
        call = by_id.get(call.parent_call_id or "")
    return messages


def as_text(message: Message) -> str:
    """What a message says, for comparison: reasoning, text and tool calls that are not empty, joined by line feeds."""
    calls = (f"{call['name']}({call['arguments']})" for call in message.tool_calls)
    return "\n".join(part for part in (message.reasoning, message.text, *calls) if part)


def divergence(rollouts: Sequence[Sequence[Message]]) -> Divergence | None:
    """The first place at which not all say the same; None where all do. Rollouts that say nothing are not compared."""
    compared = [messages for messages in rollouts if messages]
    if len(compared) < 2:
        return None
    for index in range(max(map(len, compared))):
        texts = [as_text(messages[index]) if index < len(messages) else None for messages in compared]
        roles = {messages[index].role for messages in compared if index < len(messages)}
        said = [text for text in texts if text is not None]
        if len(said) < len(texts) or len(roles) > 1:
            return Divergence(message=index, character=0)
        if len(set(said)) > 1:
            return Divergence(message=index, character=_common(said))
    return None


def _common(texts: Sequence[str]) -> int:
    """Characters that all texts begin with alike. The first and the last in order differ the soonest."""
    first, last = min(texts), max(texts)
    for index, (one, other) in enumerate(zip(first, last, strict=False)):
        if one != other:
            return index
    return min(len(first), len(last))
