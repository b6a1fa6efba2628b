"""Anthropic Messages through the real SDK against a real server with the scripted engine.

Every answer is compared with the engine's own log: what it was given and what it sampled.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic.types import Message, ModelInfo, RawMessageStreamEvent
from chat_kit import THINKER, TOOLS, Served
from pydantic import TypeAdapter
from safetensors.numpy import load

from art.server.streaming import PING, write_events

LOOK: dict[str, Any] = {
    "name": "get_weather",
    "description": TOOLS[0]["function"]["description"],
    "input_schema": TOOLS[0]["function"]["parameters"],
}
TURN = r"[^<]*<\|im_end\|>\n<\|im_start\|>assistant\n$"
SCRIPT: dict[str, Any] = {
    "token_delay_ms": 1,
    "rules": [
        {"match": r"rainy<\|im_end\|>\n<\|im_start\|>assistant\n$", "replies": ["Oslo sunny, Rome rainy."]},
        {
            "match": f"two cities{TURN}",
            "replies": [
                "<think>\nI need both.\n</think>\n\nLet me see. "
                '<tool_call>{"name":  "get_weather", "arguments": {"city": "Oslo"}}</tool_call>\n'
                '<tool_call>{"name": "get_weather", "arguments": {"city": "Rome"}}</tool_call>'
            ],
        },
        {"match": f"think{TURN}", "replies": ["<think>\nWarm, I guess.\n</think>\n\nTake a hat."]},
        {"match": f"differ{TURN}", "replies": [f"<think>Thought {i}.</think>Yes." for i in range(8)]},
        {
            "match": f"must{TURN}",
            "replies": ['<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'],
        },
        {"match": f"as data{TURN}", "replies": ['{"warm": true}']},
        {"match": f"count{TURN}", "replies": ["one two three four five"]},
        {"match": f"slowly{TURN}", "replies": ["tick " * 160]},
        {"match": "fail", "error": {"code": "infra_error", "message": "the engine lost its mind"}},
    ],
    "default": "I do not know.",
}


@pytest.fixture(scope="module")
def thinking(start_art_server: Any, tiny_model_dir: Path, tmp_path_factory: Any) -> Iterator[Thinking]:
    log = tmp_path_factory.mktemp("anthropic") / "tokens.jsonl"
    server = start_art_server(script=SCRIPT, environment={"ART_ENGINE__TOKEN_LOG": str(log)})
    served = Thinking(server, str(tiny_model_dir))
    served.log = log
    served.register("tests", "alpha", chat_template=THINKER, reasoning_parser="think")
    served.register("tests", "plain")
    yield served
    server.stop()


class Thinking(Served):
    """A server whose model `tests/alpha` thinks and `tests/plain` does not."""

    log: Path

    def logged(self, prompt: list[int], sampled: list[int]) -> bool:
        """Whether the engine's own log has a request of this prompt and these tokens.

        Behind a stop string it may have sampled on.
        """
        rows = [json.loads(line) for line in self.log.read_text().splitlines()]
        return any(
            row["prompt_token_ids"] == prompt and row["token_ids"][: len(sampled)] == sampled for row in rows
        )

    def recorded(self, answer: Any) -> tuple[list[int], list[int]]:
        """Prompt and sampled tokens as the store has them, which are what the engine was given and sampled."""
        row = self.call_row(answer.art["call_id"])
        assert row["dialect"] == "anthropic.messages"
        ref = json.loads(row["blob"])
        raw = (Path(self.server.path) / "server" / "blobs" / ref["path"]).read_bytes()
        arrays = load(raw[ref["offset"] : ref["offset"] + ref["length"]])
        found = arrays["prompt_token_ids"].tolist(), arrays["c0.token_ids"].tolist()
        assert found[0] == answer.prompt_token_ids
        deadline = time.monotonic() + 10
        while not self.logged(*found):  # the engine writes a request down when it has ended there
            assert time.monotonic() < deadline, "the engine never sampled what was recorded"
            time.sleep(0.05)
        return found

    def sdk(self, opened: dict[str, Any] | None = None) -> anthropic.Anthropic:
        """The client of an agent: inside a rollout its base URL and scoped key, nothing else."""
        return anthropic.Anthropic(max_retries=0, timeout=60, **self.where(opened))

    def where(self, opened: dict[str, Any] | None = None) -> dict[str, str]:
        if opened is None:
            return {"base_url": self.server.url, "api_key": self.server.admin_key}
        return {"base_url": opened["base_url"].removesuffix("/v1"), "api_key": opened["api_key"]}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def ask(text: str, **options: Any) -> dict[str, Any]:
    return {"model": "tests/alpha", "max_tokens": 400, "messages": [user(text)], **options}


def comparable(answer: Any) -> dict[str, Any]:
    """A message without what differs from call to call."""
    data = answer.model_dump(exclude_none=True)
    for name in ("id", "art", "token_ids"):
        data.pop(name, None)
    for block in data["content"]:
        for name in ("id", "signature"):
            block.pop(name, None)
    return dict(data)


def continues(second: tuple[list[int], list[int]], first: tuple[list[int], list[int]]) -> bool:
    """Whether the second call's prompt begins with the first call's prompt and sampled tokens."""
    known = first[0] + first[1]
    return second[0][: len(known)] == known and len(second[0]) > len(known)


# -- answers and events


def test_an_answer_is_one_of_anthropics_own(thinking: Thinking) -> None:
    response = thinking.raw("POST", "/v1/messages", ask("think"))
    assert response.status_code == 200, response.text
    data = response.json()
    TypeAdapter(Message).validate_python(data)
    name = f"art:{data['art']['call_id']}:0"
    assert data["content"] == [
        {"type": "thinking", "thinking": data["content"][0]["thinking"], "signature": name},
        {"type": "text", "text": "Take a hat."},
    ]
    assert data["content"][0]["thinking"].strip() == "Warm, I guess."
    assert (data["stop_reason"], data["stop_sequence"]) == ("end_turn", None)
    assert data["model"] == data["art"]["version"] == "tests/alpha@0"
    usage = data["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == len(data["prompt_token_ids"])
    assert usage["output_tokens"] == len(data["token_ids"])


def test_a_stream_is_made_of_anthropics_own_events(thinking: Thinking) -> None:
    response = thinking.raw("POST", "/v1/messages", ask("two cities", tools=[LOOK], stream=True))
    assert response.headers["content-type"].startswith("text/event-stream")
    events = [
        (lines[0].removeprefix("event: "), json.loads(lines[1].removeprefix("data: ")))
        for lines in (event.split("\n") for event in response.text.strip().split("\n\n"))
    ]
    assert all(name == data["type"] for name, data in events)
    assert [name for name, _ in events[:3]] == ["message_start", "ping", "content_block_start"]
    adapter: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
    for name, data in events:
        if name != "ping":
            adapter.validate_python(data)
    kinds = [data["content_block"]["type"] for name, data in events if name == "content_block_start"]
    assert kinds == ["thinking", "text", "tool_use", "tool_use"]
    deltas = {data["delta"]["type"] for name, data in events if name == "content_block_delta"}
    assert deltas == {"thinking_delta", "signature_delta", "text_delta", "input_json_delta"}
    assert sum(data["delta"]["type"] == "text_delta" for n, data in events if n == "content_block_delta") > 5
    last, ended = events[-1][1], events[-2][1]
    assert (ended["type"], ended["delta"]["stop_reason"]) == ("message_delta", "tool_use")
    assert last["type"] == "message_stop"
    assert len(last["token_ids"]) == ended["usage"]["output_tokens"]
    assert last["prompt_token_ids"] == events[0][1]["message"]["prompt_token_ids"]
    assert last["art"] == events[0][1]["message"]["art"]


@pytest.mark.parametrize(
    "asked",
    [
        ask("think"),
        ask("think", max_tokens=12),
        ask("think", thinking={"type": "adaptive", "display": "omitted"}),
        ask("two cities", tools=[LOOK]),
        ask("two cities", tools=[LOOK], tool_choice={"type": "auto", "disable_parallel_tool_use": True}),
        ask("two cities", tools=[LOOK], tool_choice={"type": "none"}),
        ask("count", stop_sequences=["ee f", "never"], system="Be brief."),
    ],
    ids=["text", "cut", "omitted", "calls", "one call", "no call", "stop"],
)
def test_a_stream_says_what_an_answer_says(thinking: Thinking, asked: dict[str, Any]) -> None:
    whole = thinking.sdk().messages.create(**asked)
    with thinking.sdk().messages.stream(**asked) as events:
        streamed = events.get_final_message()

    async def asynchronous() -> tuple[Any, Any]:
        async with (
            anthropic.AsyncAnthropic(max_retries=0, **thinking.where()) as client,
            client.messages.stream(**asked) as stream,
        ):
            return await client.messages.create(**asked), await stream.get_final_message()

    for other in (streamed, *asyncio.run(asynchronous())):
        left, right = comparable(whole), comparable(other)
        for data in (left, right):
            for name in (
                "input_tokens",
                "cache_read_input_tokens",
            ):  # the second time, the cache knows the prompt
                data["usage"].pop(name)
        assert left == right
        assert thinking.recorded(other) == thinking.recorded(whole)


def test_what_ends_an_answer_is_told(thinking: Thinking) -> None:
    create = thinking.sdk().messages.create
    stopped = create(**ask("count", stop_sequences=["never", "ee f"]))
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "ee f")
    assert stopped.content[0].text == "one two thr"
    cut = create(**ask("count", max_tokens=5))
    assert (cut.stop_reason, cut.stop_sequence) == ("max_tokens", None)
    calls = create(**ask("two cities", tools=[LOOK]))
    assert calls.stop_reason == "tool_use"
    assert [block.input for block in calls.content if block.type == "tool_use"] == [
        {"city": "Oslo"},
        {"city": "Rome"},
    ]


@pytest.mark.parametrize(
    "choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}], ids=["any", "named"]
)
def test_a_call_can_be_demanded(thinking: Thinking, choice: dict[str, Any]) -> None:
    asked = ask("must", tools=[LOOK], tool_choice={**choice, "disable_parallel_tool_use": True})
    answer = thinking.sdk().messages.create(**asked)
    assert answer.stop_reason == "tool_use"
    assert [(block.name, block.input) for block in answer.content] == [("get_weather", {"city": "Oslo"})]
    # What does not follow is never given out as if it did.
    with pytest.raises(anthropic.APIStatusError):
        thinking.sdk().messages.create(**{**asked, "messages": [user("count")]})


def test_an_answer_can_be_demanded_as_data(thinking: Thinking) -> None:
    schema = {"type": "object", "properties": {"warm": {"type": "boolean"}}, "required": ["warm"]}
    form = {"format": {"type": "json_schema", "schema": schema}}
    answer = thinking.sdk().messages.create(**ask("as data", output_config=form))
    assert json.loads(answer.content[0].text) == {"warm": True}
    bad = {"format": {"type": "json_schema", "schema": {"type": "colour"}}}
    with pytest.raises(anthropic.BadRequestError):
        thinking.sdk().messages.create(**ask("as data", output_config=bad))


def test_silence_is_filled_with_pings() -> None:
    async def source() -> AsyncIterator[bytes]:
        yield b"one"
        await asyncio.sleep(0.2)
        yield b"two"

    async def collect() -> list[bytes]:
        out: list[bytes] = []

        async def write(item: bytes) -> None:
            out.append(item)

        await write_events(source(), write, seconds=0.05, sign=PING)
        return out

    found = asyncio.run(collect())
    assert found[0] == b"one"
    assert found[-1] == b"two"
    assert set(found[1:-1]) == {PING}


# -- memory


def loop(thinking: Thinking, call: Any) -> list[Any]:
    """A tool loop as agents write it: results in one message, the answer's blocks sent back as they came."""
    messages: list[Any] = [user("Weather of two cities")]
    answers = []
    for _ in range(3):
        answer = call(messages=messages, model="claude-x", max_tokens=400, tools=[LOOK])
        answers.append(answer)
        messages.append({"role": "assistant", "content": answer.content})
        results = [
            {
                "type": "tool_result",
                "tool_use_id": block.id,
                "content": [
                    {"type": "text", "text": {"Oslo": "sunny", "Rome": "rainy"}[block.input["city"]]}
                ],
            }
            for block in answer.content
            if block.type == "tool_use"
        ]
        messages.append({"role": "user", "content": results or "Now think"})
    return answers


