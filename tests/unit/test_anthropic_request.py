"""Anthropic requests -> the internal form, option by option and block by block."""

from __future__ import annotations

import json
from typing import Any

import pytest

from art.errors import ArtError, InvalidInput, UnsupportedOption
from art.server.dialects.anthropic_request import parse_count_request, parse_messages_request
from art.types.messages import Message, ToolChoice

TOOL: dict[str, Any] = {"name": "look", "description": "Looks.", "input_schema": {"type": "object"}}
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}


def body(*messages: dict[str, Any], **options: Any) -> dict[str, Any]:
    said = list(messages) or [{"role": "user", "content": "hi"}]
    return {"model": "m", "max_tokens": 10, "messages": said, **options}


def messages_of(*messages: dict[str, Any], **options: Any) -> list[Message]:
    return parse_messages_request(body(*messages, **options)).call.messages


def test_a_tool_loop_becomes_messages_in_order() -> None:
    parsed = messages_of(
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "art:call-1:0"},
                {"type": "redacted_thinking", "data": "xyz"},
                {"type": "text", "text": "I "},
                {"type": "text", "text": "look."},
                {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": "ü"}},
                {"type": "tool_use", "id": "t2", "name": "look", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t2", "content": [{"type": "text", "text": "two"}]},
                {"type": "tool_result", "tool_use_id": "t1", "content": "one", "is_error": True},
                {"type": "text", "text": "Go on.", "cache_control": {"type": "ephemeral"}},
            ],
        },
        system=[
            {"type": "text", "text": "s1", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "s2"},
        ],
    )
    assert [(m.role, m.content, m.tool_call_id) for m in parsed] == [
        ("system", "s1\ns2", None),
        ("user", "a\nb", None),
        ("assistant", "I look.", None),
        ("tool", "two", "t2"),
        ("tool", "Error: one", "t1"),
        ("user", "Go on.", None),
    ]
    answer = parsed[2]
    assert answer.reasoning == "Hm."
    assert answer.recorded == "art:call-1:0"
    assert [(call.id, json.loads(call.function.arguments)) for call in answer.tool_calls] == [
        ("t1", {"at": "ü"}),
        ("t2", {}),
    ]


@pytest.mark.parametrize(
    ("signatures", "recorded"),
    [
        (["EqQB"], None),  # given by somebody else
        (["art:c:0", "art:c:0"], "art:c:0"),
        (["art:c:0", "art:d:0"], "art:c:0 art:d:0"),  # two answers in one: known as neither
    ],
)
def test_signatures_name_the_answer(signatures: list[str], recorded: str | None) -> None:
    blocks = [{"type": "thinking", "thinking": "", "signature": name} for name in signatures]
    answer = messages_of({"role": "assistant", "content": blocks}, {"role": "user", "content": "go on"})[0]
    assert answer.recorded == recorded
    assert answer.reasoning is None  # omitted, which changes nothing


def test_a_tool_result_without_content_and_a_failed_one() -> None:
    def result(**fields: Any) -> str | None:
        block = {"type": "tool_result", "tool_use_id": "t", **fields}
        return messages_of({"role": "user", "content": [block]})[0].content

    assert result() == ""
    assert result(is_error=True) == "Error"
    assert result(is_error=True, content="error: no such file") == "error: no such file"
    assert result(is_error=False, content="fine") == "fine"


def test_options_become_sampling_and_wishes() -> None:
    ask = parse_messages_request(
        body(
            tools=[
                {**TOOL, "type": "custom", "cache_control": {"type": "ephemeral"}, "defer_loading": False}
            ],
            tool_choice={"type": "tool", "name": "look", "disable_parallel_tool_use": True},
            thinking={"type": "enabled", "budget_tokens": 2048, "display": "omitted"},
            output_config={"effort": "max", "format": {"type": "json_schema", "schema": SCHEMA}},
            stop_sequences=["END"],
            temperature=0.5,
            top_p=0.9,
            top_k=40,
            stream=True,
            metadata={"user_id": "u"},
            service_tier="auto",
            context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        )
    )
    call = ask.call
    assert call.dialect == "anthropic.messages"
    assert call.asked == {"max_tokens": 10, "temperature": 0.5, "top_p": 0.9, "top_k": 40, "stop": ("END",)}
    assert call.wishes == {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"}
    assert call.tool_choice == ToolChoice("named", "look")
    assert not call.parallel_tool_calls
    assert call.response_schema == SCHEMA
    assert call.tools[0].to_template() == {
        "type": "function",
        "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object"}},
    }
    assert (ask.stream, ask.show_thinking) == (True, False)


def test_what_is_not_said_is_left_to_the_model() -> None:
    ask = parse_messages_request(body(thinking={"type": "adaptive"}, tool_choice={"type": "auto"}))
    assert ask.call.wishes == {}
    assert ask.call.tool_choice == ToolChoice()
    assert ask.call.parallel_tool_calls
    assert ask.call.asked == {"max_tokens": 10}
    assert ask.show_thinking


