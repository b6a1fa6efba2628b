"""What a model said -> Anthropic's blocks, and why it stopped."""

from __future__ import annotations

import json

import pytest

from art.server.capture import Choice
from art.server.dialects.anthropic_answer import blocks, stop_reason
from art.types.messages import FunctionCall, Piece, Thought, ToolCall


def call(arguments: str) -> ToolCall:
    return ToolCall(id="call_1", function=FunctionCall(name="look", arguments=arguments))


def test_blocks_stand_in_the_order_of_sampling() -> None:
    pieces: list[Piece] = [
        Thought("Let "),
        Thought("me."),
        "\n",
        "One",
        call('{"x": 1}'),
        "two",
        Thought("Hm."),
    ]
    assert blocks(pieces, "art:c:0") == [
        {"type": "thinking", "thinking": "Let me.", "signature": "art:c:0"},
        {"type": "text", "text": "\nOne"},
        {"type": "tool_use", "id": "call_1", "name": "look", "input": {"x": 1}},
        {"type": "text", "text": "two"},
        {"type": "thinking", "thinking": "Hm.", "signature": "art:c:0"},
    ]
    hidden = blocks(pieces, "art:c:0", show_thinking=False)
    assert hidden[0] == {"type": "thinking", "thinking": "", "signature": "art:c:0"}
    assert hidden[1:4] == blocks(pieces, "art:c:0")[1:4]


def test_nothing_said_is_no_block() -> None:
    assert blocks(["", Thought("")], "art:c:0") == []


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        ('{"x": NaN, "y": [-Infinity, 1e999, 2.5]}', {"x": None, "y": [None, None, 2.5]}),
        ("[1]", {"arguments": [1]}),
        ("not json", {"arguments": "not json"}),
    ],
)
def test_arguments_that_json_or_anthropic_has_no_form_for(arguments: str, given: object) -> None:
    found = blocks([call(arguments)], "art:c:0")[0]["input"]
    assert found == given
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize(
    ("finish", "stop", "pieces", "reason"),
    [
        ("stop", None, ["x"], "end_turn"),
        ("length", None, ["x"], "max_tokens"),
        ("cancelled", None, ["x"], "max_tokens"),
        ("stop", "END", ["x"], "stop_sequence"),
        ("tool_calls", None, [call("{}")], "tool_use"),
        ("stop", "END", [call("{}")], "tool_use"),
        ("length", None, [call("{}")], "max_tokens"),
    ],
)
def test_why_an_answer_ended(finish: str, stop: str | None, pieces: list[Piece], reason: str) -> None:
    assert stop_reason(Choice(0, pieces=pieces, finish_reason=finish, stop_sequence=stop)) == reason