@pytest.mark.parametrize("how", ["whole", "stream", "async"])
def test_a_tool_loop_goes_on_from_the_exact_tokens(thinking: Thinking, how: str) -> None:
    opened = thinking.open(sampling="caller")

    def streamed(**asked: Any) -> Any:
        with thinking.sdk(opened).messages.stream(**asked) as events:
            return events.get_final_message()

    def asynchronous(**asked: Any) -> Any:
        async def run() -> Any:
            async with anthropic.AsyncAnthropic(max_retries=0, **thinking.where(opened)) as client:
                return await client.messages.create(**asked)

        return asyncio.run(run())

    whole = thinking.sdk(opened).messages.create
    answers = loop(thinking, {"whole": whole, "stream": streamed, "async": asynchronous}[how])
    assert [answer.stop_reason for answer in answers] == ["tool_use", "end_turn", "end_turn"]
    assert answers[1].content[0].text == "Oslo sunny, Rome rainy."
    turns = [thinking.recorded(answer) for answer in answers]
    assert continues(turns[1], turns[0])
    assert continues(turns[2], turns[1])
    text = thinking.decode(turns[1][0])
    assert "<|im_start|>tool\nsunny<|im_end|>\n<|im_start|>tool\nrainy<|im_end|>" in text
    calls = thinking.rollout(opened["rollout_id"])["calls"]
    assert {call["branch"] for call in calls} == {0}
    assert [call["reused_token_count"] > 0 for call in calls] == [False, True, True]


