"""Whatever a request holds, it is parsed or refused with a reason; nothing else comes out of the parsers."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from art.errors import InvalidInput, UnsupportedOption
from art.server.calls import CallRequest
from art.server.dialects import anthropic_request, completions_request
from art.server.dialects.anthropic_request import parse_messages_request
from art.server.dialects.completions_request import parse_completions_request

JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "text", "name", "id", "keep", "edits", "x"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)
MESSAGES: dict[str, Any] = {
    "model": "m",
    "max_tokens": 10,
    "system": [{"type": "text", "text": "s"}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "t", "signature": "art:c:0"},
                {"type": "tool_use", "id": "t", "name": "look", "input": {"x": 1}},
            ],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "t", "content": "r", "is_error": False}],
        },
    ],
    "tools": [{"name": "look", "description": "d", "input_schema": {"type": "object"}, "type": "custom"}],
    "tool_choice": {"type": "tool", "name": "look", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 1024, "display": "omitted"},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {}}},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "stop_sequences": ["a"],
    "thread": {"type": "create"},
    "temperature": 0.5,
}
COMPLETION: dict[str, Any] = {
    "model": "m",
    "prompt": [[1, 2, 3]],
    "n": 2,
    "best_of": 2,
    "logprobs": 3,
    "stop": ["x"],
    "stream": True,
    "stream_options": {"include_usage": True},
}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [here for key, item in items for here in ((*path, key), *places(item, (*path, key)))]


@st.composite
def changed(draw: st.DrawFn, body: dict[str, Any], known: frozenset[str]) -> dict[str, Any]:
    """The request with something else, or nothing, in one to three places."""
    out = copy.deepcopy(body)
    for _ in range(draw(st.integers(1, 3))):
        *path, last = draw(st.sampled_from(places(out)))
        inside: Any = out
        for key in path:
            inside = inside[key]
        if isinstance(inside, dict) and draw(st.booleans()):
            del inside[last]
        else:
            inside[last] = draw(JSON)
        if not places(out):
            break
    for name in draw(st.lists(st.sampled_from(sorted(known)), max_size=2)):
        out[name] = draw(JSON)
    return out


@settings(max_examples=400, deadline=None)
@given(changed(MESSAGES, anthropic_request.KNOWN))
def test_messages_requests(body: dict[str, Any]) -> None:
    try:
        call = parse_messages_request(body).call
    except (InvalidInput, UnsupportedOption):
        return
    assert isinstance(call, CallRequest)
    assert call.digests()


@settings(max_examples=200, deadline=None)
@given(changed(COMPLETION, completions_request.KNOWN))
def test_completions_requests(body: dict[str, Any]) -> None:
    try:
        call = parse_completions_request(body).call
    except (InvalidInput, UnsupportedOption):
        return
    assert isinstance(call.prompt, str | tuple)
    assert call.prompt


def test_the_requests_themselves_are_parsed() -> None:
    assert parse_messages_request(MESSAGES).call.wishes
    assert parse_completions_request(COMPLETION).call.n == 2
