"""A `thread` of Anthropic's: requests that send only what is new and name the answer that they go on from."""

from __future__ import annotations

import re
from dataclasses import replace

from art.errors import ThreadNotFound
from art.server.dialects.anthropic_messages import check_tool_choice
from art.server.dialects.anthropic_request import DIALECT, MessagesRequest
from art.server.dialects.responses_chain import Recorded, Records
from art.tokens.graph import node_name
from art.types.messages import Tool

_MESSAGE = re.compile(r"msg_(?P<call>call-[0-9a-f]{32})")


async def continued(ask: MessagesRequest, records: Records) -> MessagesRequest:
    """The request with the conversation, system message and tools of the answer that it goes on from.

    ThreadNotFound where no such answer is kept, or none that is whole: the SDK then sends the conversation anew.
    """
    if ask.previous is None:
        return ask
    recorded = await _recorded(ask.previous, records)
    given = await records.given(recorded)
    answer = recorded.answer.model_copy(update={"recorded": node_name(recorded.call.call_id, 0)})
    tools = [Tool.model_validate(tool) for tool in recorded.text.tools or []]
    check_tool_choice(ask.call.tool_choice, tools)
    call = replace(
        ask.call,
        messages=[*given, answer, *ask.call.messages],
        tools=tools,
        size=ask.call.size + sum(len(message.text) for message in given),
        continues=recorded.call.rollout_id,
    )
    return replace(ask, call=call)


async def _recorded(message_id: str, records: Records) -> Recorded:
    match = _MESSAGE.fullmatch(message_id)
    found = await records.find(match["call"]) if match else None
    if (
        found is None
        or not found.whole
        or found.call.dialect != DIALECT
        or found.call.choices[0].finish_reason in ("cancelled", "error")
    ):
        raise ThreadNotFound(
            f"there is no message {message_id[:80]!r} that a `thread` could go on from",
            hint="send the whole conversation; answers of other projects and rollouts are not found",
        )
    return found