def test_a_conversation_goes_on_in_another_dialect(thinking: Thinking) -> None:
    opened = thinking.open(sampling="caller")
    first = thinking.agent(opened).chat.completions.create(
        model="alpha", messages=[user("two cities")], tools=TOOLS, max_tokens=400
    )
    said = first.choices[0].message
    blocks = [{"type": "text", "text": said.content}]
    for call in said.tool_calls:
        given = json.loads(call.function.arguments)
        blocks.append({"type": "tool_use", "id": call.id, "name": call.function.name, "input": given})
    results = [
        {"type": "tool_result", "tool_use_id": call.id, "content": "rainy"} for call in said.tool_calls
    ]
    second = thinking.sdk(opened).messages.create(
        **ask("two cities", tools=[LOOK])
        | {
            "messages": [
                user("two cities"),
                {"role": "assistant", "content": blocks},
                {"role": "user", "content": results},
            ]
        }
    )
    known = first.prompt_token_ids + first.choices[0].token_ids
    assert second.prompt_token_ids[: len(known)] == known


@pytest.mark.parametrize("streamed", [False, True])
def test_the_sdks_own_tool_loop(thinking: Thinking, streamed: bool) -> None:
    """It keeps the conversation on the server: `thread`."""

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """The weather of a city."""
        return {"Oslo": "sunny", "Rome": "rainy"}[city]

    opened = thinking.open(sampling="caller")
    runner = thinking.sdk(opened).beta.messages.tool_runner(
        **ask("two cities", model="claude-x"), tools=[get_weather], stream=streamed
    )
    turns = [turn.get_final_message() if streamed else turn for turn in runner]
    assert [turn.stop_reason for turn in turns] == ["tool_use", "end_turn"]
    assert turns[1].content[0].text == "Oslo sunny, Rome rainy."
    assert continues(*(thinking.recorded(turn) for turn in reversed(turns)))


