"""wire -> internal -> wire: a conversation that a client sends in any dialect is the same conversation inside, and written back.

The assistant's turns are written by each dialect's own writer, as the client got them and sends them back.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art.server.dialects.anthropic_answer import blocks
from art.server.dialects.anthropic_request import parse_messages_request
from art.server.dialects.chat_request import parse_chat_request
from art.server.dialects.responses_answer import Answer, output_items
from art.server.dialects.responses_items import messages_of
from art.server.dialects.responses_request import parse_responses_request
from art.server.runs import runs_of
from art.tokens.graph import node_name, prefix_digests
from art.types.messages import FunctionCall, Message, Piece, Thought, ToolCall

Wire = dict[str, Any]
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=12)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | TEXT
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """System text or none, then turns: a user, an assistant with thoughts, text and calls, the results of the calls."""
    out = [Message(role="system", content=draw(TEXT))] if draw(st.booleans()) else []
    for turn in range(draw(st.integers(0, 3))):
        out.append(Message(role="user", content=draw(TEXT)))
        calls = [
            ToolCall(
                id=f"call_{turn}_{number}",
                function=FunctionCall(
                    name=draw(st.sampled_from(["look", "go"])),
                    arguments=json.dumps(
                        draw(st.dictionaries(TEXT, JSON, max_size=2)), ensure_ascii=draw(st.booleans())
                    ),
                ),
            )
            for number in range(draw(st.integers(0, 2)))
        ]
        out.append(
            Message(
                role="assistant",
                content=draw(TEXT | st.none()) if calls else draw(TEXT),
                reasoning=draw(TEXT | st.none()),
                tool_calls=tuple(calls),
            )
        )
        out += [Message(role="tool", tool_call_id=call.id, content=draw(TEXT)) for call in calls]
    if not out or out[-1].role != "tool" or draw(st.booleans()):
        out.append(Message(role="user", content=draw(TEXT)))
    return out


def pieces_of(message: Message) -> list[Piece]:
    """What was sampled to give the message."""
    thought: list[Piece] = [Thought(message.reasoning)] if message.reasoning else []
    text: list[Piece] = [message.content] if message.content else []
    return [*thought, *text, *message.tool_calls]


def call_id(number: int) -> str:
    return f"call-{number:032x}"


# -- chat completions


def chat(messages: Sequence[Message]) -> Wire:
    return {"model": "m", "messages": [message.to_openai() for message in messages]}


def from_chat(body: Wire) -> list[Message]:
    return parse_chat_request(body).call.messages


# -- Anthropic Messages


def anthropic(messages: Sequence[Message]) -> Wire:
    body: Wire = {"model": "m", "max_tokens": 9, "messages": []}
    for number, message in enumerate(messages):
        if message.role == "system":
            body["system"] = message.content
        elif message.role == "assistant":
            content = blocks(pieces_of(message), node_name(call_id(number), 0))
            body["messages"].append({"role": "assistant", "content": content})
        else:
            block: Wire = {"type": "text", "text": message.text}
            if message.role == "tool":
                block = {"type": "tool_result", "tool_use_id": message.tool_call_id, "content": message.text}
            if not body["messages"] or body["messages"][-1]["role"] != "user":
                body["messages"].append({"role": "user", "content": []})
            body["messages"][-1]["content"].append(block)
    return body


def from_anthropic(body: Wire) -> list[Message]:
    return parse_messages_request(body).call.messages


# -- Responses


def responses(messages: Sequence[Message]) -> Wire:
    items: list[Wire] = []
    for number, message in enumerate(messages):
        if message.role == "assistant":
            pieces = pieces_of(message)
            answer = Answer(
                runs=runs_of(pieces, range(len(pieces))), finish_reason="stop", prompt_token_ids=[],
                token_ids=[], rows=[], cached_tokens=0, finished=0.0,
            )  # fmt: skip
            items += output_items(call_id(number), answer, frozenset())
        elif message.role == "tool":
            items.append(
                {"type": "function_call_output", "call_id": message.tool_call_id, "output": message.text}
            )
        else:
            items.append({"role": message.role, "content": message.text})
    return {"model": "m", "input": items}


def from_responses(body: Wire) -> list[Message]:
    return messages_of(parse_responses_request(body).items)


DIALECTS: dict[str, tuple[Callable[[Sequence[Message]], Wire], Callable[[Wire], list[Message]]]] = {
    "chat": (chat, from_chat),
    "anthropic": (anthropic, from_anthropic),
    "responses": (responses, from_responses),
}


def plain(message: Message) -> Wire:
    """A message without what dialects cannot keep: white space in arguments, and whether no text is none or empty."""
    data = message.to_openai()
    data["content"] = data["content"] or ""
    for call in data.get("tool_calls", ()):
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return data


@pytest.mark.parametrize("name", DIALECTS)
@settings(max_examples=80, deadline=None)
@given(messages=conversations())
def test_a_conversation_comes_back_as_it_was(name: str, messages: list[Message]) -> None:
    write, read = DIALECTS[name]
    body = json.loads(json.dumps(write(messages)))  # as it crosses the network
    found = read(body)
    assert [plain(message) for message in found] == [plain(message) for message in messages]
    assert prefix_digests(found) == prefix_digests(messages), "the token memory knows it again"
    assert write(found) == body


@settings(max_examples=30, deadline=None)
@given(messages=conversations())
def test_every_dialect_means_the_same(messages: list[Message]) -> None:
    known = {tuple(prefix_digests(read(write(messages)))) for write, read in DIALECTS.values()}
    assert len(known) == 1
