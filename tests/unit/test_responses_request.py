"""A Responses request, option by option: whatever comes, it is parsed or refused for a reason."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from art.errors import InvalidInput, UnsupportedOption
from art.server.dialects.responses_request import KNOWN, parse_responses_request
from art.types.messages import ToolChoice

TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": None}
WORDS = [
    *(
        "auto",
        "none",
        "required",
        "function",
        "message",
        "function_call",
        "function_call_output",
        "reasoning",
    ),
    *(
        "item_reference",
        "input_text",
        "output_text",
        "input_image",
        "json_schema",
        "allowed_tools",
        "user",
        "x",
    ),
]
NAMES = [
    "type",
    "role",
    "content",
    "text",
    "output",
    "call_id",
    "id",
    "name",
    "arguments",
    "format",
    "schema",
    "tools",
]

values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.floats(), st.sampled_from(WORDS)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(NAMES), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(sorted(KNOWN)), values, max_size=5))
@example({"input": [{"role": "user", "content": [{"type": []}]}]})
@example({"tools": [{"type": {}}]})
def test_a_request_is_parsed_or_refused(options: dict[str, Any]) -> None:
    try:
        ask = parse_responses_request({"model": "m", "input": "hi", **options})
    except (InvalidInput, UnsupportedOption):
        return
    assert ask.call.kept["store"] is (options.get("store") is not False)


def test_tools_are_those_of_chat() -> None:
    ask = parse_responses_request({"model": "m", "input": "hi", "tools": [TOOL]})
    (tool,) = ask.call.tools
    function = {"name": "f", "parameters": {"type": "object"}}
    assert tool.to_template() == {"type": "function", "function": function}

    neutral = {"defer_loading": False, "async": None, "allowed_callers": ["direct"]}
    same = parse_responses_request({"model": "m", "input": "hi", "tools": [TOOL | neutral]})
    assert same.call.tools == ask.call.tools
    with pytest.raises(UnsupportedOption, match="`defer_loading`"):
        parse_responses_request({"model": "m", "input": "hi", "tools": [TOOL | {"defer_loading": True}]})


@pytest.mark.parametrize(
    ("given_choice", "meant"),
    [
        (None, ToolChoice()),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("required")),
        ({"type": "function", "name": "f"}, ToolChoice("named", "f")),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
            ToolChoice("auto", allowed=("f",)),
        ),
    ],
)
def test_tool_choices(given_choice: Any, meant: ToolChoice) -> None:
    ask = parse_responses_request({"model": "m", "input": "hi", "tools": [TOOL], "tool_choice": given_choice})
    assert ask.call.tool_choice == meant


def test_a_request_without_input_continues_a_response() -> None:
    assert parse_responses_request({"model": "m", "previous_response_id": "resp_1"}).items == []
    with pytest.raises(InvalidInput, match="`input`"):
        parse_responses_request({"model": "m"})