def test_a_thread_goes_on_where_its_answer_is_kept(thinking: Thinking) -> None:
    opened = thinking.open(sampling="caller")
    create = thinking.sdk(opened).beta.messages.create
    first = create(**ask("differ"), system="Be brief.", tools=[LOOK], thread={"type": "create"})
    more: dict[str, Any] = {"thread": {"type": "continue", "previous_message_id": first.id}}
    second = create(**ask("count"), **more, tool_choice={"type": "none"})
    assert continues(thinking.recorded(second), thinking.recorded(first))
    assert thinking.decode(second.prompt_token_ids).startswith("<|im_start|>system\nTools:")
    for change in ({"system": "Be long."}, {"tools": [LOOK]}):
        with pytest.raises(anthropic.BadRequestError, match="cannot be given anew"):
            create(**ask("count"), **more, **change)
    # Without a rollout's name, it belongs to the rollout of the answer.
    third = thinking.sdk().beta.messages.create(**ask("count"), **more)
    assert third.art["call_id"] in {
        call["call_id"] for call in thinking.rollout(opened["rollout_id"])["calls"]
    }
    # Another rollout's key does not see it, and the SDK sends the conversation anew.
    stranger = thinking.sdk(thinking.open(sampling="caller"))
    with pytest.raises(anthropic.NotFoundError) as hidden:
        stranger.beta.messages.create(**ask("count"), **more)
    assert hidden.value.body["error"]["details"] == {"error_code": "thread_not_found"}
    thread = stranger.beta.messages.thread(model="claude-x", max_tokens=100)
    thread.send(user("differ"))
    thread._client = thinking.sdk(thinking.open(sampling="caller"))
    moved = thread.send(user("count"))
    assert moved.content[0].text == "one two three four five"
    assert "differ" in thinking.decode(moved.prompt_token_ids)


