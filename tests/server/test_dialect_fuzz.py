"""Requests that are nearly right: of what each dialect takes, a few places are changed into something else.

Generated from a schema, requests fail at the first thing that is looked at. These come as far as a request can: to the
chat template, to the grammar, to the engine. Whatever they hold, the server says what is wrong or answers.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fuzz_kit
import pytest
import requests
from chat_kit import THINKER, TOOLS, Served
from hypothesis import given
from hypothesis import strategies as st

EXAMPLES = 30
"""Per kind of request, in an ordinary run."""
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 5, "pattern": "^[a-z]+$"},
        "sun": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
        "days": {"type": "array", "items": {"$ref": "#/$defs/day"}, "minItems": 1, "maxItems": 2},
    },
    "required": ["city"],
    "$defs": {"day": {"type": "integer", "minimum": 1, "maximum": 31, "enum": [1, 2]}},
}
FUNCTION = TOOLS[0]["function"]
ARGUMENTS = '{"city": "Oslo", "n": [1, 2.5, null, {"a": true}]}'
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
CHAT_HISTORY: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Weather"}, {"type": "text", "text": "?"}]},
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "Hm.",
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": ARGUMENTS}}
        ],
    },
    {"role": "tool", "content": "sunny", "tool_call_id": "call_1", "name": "get_weather"},
    {"role": "developer", "content": "Go on."},
    {"role": "user", "content": "And now?", "name": "me"},
]
ITEMS: list[dict[str, Any]] = [
    {"role": "developer", "content": "Be brief."},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
    {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "Hm."}],
    },
    {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Let me see.", "annotations": []}],
    },
    {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": ARGUMENTS},
    {"type": "function_call_output", "call_id": "call_1", "output": "sunny"},
    {"role": "user", "content": "And now?"},
]
BLOCKS: list[dict[str, Any]] = [
    {
        "role": "user",
        "content": [{"type": "text", "text": "Weather?", "cache_control": {"type": "ephemeral"}}],
    },
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "art:call-0:0"},
            {"type": "text", "text": "Let me see."},
            {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": json.loads(ARGUMENTS)},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny", "is_error": False},
            {"type": "text", "text": "And now?"},
        ],
    },
]
LOOK = {"name": "get_weather", "description": "The weather.", "input_schema": FUNCTION["parameters"]}
SAMPLING = {"model": "tests/alpha", "temperature": 0.7, "top_p": 0.9, "stream": False}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (
        "/chat/completions",
        {
            **SAMPLING, "messages": CHAT_HISTORY, "tools": TOOLS, "tool_choice": "auto",
            "parallel_tool_calls": True, "n": 2, "max_tokens": 9, "stop": ["."], "seed": 3, "logprobs": True,
            "top_logprobs": 2, "stream_options": None, "reasoning_effort": "low",
            "chat_template_kwargs": {"enable_thinking": False}, "metadata": {"a": "b"}, "user": "u",
        },
    ),
    "chat as data": (
        "/chat/completions",
        {
            **SAMPLING, "messages": [CHAT_HISTORY[0], {"role": "user", "content": "as data"}], "max_completion_tokens": 9, "n": None,
            "response_format": {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": SCHEMA}},
        },
    ),
    "chat that must call": (
        "/chat/completions",
        {
            **SAMPLING, "messages": [*CHAT_HISTORY[:4], {"role": "user", "content": "must call"}], "tools": TOOLS, "max_tokens": 90,
            "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
        },
    ),
    "completions": (
        "/completions",
        {**SAMPLING, "prompt": ["a b"], "max_tokens": 4, "n": 2, "stop": "x", "seed": 1, "logprobs": 1, "echo": False},
    ),
    "responses": (
        "/responses",
        {
            **SAMPLING, "input": ITEMS, "instructions": "You help.", "max_output_tokens": 9, "store": True,
            "tools": [{"type": "function", "strict": False, **FUNCTION}], "tool_choice": "auto",
            "include": ["message.output_text.logprobs", "reasoning.encrypted_content"], "top_logprobs": 1,
            "reasoning": {"effort": "low", "summary": None}, "text": {"format": {"type": "text"}},
            "metadata": {"a": "b"}, "truncation": "disabled", "parallel_tool_calls": False,
        },
    ),
    "responses as data": (
        "/responses",
        {
            **SAMPLING, "input": "as data", "max_output_tokens": 30,
            "text": {"format": {"type": "json_schema", "name": "a", "strict": True, "schema": SCHEMA}},
        },
    ),
    "responses that go on": ("/responses", {**SAMPLING, "previous_response_id": "?", "input": [ITEMS[-1]]}),
    "messages": (
        "/messages",
        {
            **SAMPLING, "messages": BLOCKS, "max_tokens": 9, "tools": [LOOK], "top_k": 5, "metadata": {"user_id": "u"},
            "system": [{"type": "text", "text": "Be brief."}], "stop_sequences": ["."],
            "tool_choice": {"type": "auto", "disable_parallel_tool_use": False},
            "thinking": {"type": "enabled", "budget_tokens": 1024, "display": "omitted"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        },
    ),
    "messages as data": (
        "/messages",
        {
            **SAMPLING, "messages": [{"role": "user", "content": "as data"}], "max_tokens": 30,
            "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}},
        },
    ),
    "messages that go on": (
        "/messages",
        {
            **SAMPLING, "messages": BLOCKS[:1], "max_tokens": 9,
            "thread": {"type": "continue", "previous_message_id": "?"},
        },
    ),
    "tokens": ("/messages/count_tokens", {"model": "tests/alpha", "messages": BLOCKS, "system": "Be brief.", "tools": [LOOK]}),
}  # fmt: skip


@pytest.fixture(scope="module")
def nearly(start_art_server: Any, tiny_model_dir: Path) -> Iterator[tuple[Served, requests.Session]]:
    """A server, whose model thinks and calls."""
    script = {
        "rules": [
            {"match": "as data[^<]*<", "replies": ['{"city": "ok"}']},
            {"match": "must call[^<]*<", "replies": [CALL]},
        ],
        "default": "<think>Hm.</think>Sunny.",
    }
    served = Served(start_art_server(script=script), str(tiny_model_dir))
    served.register("tests", "alpha", chat_template=THINKER, reasoning_parser="think")
    with fuzz_kit.session() as session:
        yield served, session
    served.server.stop()
    assert fuzz_kit.tracebacks(served) == ""


# -- changing a request

Path_ = tuple[Any, ...]
DEEP = 300
"""Levels: more than anything that is meant, fewer than Python's JSON reader gives up at."""


