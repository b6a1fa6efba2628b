"""Items of a Responses request: how they become messages, and that an answer's items come back as the answer."""

from __future__ import annotations

import json
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art.errors import InvalidInput
from art.server.dialects.responses_answer import Answer, output_items
from art.server.dialects.responses_items import Thinking, messages_of, parse_input
from art.server.runs import outline, runs_of, told_again
from art.tokens.tools import assistant_message
from art.types.messages import FunctionCall, Message, Piece, Thought, ToolCall

CALL = "call-" + "0" * 32
OTHER = "call-" + "1" * 32
ENCRYPTED = frozenset({"reasoning.encrypted_content"})


def new_call(name: str, arguments: Any) -> ToolCall:
    return ToolCall(id=f"call_{name}", function=FunctionCall(name=name, arguments=json.dumps(arguments)))


words = st.text(string.ascii_letters + " é🙂", min_size=1, max_size=8)
pieces = st.lists(
    st.one_of(
        words,
        words.map(Thought),
        st.builds(new_call, st.sampled_from(["f", "g"]), st.dictionaries(words, words, max_size=2)),
    ),
    max_size=8,
)


def answer(said: list[Piece]) -> Answer:
    runs = runs_of(said, range(1, len(said) + 1))
    return Answer(
        runs=runs,
        finish_reason="stop",
        prompt_token_ids=[],
        token_ids=[0] * len(said),
        rows=[],
        cached_tokens=0,
        finished=0.0,
    )


def plain(message: Message) -> dict[str, Any]:
    return message.to_openai()


@given(pieces)
def test_an_answer_comes_back_as_the_message_it_was(said: list[Piece]) -> None:
    items = output_items(CALL, answer(said), ENCRYPTED)
    (message,) = messages_of(parse_input(items))
    assert plain(message) == plain(assistant_message(said))
    assert message.recorded == f"art:{CALL}:0"


@given(pieces, pieces)
def test_two_answers_side_by_side_stay_two(first: list[Piece], second: list[Piece]) -> None:
    items = output_items(CALL, answer(first), ENCRYPTED) + output_items(OTHER, answer(second), ENCRYPTED)
    found = messages_of(parse_input(items))
    assert [plain(message) for message in found] == [plain(assistant_message(s)) for s in (first, second)]


@given(pieces)
def test_a_record_tells_an_answer_again(said: list[Piece]) -> None:
    runs = runs_of(said, range(1, len(said) + 1))
    assert told_again(assistant_message(said), outline(runs), len(said)) == runs


def test_a_redacted_record_tells_its_answer_in_order() -> None:
    call = new_call("f", {})
    kept = outline(runs_of(["secret", call, Thought("hidden")], [1, 2, 3]))
    message = Message(role="assistant", content="***", reasoning="***", tool_calls=(call,))
    assert [run.piece for run in told_again(message, kept, 3)] == [Thought("***"), "***", call]


def item(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def called(name: str, call_id: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": "{}"}


def returned(call_id: str, output: Any = "r") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def roles(items: Any) -> list[str]:
    return [
        f"{m.role} {m.text}{''.join(c.id for c in m.tool_calls)}" for m in messages_of(parse_input(items))
    ]


def test_turns_without_ids() -> None:
    assert roles("hi") == ["user hi"]
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    assert roles([item("developer", parts), item("user", "q")]) == ["system ab", "user q"]
    assert roles([item("assistant", "a"), item("assistant", "b")]) == ["assistant a", "assistant b"]
    assert roles(
        [item("assistant", "a"), called("f", "1"), called("g", "2"), returned("1"), returned("2")]
    ) == [
        "assistant a12",
        "tool r",
        "tool r",
    ]
    assert roles([called("f", "1"), returned("1", parts), called("g", "2"), returned("2")]) == [
        "assistant 1",
        "tool ab",
        "assistant 2",
        "tool r",
    ]


def test_reasoning_belongs_to_what_follows_it() -> None:
    thought = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]}
    first, second = (
        m
        for m in messages_of(parse_input([thought, called("f", "1"), returned("1"), thought]))
        if m.role == "assistant"
    )
    assert (first.reasoning, first.tool_calls[0].id) == ("t", "1")
    assert (second.reasoning, second.text) == ("t", "")


def test_what_seals_name() -> None:
    sealed = {"type": "reasoning", "id": "rs_foreign", "summary": []}
    assert parse_input([sealed | {"encrypted_content": f"art:{CALL}:0"}]) == [Thinking(None, CALL, 0, True)]
    assert parse_input([sealed | {"encrypted_content": "gAAA"}]) == [Thinking(None, None, 0, True)]
    assert parse_input([sealed]) == [Thinking(None, None, 0, False)]


@pytest.mark.parametrize(
    "items",
    [
        [3],
        [{"type": "message", "role": "user"}],
        [item("user", [{"type": "input_text"}])],
        [item("user", [{"type": "input_file", "file_id": "f"}])],
        [called("f", "")],
        [called("", "1")],
        [called("f", "1") | {"arguments": 3}],
        [called("f", "1") | {"arguments": '{"a": "\\ud800"}'}],
        [returned("1", 3)],
        [{"type": "reasoning", "content": "t"}],
        [{"type": "reasoning", "content": [{"text": 3}]}],
        [{"type": "reasoning", "encrypted_content": 3}],
        [{"type": "item_reference"}],
    ],
)
def test_items_that_cannot_be_right_are_refused(items: Any) -> None:
    with pytest.raises(InvalidInput, match=r"input\[0\]"):
        parse_input(items)