def again(answer: Any, **thought: Any) -> list[dict[str, Any]]:
    """The conversation with the answer's thinking block changed."""
    blocks = [block.model_dump(exclude_none=True) for block in answer.content]
    blocks[0] |= thought
    return [user("differ"), {"role": "assistant", "content": blocks}, user("count")]


def test_thinking_that_comes_back_is_what_was_sampled(thinking: Thinking) -> None:
    opened = thinking.open(sampling="caller")
    create = thinking.sdk(opened).messages.create
    answers = [create(**ask("differ")) for _ in range(4)]
    assert {answer.content[1].text for answer in answers} == {"Yes."}
    sampled = [thinking.recorded(answer) for answer in answers]
    other = next(i for i in range(4) if sampled[i][1] != sampled[0][1])

    # Whole, without its text, and not at all.
    for messages in (again(answers[0]), again(answers[0], thinking="")):
        assert continues(thinking.recorded(create(**ask("", messages=messages))), sampled[0])
    omitted = {"thinking": {"type": "adaptive", "display": "omitted"}}
    hidden = create(**ask("differ", **omitted))
    assert hidden.content[0].thinking == ""
    sent_back = create(**ask("", messages=again(hidden), **omitted))
    assert continues(thinking.recorded(sent_back), thinking.recorded(hidden))
    dropped = again(answers[3])
    del dropped[1]["content"][0]
    kept = thinking.recorded(create(**ask("", messages=dropped)))
    assert any(continues(kept, known) for known in (*sampled, thinking.recorded(hidden)))

    # Changed, or another's: a branch, rendered as the client says it.
    before = thinking.rollout(opened["rollout_id"])["calls"]
    for thought in (
        {"thinking": "I never thought this."},
        {"signature": answers[other].content[0].signature},
    ):
        create(**ask("", messages=again(answers[0], **thought)))
    changed = thinking.rollout(opened["rollout_id"])["calls"][len(before) :]
    assert [(call["parent_call_id"], call["reused_token_count"]) for call in changed] == [(None, 0)] * 2
    assert not {call["branch"] for call in changed} & {call["branch"] for call in before}


def test_thinking_is_switched_where_the_template_has_a_switch(thinking: Thinking) -> None:
    off = {"thinking": {"type": "disabled"}}
    on = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
    create = thinking.sdk().messages.create
    quiet = thinking.decode(create(**ask("count", **off)).prompt_token_ids)
    assert quiet.endswith("<think>\n\n</think>\n\n")
    assert not thinking.decode(create(**ask("count", **on)).prompt_token_ids).endswith("</think>\n\n")
    # Switched in the middle, it opens the next turn only: no branch.
    opened = thinking.open(sampling="caller")
    agent = thinking.sdk(opened).messages.create
    first = agent(**ask("differ", **on))
    second = agent(**ask("", messages=again(first), **off))
    assert continues(thinking.recorded(second), thinking.recorded(first))
    assert thinking.decode(second.prompt_token_ids).endswith("<think>\n\n</think>\n\n")
    assert {call["branch"] for call in thinking.rollout(opened["rollout_id"])["calls"]} == {0}
    # Unchanged agents ask for it whatever the model is.
    plain = [create(**ask("count", **wish, model="tests/plain")) for wish in (on, off, {})]
    assert len({tuple(answer.prompt_token_ids) for answer in plain}) == 1


# -- counting