REFUSED: list[tuple[dict[str, Any], str]] = [
    (body(max_tokens=None), "max_tokens"),
    (body(max_tokens=0), "max_tokens"),
    (body(temprature=1), "did you mean `temperature`"),
    (body(model=""), "model"),
    (body(stop_sequences=[""]), "stop_sequences"),
    (body(stop_sequences="END"), "stop_sequences"),
    (body(container="c"), "container"),
    (body(mcp_servers=[{"url": "x"}]), "mcp_servers"),
    (body(speed="fast"), "speed"),
    (body(thread={"type": "fork"}), "thread"),
    (body(thread={"type": "continue"}), "thread"),
    (body(thread="create"), "thread"),
    (body(compaction={"type": "auto"}), "compaction"),
    (body(fallbacks=[{"model": "x"}]), "fallbacks"),
    (body(thinking={"type": "on"}), "thinking.type"),
    (body(thinking={"type": "enabled", "budget_tokens": "many"}), "budget_tokens"),
    (body(thinking={"type": "enabled", "display": "upside down"}), "thinking.display"),
    (body(thinking="on"), "thinking"),
    (body(output_config={"effort": "huge"}), "output_config.effort"),
    (body(output_config={"format": {"type": "grammar"}}), "output_config.format"),
    (body(output_config={"format": {"type": "json_schema"}}), "output_config.format.schema"),
    (body(output_config={"taste": 1}), "taste"),
    (body(context_management={"edits": [{"type": "clear_tool_uses_20250919"}]}), "clear_tool_uses"),
    (body(tools=[{"type": "web_search_20250305", "name": "web_search"}]), "web_search_20250305"),
    (body(tools=[{**TOOL, "defer_loading": True}]), "defer_loading"),
    (body(tools=[{**TOOL, "allowed_callers": ["code_execution_20250825"]}]), "allowed_callers"),
    (body(tools=[{**TOOL, "surprise": 1}]), "surprise"),
    (body(tools=[{"name": "look"}]), "tools[0].input_schema"),
    (body(tools=[{**TOOL, "name": ""}]), "tools[0]"),
    (body(tools=TOOL), "tools"),
    (body(tool_choice={"type": "any"}), "needs `tools`"),
    (body(tools=[TOOL], tool_choice={"type": "tool", "name": "hear"}), "hear"),
    (body(tools=[TOOL], tool_choice="any"), "tool_choice"),
    (body(tools=[TOOL], tool_choice={"type": "auto", "disable_parallel_tool_use": 1}), "disable_parallel"),
    (body({"role": "user", "content": [{"type": "image", "source": {}}]}), "text only"),
    (body({"role": "user", "content": [{"type": "document"}]}), "messages[0].content[0]"),
    (body({"role": "user", "content": [{"type": "server_tool_use"}]}), "server_tool_use"),
    (body({"role": "user", "content": [{"type": "tool_use"}]}), "tool_use"),
    (body({"role": "user", "content": [{"type": "tool_result", "content": "x"}]}), "tool_use_id"),
    (
        body(
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image"}]}],
            }
        ),
        "messages[0].content[0].content[0]",
    ),
    (
        body({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "is_error": "yes"}]}),
        "is_error",
    ),
    (body({"role": "user", "content": [{"text": "x"}]}), "content[0]"),
    (body({"role": "user", "content": 7}), "messages[0].content"),
    (body({"role": "user"}), "messages[0].content"),
    (body({"role": "tool", "content": "x"}), "messages[0].role"),
    (body({"role": "user", "content": "x"}, {"role": "assistant", "content": "Sure, "}), "assistant"),
    (
        body({"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": "x"}]}),
        "content[0].input",
    ),
    (body(system=[{"type": "image"}]), "system[0]"),
    (body(system=7), "system"),
    ({**body(), "messages": []}, "messages"),
]


@pytest.mark.parametrize(("request_body", "names"), REFUSED, ids=[names for _, names in REFUSED])
def test_what_cannot_be_followed_is_refused_by_name(request_body: dict[str, Any], names: str) -> None:
    with pytest.raises((InvalidInput, UnsupportedOption)) as caught:
        parse_messages_request(request_body)
    assert names in str(caught.value)
    assert caught.value.status == 400


def test_a_thread_names_the_answer_that_it_goes_on_from() -> None:
    assert parse_messages_request(body(thread={"type": "create"})).previous is None
    thread = {"type": "continue", "previous_message_id": "msg_1"}
    # Its tools are those of the thread, which only the store knows.
    ask = parse_messages_request(body(thread=thread, tool_choice={"type": "tool", "name": "look"}))
    assert ask.previous == "msg_1"


def test_the_older_place_of_an_output_format() -> None:
    form = {"type": "json_schema", "schema": SCHEMA}
    assert parse_messages_request(body(output_format=form)).call.response_schema == SCHEMA


def test_a_body_that_is_none() -> None:
    with pytest.raises(InvalidInput, match="JSON object"):
        parse_messages_request([])


def test_counting_takes_the_prompts_options_only() -> None:
    asked = body(tools=[TOOL], thinking={"type": "enabled", "budget_tokens": 1024})
    del asked["max_tokens"]
    assert parse_count_request(asked).tools[0].function.name == "look"
    with pytest.raises(ArtError, match="max_tokens"):
        parse_count_request(body())