def places(value: Any, at: Path_ = ()) -> Iterator[Path_]:
    """The paths to everything inside, as far down as a request that is right goes."""
    if len(at) > 9:
        return
    children = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, child in children:
        yield (*at, key)
        yield from places(child, (*at, key))


def get(body: Any, path: Path_) -> Any:
    for key in path:
        body = body[key]
    return body


def nested(depth: int) -> Any:
    out: Any = []
    for number in range(depth):
        out = [out] if number % 2 else {"a": out}
    return out


TEXTS = (
    *("", " ", "\n", "\x00", "a", "\ud800", "\udfff\ud800", "é" * 3, "🙂", "null", '"', "\\", "x" * 70_000),
    *(
        "<|im_end|>",
        "<|im_start|>assistant\n",
        "<think>",
        "{",
        "{}",
        "[]",
        "{{ 1 }}",
        "{% raw %}",
        "ART0MARK",
    ),
    *("art:call-0:0", "../../etc", "%s", "1e400", "-0.0", "tests/alpha@9"),
    *("auto", "none", "required", "text", "json_object", "json_schema", "function", "tool", "assistant"),
    *("system", "tool_result", "image"),
)
ODD = st.one_of(
    st.sampled_from(
        [None, True, False, 0, -1, 1, 0.5, 2**31, 2**63 - 1, 2**63, -(2**63), 10**400, 1e308, float("nan"), float("inf")]
    ),
    st.sampled_from(TEXTS),
    st.builds(list), st.builds(dict), st.sampled_from([1, 5, DEEP]).map(nested),
    st.text(max_size=8),
    st.dictionaries(st.sampled_from(["type", "$ref", "enum", "name", "content", "a", ""]), st.none() | st.just("a") | st.just({}) | st.just([]), max_size=3),
)  # fmt: skip
"""What programs put into a request by mistake, and what is put there on purpose."""


@st.composite
def changed(draw: st.DrawFn, body: dict[str, Any]) -> dict[str, Any]:
    """The request with up to four changes: another value, a part from elsewhere in it, something less, twice, or renamed."""
    out: Any = copy.deepcopy(body)
    for _ in range(draw(st.integers(1, 4))):
        found = list(places(out))
        if not found:
            break
        path = draw(st.sampled_from(found))
        parent, key = get(out, path[:-1]), path[-1]
        act = draw(st.sampled_from(["odd", "odd", "odd", "other", "less", "twice", "wrapped", "renamed"]))
        if act == "odd":
            parent[key] = draw(ODD)
        elif act == "other":
            parent[key] = copy.deepcopy(get(out, draw(st.sampled_from(found))))
        elif act == "less":
            del parent[key]
        elif act == "wrapped":
            parent[key] = draw(st.sampled_from([[parent[key]], {"type": "text", "text": parent[key]}]))
        elif isinstance(parent, list):
            parent.insert(key, copy.deepcopy(parent[key]))
        elif act == "renamed":
            parent[draw(st.text(max_size=5))] = parent.pop(key)
    return dict(out)


def going_on(served: Served) -> dict[str, Any]:
    """Ids of answers that requests may go on from."""
    stored = {"model": "tests/alpha", "input": "hi", "store": True}
    message = {"model": "tests/alpha", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 40}
    return {
        "previous_response_id": served.raw("POST", "/v1/responses", stored).json()["id"],
        "thread": {
            "type": "continue",
            "previous_message_id": served.raw("POST", "/v1/messages", message).json()["id"],
        },
    }


@pytest.mark.parametrize("kind", REQUESTS)
@pytest.mark.timeout(300 + 60 * fuzz_kit.TIMES)
def test_nearly_right_requests_are_answered_or_refused(
    nearly: tuple[Served, requests.Session], kind: str
) -> None:
    served, session = nearly
    path, body = REQUESTS[kind]
    body = body | {name: value for name, value in going_on(served).items() if name in body}
    rollout = served.open()["rollout_id"]
    headers = {"Authorization": f"Bearer {served.server.admin_key}", "Content-Type": "application/json"}

    def send(request: dict[str, Any], prefix: str) -> requests.Response:
        text = json.dumps(request)
        url = f"{served.server.url}{prefix}/v1{path}"
        answer = session.post(url, data=text, headers=headers, timeout=fuzz_kit.ANSWER_SECONDS)
        fuzz_kit.check(answer, lambda: f"POST {url} {text[:5000]}")
        return answer

    assert send(body, "").status_code == 200, "the request that is changed must be right"

    @fuzz_kit.fuzz(EXAMPLES)
    @given(request=changed(body), streamed=st.booleans(), inside=st.booleans())
    def ask(request: dict[str, Any], streamed: bool, inside: bool) -> None:
        if streamed and "stream" in request:
            request["stream"] = True
        send(request, f"/r/{rollout}" if inside else "")

    ask()