def test_counted_tokens_are_those_that_would_be_served(thinking: Thinking) -> None:
    opened = thinking.open(sampling="caller")
    client = thinking.sdk(opened)
    asked = {"model": "claude-x", "messages": [user("think")], "system": "Be brief.", "tools": [LOOK]}
    counted = client.messages.count_tokens(**asked).input_tokens
    answer = client.messages.create(**asked, max_tokens=400)
    assert counted == len(answer.prompt_token_ids)
    asked["messages"] = [user("think"), {"role": "assistant", "content": answer.content}, user("count")]
    counted = client.messages.count_tokens(**asked).input_tokens
    assert counted == len(client.messages.create(**asked, max_tokens=400).prompt_token_ids)
    assert len(thinking.rollout(opened["rollout_id"])["calls"]) == 2
    # Without a rollout, too; and past the context, where the call itself is refused.
    long = {"model": "tests/alpha", "messages": [user("word " * 2000)]}
    assert thinking.sdk().messages.count_tokens(**long).input_tokens > 10_000
    with pytest.raises(anthropic.BadRequestError, match="prompt has"):
        thinking.sdk().messages.create(**long, max_tokens=5)
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        thinking.sdk().messages.count_tokens(**long, extra_body={"max_tokens": 5})


# -- errors and keys


def test_errors_are_anthropics(thinking: Thinking) -> None:
    client = thinking.sdk()
    with pytest.raises(anthropic.AuthenticationError) as wrong:
        anthropic.Anthropic(base_url=thinking.server.url, api_key="no", max_retries=0).messages.create(
            **ask("hi")
        )
    assert wrong.value.body["error"]["type"] == "authentication_error"
    with pytest.raises(anthropic.NotFoundError) as unknown:
        client.messages.create(**ask("hi", model="tests/nobody"))
    assert unknown.value.body["error"]["type"] == "not_found_error"
    image = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    with pytest.raises(anthropic.BadRequestError, match="takes text only") as refused:
        client.messages.create(**ask("", messages=[{"role": "user", "content": [image]}]))
    assert refused.value.body["error"]["type"] == "invalid_request_error"
    with pytest.raises(anthropic.APIStatusError, match="lost its mind") as failed:
        client.messages.create(**ask("fail"))
    assert failed.value.body["error"]["type"] == "overloaded_error"
    with (
        pytest.raises(anthropic.APIStatusError, match="lost its mind"),
        client.messages.stream(**ask("fail")) as events,
    ):
        events.get_final_message()
    opened = thinking.open()
    thinking.api("POST", f"rollouts/{opened['rollout_id']}/finish", {})
    with pytest.raises(anthropic.ConflictError, match="has ended"):
        thinking.sdk(opened).messages.create(**ask("hi"))


def test_models_are_listed_for_anthropics_sdk_too(thinking: Thinking) -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(ModelInfo)
    found = {model.id: model for model in thinking.sdk().models.list()}
    assert {"tests/alpha", "tests/plain"} <= set(found)
    one = thinking.sdk().models.retrieve("tests/alpha")
    for model in (one, found["tests/plain"]):
        assert adapter.validate_python(model.to_dict()).lifecycle == "active"
    assert {model.id for model in thinking.client().models.list()} == set(found)


def test_either_of_anthropics_headers_carries_the_key(thinking: Thinking) -> None:
    opened = thinking.open()
    where = thinking.where(opened)
    bearer = anthropic.Anthropic(base_url=where["base_url"], auth_token=where["api_key"], max_retries=0)
    answer = bearer.messages.create(
        **ask("count", model="claude-x"), extra_headers={"anthropic-beta": "interleaved-thinking-2025-05-14"}
    )
    assert answer.content[0].text == "one two three four five"


def test_an_engine_that_dies_is_told_in_the_stream(thinking: Thinking) -> None:
    """The last test of its server: the next one would wait for the engine's restart."""
    with thinking.sdk().messages.stream(**ask("slowly")) as events:
        next(event for event in events if event.type == "text")
        engine = next(w for w in thinking.api("GET", "health")["workers"] if w["name"] == "engine")
        os.kill(engine["pid"], signal.SIGKILL)
        with pytest.raises(anthropic.APIStatusError, match="engine process ended") as caught:
            events.get_final_message()
    assert caught.value.body["error"]["code"] == "worker_died"
