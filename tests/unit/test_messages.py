"""Reading requests: every option is used, accepted as harmless, or refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from art.errors import ArtError, InvalidInput, UnsupportedOption
from art.server.dialects.chat_request import HARMLESS, NEUTRAL, parse_chat_request
from art.types.messages import Message, parse_messages, parse_tools, template_messages

HI = [{"role": "user", "content": "hi"}]


def request(**options: Any) -> dict[str, Any]:
    return {"model": "m", "messages": HI, **options}


def test_messages_are_brought_into_one_form() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    messages = parse_messages(
        [
            {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {
                "role": "assistant",
                "tool_calls": [call],
                "refusal": None,
                "audio": None,
                "reasoning_content": "why",
            },
            {"role": "tool", "tool_call_id": "c", "content": ""},
        ]
    )
    assert messages[0] == Message(role="system", content="ab")
    assert messages[1].reasoning == "why"
    assert messages[1].tool_calls[0].function.arguments == '{"a": 1}'
    assert parse_messages([message.to_openai() for message in messages]) == messages
    assert [item["content"] for item in template_messages(messages)] == ["ab", "", ""]
    assert template_messages(messages)[1]["tool_calls"][0]["function"]["arguments"] == {"a": 1}


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"role": "user"}, "needs content"),
        ({"role": "user", "content": 5}, "content"),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "input_audio"),
        ({"role": "user", "content": ["text"]}, "str"),
        (
            {"role": "user", "content": "x", "tool_calls": [{"function": {"name": "f"}}]},
            "cannot hold tool calls",
        ),
        ({"role": "assistant", "function_call": {"name": "f"}}, "function_call"),
        ({"role": "assistant", "tool_calls": [{"type": "custom"}]}, "tool_calls"),
        ("hello", "messages[0]"),
    ],
)
def test_a_message_that_cannot_be_right_is_named(message: Any, words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_messages([message])
    assert words in str(caught.value)
    assert "messages[0]" in str(caught.value)


def test_tools_keep_what_the_client_wrote() -> None:
    written = {
        "type": "function",
        "function": {"name": "f", "strict": True, "parameters": {"x": {"$ref": "y"}}},
    }
    assert [tool.to_template() for tool in parse_tools([written])] == [written]
    assert parse_tools(None) == []
    with pytest.raises(InvalidInput, match=r"tools\[0\]"):
        parse_tools([{"type": "web_search"}])


def test_sampling_options_are_those_that_were_given() -> None:
    chat = parse_chat_request(
        request(temperature=0, top_p=None, stop="x", max_tokens=5, max_completion_tokens=7, top_k=-1, seed=3)
    )
    assert chat.call.asked == {"temperature": 0.0, "stop": ("x",), "max_tokens": 7, "top_k": 0, "seed": 3}
    assert parse_chat_request(request()).call.asked == {}


def test_harmless_options_are_accepted_whatever_they_hold() -> None:
    parse_chat_request(request(**dict.fromkeys(HARMLESS, "anything")))


def test_neutral_values_are_accepted_and_others_refused_by_name() -> None:
    for name, values in NEUTRAL.items():
        for value in values:
            parse_chat_request(request(**{name: value}))
        with pytest.raises(UnsupportedOption, match=name):
            parse_chat_request(request(**{name: "something else"}))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"modle": "x"}, "did you mean `model`"),
        ({"guided_regex": "a+"}, "guided_regex"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"n": 1000}, "`n`"),
        ({"n": "2"}, "`n`"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"stream": "yes"}, "stream"),
        ({"stream": True, "stream_options": {"colour": 1}}, "colour"),
        ({"response_format": {"type": "grammar"}}, "grammar"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "json_schema.schema"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice"),
        ({"chat_template_kwargs": {"messages": []}}, "messages"),
        ({"model": ""}, "model"),
        ({"messages": "hi"}, "messages"),
    ],
)
def test_what_cannot_be_followed_is_refused_by_name(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ArtError) as caught:
        parse_chat_request(request(**options))
    assert caught.value.status == 400
    assert words in str(caught.value)


def test_a_body_that_is_no_object() -> None:
    with pytest.raises(InvalidInput):
        parse_chat_request([])
