"""OpenAI Responses through the real SDK against a real server with the scripted engine, whose token log is the judge."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any, Literal

import openai
import pydantic
import pytest
from responses_kit import ENCRYPTED, LOGPROBS, TOOL, Logged, back, events, result, rounded, start, strict


@pytest.fixture(scope="module")
def served(start_art_server: Any, tiny_model_dir: Any, tmp_path_factory: Any) -> Iterator[Logged]:
    served = start(start_art_server, str(tiny_model_dir), tmp_path_factory.mktemp("responses"))
    yield served
    served.server.stop()


def ask(client: openai.OpenAI, said: Any, *, streamed: bool = False, **options: Any) -> Any:
    """The response, whole or accumulated by the SDK's helper from a stream."""
    asked: dict[str, Any] = {"model": "tests/alpha", "input": said, **options}
    if not streamed:
        return client.responses.create(**asked)
    with client.responses.stream(**asked) as stream:
        return stream.get_final_response()


def agent(served: Logged, **options: Any) -> openai.OpenAI:
    """A client inside a rollout of its own."""
    return served.agent(served.open(sampling="caller", **options))


# -- one answer


def test_an_answer_carries_its_tokens_and_its_call(served: Logged) -> None:
    asked = {"input": "count", "instructions": "Be short.", "metadata": {"run": "7"}, "temperature": 0.5}
    body = served.post(asked | {"include": [LOGPROBS], "top_logprobs": 2}).json()
    answer = strict(body)
    assert answer.output_text == "one two three four five"
    assert (answer.status, answer.model, answer.temperature) == ("completed", "tests/alpha@0", 0.5)
    assert (answer.instructions, answer.metadata) == ("Be short.", {"run": "7"})
    assert answer.id == f"resp_{body['art']['call_id']}"
    rows = answer.output[0].content[0].logprobs
    assert b"".join(bytes(row.bytes) for row in rows).decode() == answer.output_text
    assert [row.logprob for row in rows] == served.sampled(answer)["logprobs"][:-1]
    assert {len(row.top_logprobs) for row in rows} == {2}
    usage = answer.usage
    assert (usage.input_tokens, usage.output_tokens) == (len(body["prompt_token_ids"]), len(rows) + 1)
    row = served.call_row(body["art"]["call_id"])
    assert (row["dialect"], row["version"]) == ("openai.responses", "tests/alpha@0")
    stored = served.client().responses.retrieve(answer.id, include=[LOGPROBS])
    same = strict(json.loads(stored.model_dump_json(exclude_unset=True))).model_dump()
    for kept in ("completed_at", "output"):
        same.pop(kept)
    assert {name: value for name, value in answer.model_dump().items() if name in same} == same
    assert [row.logprob for row in stored.output[0].content[0].logprobs] == pytest.approx(
        [row.logprob for row in rows]
    )


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("greet me", "alpha"),
        ("two calls", "alpha"),
        ("mixed", "alpha"),
        ("look up", "thinker"),
        ("nothing", "alpha"),
    ],
)
def test_a_stream_says_what_an_answer_says(served: Logged, text: str, model: str) -> None:
    asked: dict[str, Any] = {"model": f"tests/{model}", "input": text, "seed": 5, "tools": [TOOL]}
    include = [LOGPROBS, ENCRYPTED]
    whole = served.post(asked | {"include": include}).json()
    told = events(served.post(asked | {"include": include, "stream": True}))
    assert [event["type"] for event in told[:2]] == ["response.created", "response.in_progress"]
    assert told[-1]["type"] == "response.completed"
    last = told[-1]["response"]
    assert _without_ids(last) == _without_ids(whole)
    assert last["output"] == [event["item"] for event in told if event["type"] == "response.output_item.done"]
    for index, item in enumerate(last["output"]):
        of_item = [event for event in told if event.get("output_index") == index]
        said = "".join(event["delta"] for event in of_item if event["type"].endswith(".delta"))
        assert said == (item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"])
        assert of_item[0]["type"] == "response.output_item.added"
        assert of_item[-1]["type"] == "response.output_item.done"
        assert {event["item_id"] for event in of_item[1:-1]} == {item["id"]}
    stored = served.raw("GET", f"/v1/responses/{last['id']}?include={LOGPROBS}&include[]={ENCRYPTED}").json()
    assert rounded(stored["output"]) == rounded(last["output"])
    assert stored["usage"] == last["usage"]


def _without_ids(body: dict[str, Any]) -> str:
    body = {
        name: value for name, value in body.items() if name not in ("created_at", "completed_at", "usage")
    }
    text = json.dumps(body).replace(body["art"]["call_id"], "")
    for item in body["output"]:
        text = text.replace(str(item.get("call_id")), "")
    return text


def test_a_stream_is_not_held_back(served: Logged) -> None:
    stream = served.client().responses.create(
        model="tests/alpha", input="slowly please", max_output_tokens=200, stream=True
    )
    deltas = [event for event in stream if event.type == "response.output_text.delta"]
    assert len(deltas) > 100


def test_an_answer_that_is_cut_off_is_incomplete(served: Logged) -> None:
    for streamed in (False, True):
        asked = {"input": "count", "max_output_tokens": 3, "stream": streamed}
        got = served.post(asked)
        body = events(got)[-1]["response"] if streamed else got.json()
        answer = strict(body)
        assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
        assert (answer.output_text, answer.output[0].status) == ("one", "incomplete")
        assert answer.usage.output_tokens == 3
        assert served.client().responses.retrieve(answer.id).status == "incomplete"


def test_the_async_client(served: Logged) -> None:
    async def run() -> None:
        async with openai.AsyncOpenAI(
            base_url=f"{served.server.url}/v1", api_key=served.server.admin_key, max_retries=0
        ) as client:
            whole = await client.responses.create(model="tests/alpha", input="count")
            async with client.responses.stream(model="tests/alpha", input="count") as stream:
                streamed = await stream.get_final_response()
            stored = await client.responses.retrieve(streamed.id)
            assert whole.output_text == streamed.output_text == stored.output_text

    asyncio.run(run())


class Place(pydantic.BaseModel):
    city: Literal["Oslo", "Rome"]


@pytest.mark.parametrize("streamed", [False, True])
def test_an_answer_follows_a_schema(served: Logged, streamed: bool) -> None:
    asked: dict[str, Any] = {"model": "tests/alpha", "input": "a place", "text_format": Place}
    if streamed:
        with served.client().responses.stream(**asked) as stream:
            answer = stream.get_final_response()
    else:
        answer = served.client().responses.parse(**asked)
    assert answer.output_parsed == Place(city="Oslo")
    assert answer.text.format.type == "json_schema"
    free = ask(served.client(), "a place", text={"format": {"type": "json_object"}})
    assert json.loads(free.output_text) == {"city": "Oslo"}


def test_tools_that_must_be_called(served: Logged) -> None:
    other = TOOL | {"name": "other"}
    named: dict[str, Any] = {"type": "function", "name": "other"}
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [named]}
    for choice in ("required", named, allowed):
        answer = ask(served.client(), "use it", tools=[TOOL, other], tool_choice=choice)
        given = answer.tool_choice
        assert choice == (given if isinstance(given, str) else given.model_dump(exclude_none=True))
        assert [(item.type, item.name) for item in answer.output] == [("function_call", "other")]
    # The engine would have said something else: it was held to the call.
    with pytest.raises(openai.BadRequestError, match="grammar"):
        ask(served.client(), "count", tools=[TOOL, other], tool_choice="required")
    none = ask(served.client(), "two calls", tools=[TOOL], tool_choice="none")
    assert [item.type for item in none.output] == ["message"]
    one = ask(served.client(), "two calls", tools=[TOOL], parallel_tool_calls=False)
    assert [item.type for item in one.output] == ["function_call"]


# -- conversations


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("mode", ["stateless", "without ids", "chained"])
def test_the_second_turn_continues_the_exact_tokens_of_the_first(
    served: Logged, mode: str, streamed: bool
) -> None:
    client = agent(served)
    said: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
    first = ask(client, said, tools=[TOOL], streamed=streamed)
    assert [item.type for item in first.output] == ["message", "function_call"]
    call = first.output[1]
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"})
    if mode == "chained":
        asked: dict[str, Any] = {"previous_response_id": first.id}
        second = ask(client, [result(call)], tools=[TOOL], streamed=streamed, **asked)
    else:
        without = ("id", "status") if mode == "without ids" else ()
        parts = [{"type": "input_text", "text": "sunny"}]
        said = [*said, *back(first.output, without=without), {**result(call), "output": parts}]
        second = ask(client, said, tools=[TOOL], streamed=streamed)
    assert second.output_text == "Take a hat, it is sunny."
    assert served.continues(second, first)


@pytest.mark.parametrize("order", ["together", "one by one"])
def test_parallel_calls_come_back_in_any_order(served: Logged, order: str) -> None:
    client = agent(served)
    first = ask(client, "two calls", tools=[TOOL])
    one, two = first.output
    said: list[Any] = [{"role": "user", "content": "two calls"}]
    if order == "together":
        said += [*back(first.output), result(one), result(two)]
    else:
        said += [*back([one]), result(one), *back([two]), result(two)]
    assert served.continues(ask(client, said, tools=[TOOL]), first)


@pytest.mark.parametrize("sent", ["whole", "sealed", "bare", "left out", "chained", "referenced"])
def test_reasoning_makes_the_round_trip(served: Logged, sent: str) -> None:
    client = agent(served, model="tests/thinker")
    options: dict[str, Any] = {"model": "tests/thinker", "tools": [TOOL], "include": [ENCRYPTED]}
    first = ask(client, "look up", **options)
    thought, text, call = first.output
    assert thought.content[0].text == "I need the weather."
    assert thought.encrypted_content == f"art:{first.art['call_id']}:0"
    assert text.content[0].text == "Wait. "
    assert 0 < first.usage.output_tokens_details.reasoning_tokens < first.usage.output_tokens
    said: list[Any] = [{"role": "user", "content": "look up"}]
    items = back(first.output)
    if sent == "sealed":
        items[0] = {"type": "reasoning", "summary": [], "encrypted_content": thought.encrypted_content}
    elif sent == "bare":
        items[0] = {"type": "reasoning", "summary": [], "id": thought.id}
    elif sent == "left out":
        items = back([text, call], without=("id",))
    elif sent == "referenced":
        items = [{"type": "item_reference", "id": item.id} for item in first.output]
    if sent == "chained":
        second = ask(client, [result(call)], previous_response_id=first.id, **options)
    else:
        second = ask(client, [*said, *items, result(call)], **options)
    assert served.continues(second, first)


def test_the_effort_is_a_variable_of_the_template(served: Logged) -> None:
    answer = ask(served.client(), "ponder", model="tests/thinker", reasoning={"effort": "high"})
    assert (answer.output_text, answer.reasoning.effort) == ("Hard.", "high")
    assert ask(served.client(), "ponder", reasoning={"effort": "high"}).status == "completed"
    log = (served.server.path / "server" / "logs" / "gateway.log").read_text()
    assert "reads none of reasoning_effort" in log


def test_instructions_are_not_carried_over(served: Logged) -> None:
    client = agent(served)
    first = ask(client, "count", instructions="Be short.")
    assert served.text(first).startswith("<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\ncount")
    again = ask(client, "count", instructions="Be short.", previous_response_id=first.id)
    assert served.continues(again, first)
    without = ask(client, "count", previous_response_id=again.id)
    answer = "<|im_start|>assistant\none two three four five<|im_end|>\n"
    turn = f"<|im_start|>user\ncount<|im_end|>\n{answer}"
    assert served.text(without) == turn * 2 + turn.removesuffix(answer) + "<|im_start|>assistant\n"
    other = ask(client, "count", instructions="Be long.", previous_response_id=first.id)
    assert served.text(other).startswith("<|im_start|>system\nBe long.<|im_end|>\n" + turn)


def test_a_conversation_forks_from_one_response(served: Logged) -> None:
    opened = served.open(sampling="caller")
    client = served.agent(opened)
    first = ask(client, "count")
    forks = [ask(client, text, previous_response_id=first.id) for text in ("a fruit", "greet me")]
    deeper = [ask(client, "count", previous_response_id=fork.id) for fork in forks]
    assert all(served.continues(fork, first) for fork in forks)
    assert all(served.continues(second, fork) for second, fork in zip(deeper, forks, strict=True))
    calls = {call["call_id"]: call for call in served.rollout(opened["rollout_id"])["calls"]}
    branches = [[calls[answer.art["call_id"]]["branch"] for answer in pair] for pair in (forks, deeper)]
    assert branches[0] == branches[1]
    assert len(set(branches[0])) == 2


def test_a_chain_is_one_conversation_without_a_rollout(served: Logged) -> None:
    twins = [ask(served.client(), "count") for _ in range(2)]  # the same words: only the id tells them apart
    seconds = [ask(served.client(), "greet me", previous_response_id=twin.id) for twin in reversed(twins)]
    rollouts = [
        served.call_row(answer.art["call_id"])["rollout_id"] for answer in [*twins, *reversed(seconds)]
    ]
    assert rollouts[0] != rollouts[1]
    assert rollouts[:2] == rollouts[2:]
    parents = [served.call_row(answer.art["call_id"])["parent_call_id"] for answer in reversed(seconds)]
    assert parents == [twin.art["call_id"] for twin in twins]


def test_a_chain_finds_its_open_rollout(served: Logged) -> None:
    opened = served.open(sampling="caller")
    first = ask(served.agent(opened), "count")
    inside = ask(served.client(), "greet me", previous_response_id=first.id)
    scoped = ask(served.client(key=opened["api_key"]), "greet me", previous_response_id=inside.id)
    assert served.continues(inside, first)
    assert served.continues(scoped, inside)
    assert len(served.rollout(opened["rollout_id"])["calls"]) == 3
    served.api("POST", f"rollouts/{opened['rollout_id']}/finish", {})
    after = ask(served.client(), "count", previous_response_id=scoped.id)
    assert served.text(after).count("Grüße, 你好 🙂!") == 2
    assert served.call_row(after.art["call_id"])["rollout_id"] != opened["rollout_id"]


def test_chat_and_responses_share_their_memory(served: Logged) -> None:
    client = agent(served)
    first = client.chat.completions.create(
        model="tests/alpha", messages=[{"role": "user", "content": "count"}]
    ).choices[0]
    said = [{"role": "user", "content": "count"}, {"role": "assistant", "content": first.message.content}]
    second = ask(client, [*said, {"role": "user", "content": "greet me"}])
    third = ask(client, "count", previous_response_id=second.id)
    assert served.call_row(second.art["call_id"])["parent_call_id"] == first.art["call_id"]
    assert served.continues(third, second)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_repeated_request_gets_the_answer_that_there_was(served: Logged, streamed: bool) -> None:
    client = agent(served)
    options: dict[str, Any] = {"extra_headers": {"Idempotency-Key": "once"}, "streamed": streamed}
    first, again = (ask(client, "two calls", tools=[TOOL], **options) for _ in range(2))
    assert first.id == again.id
    assert first.output == again.output


# -- what is refused


def test_an_item_of_the_continued_response_is_refused(served: Logged) -> None:
    first = ask(served.client(), "two calls", tools=[TOOL])
    reference = {"type": "item_reference", "id": first.output[0].id}
    for item in (*back(first.output), reference):
        with pytest.raises(openai.BadRequestError, match="previous_response_id"):
            ask(served.client(), [item], previous_response_id=first.id)


def test_responses_that_may_not_be_seen_do_not_exist(served: Logged) -> None:
    opened = served.open(sampling="caller")
    own = ask(served.agent(opened), "count")
    unstored = ask(served.agent(opened), "count", store=False)
    chat = served.client().chat.completions.create(
        model="tests/alpha", messages=[{"role": "user", "content": "count"}]
    )
    stranger = served.api("POST", "keys", {"role": "infer", "project": "other"})["key"]
    neighbour = served.open(sampling="caller")
    for client, response_id in (
        (served.client(), "resp_unknown"),
        (served.client(), f"resp_call-{'0' * 32}"),
        (served.client(), f"resp_{chat.choices[0].art['call_id']}"),
        (served.client(), unstored.id),
        (served.client(key=stranger), own.id),
        (served.agent(neighbour), own.id),
    ):
        reference = {"type": "item_reference", "id": f"msg_{response_id.removeprefix('resp_')}_0"}
        for attempt in (
            partial(client.responses.retrieve, response_id),
            partial(ask, client, "greet me", model="alpha", previous_response_id=response_id),
            partial(ask, client, [reference], model="alpha"),
        ):
            with pytest.raises(openai.NotFoundError) as refused:
                attempt()
            assert refused.value.body["code"] == "not_found"
    assert served.client().responses.retrieve(own.id).output_text == own.output_text


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"tools": [{"type": "web_search"}]}, "hosted"),
        ({"tools": ["web_search"]}, "`tools[0]`"),
        ({"tool_choice": "required"}, "needs `tools`"),
        ({"tool_choice": {"type": "function", "name": "f"}, "tools": [TOOL]}, "none of the `tools`"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "none", "tools": []}}, "`tool_choice.mode`"),
        ({"tool_choice": {"type": "web_search"}}, "`tool_choice`"),
        ({"reasoning": {"effort": {}}}, "`effort`"),
        ({"background": True}, "`background`"),
        ({"conversation": "conv_1"}, "`conversation`"),
        ({"truncation": "auto"}, "`truncation`"),
        ({"prompt": {"id": "p"}}, "`prompt`"),
        ({"inputs": "x"}, "did you mean `input`?"),
        ({"include": ["web_search_call.results"]}, "web_search_call.results"),
        ({"reasoning": {"summary": "detailed"}}, "`reasoning.summary`"),
        ({"reasoning": {"budget": 3}}, "`reasoning.budget`"),
        ({"text": {"format": {"type": "grammar"}}}, "`text.format`"),
        ({"text": {"verbosity": "low"}}, "`text.verbosity`"),
        ({"metadata": {"a": 1}}, "`metadata`"),
        ({"max_output_tokens": 0}, "`max_output_tokens`"),
        ({"store": "no"}, "`store`"),
        ({"frequency_penalty": 1}, "frequency_penalty"),
        ({"input": []}, "`input`"),
        ({"input": 3}, "`input`"),
        ({"input": [{"type": "computer_call_output"}]}, "computer_call_output"),
        ({"input": [{"role": "tool", "content": "x"}]}, "`input[0].role`"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "takes text only"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "`input[0].call_id`"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "no function call"),
        (
            {"input": [{"type": "reasoning", "summary": [], "encrypted_content": "gAAAA"}]},
            "encrypted_content",
        ),
    ],
)
def test_what_cannot_be_followed_is_refused_by_name(served: Logged, body: dict[str, Any], said: str) -> None:
    got = served.post({"input": "count", **body})
    assert got.status_code == 400, got.text
    error = got.json()["error"]
    assert said in error["message"]
    assert error["type"] == "invalid_request_error"


# -- ends


def test_a_failed_call_is_told_in_openai_words(served: Logged) -> None:
    with pytest.raises(openai.InternalServerError, match="lost its mind"):
        ask(served.client(), "fail")
    with pytest.raises(openai.InternalServerError, match="lost its mind"):
        ask(served.client(), "fail", streamed=True)


def test_an_engine_that_dies_in_mid_stream_fails_the_response(served: Logged) -> None:
    workers = served.api("GET", "health")["workers"]
    engine = next(worker["pid"] for worker in workers if worker["name"].startswith("engine"))
    stream = served.client().responses.create(model="tests/alpha", input="slowly please", stream=True)
    told = list(islice(stream, 20))
    os.kill(engine, signal.SIGKILL)
    with pytest.raises(openai.APIError, match="engine"):
        told.extend(stream)
    assert told[-1].type == "response.failed"
    assert told[-1].response.error.code == "server_error"
    failed = told[-1].response.id
    assert served.client().responses.retrieve(failed).status == "failed"
    with pytest.raises(openai.BadRequestError, match="cannot be continued"):
        ask(served.client(), "count", previous_response_id=failed)


def test_a_chain_outlives_the_server(served: Logged) -> None:
    options: dict[str, Any] = {"model": "tests/thinker", "tools": [TOOL], "include": [ENCRYPTED]}
    client = agent(served, model="tests/thinker")
    first = ask(client, "look up", **options)
    thought, text, call = first.output
    free = ask(served.client(), "count")
    served.server.kill()
    served.server.start()
    # The memory is cold: the history is rendered from the record, with its reasoning.
    second = ask(served.client(), [result(call)], previous_response_id=first.id, **options)
    assert "<think>I need the weather.</think>Wait. <tool_call>" in served.text(second)
    sealed = {"type": "reasoning", "summary": [], "encrypted_content": thought.encrypted_content}
    said: list[Any] = [{"role": "user", "content": "look up"}, sealed, *back([text, call]), result(call)]
    assert served.text(ask(served.client(), said, **options)) == served.text(second)
    third = ask(served.client(), "greet me", previous_response_id=free.id)
    assert served.text(third).count("one two three four five") == 1
    assert served.continues(ask(served.client(), "count", previous_response_id=third.id), third)
    assert (
        served.client().responses.retrieve(first.id).output
        == first.model_copy(
            update={"output": [thought.model_copy(update={"encrypted_content": None}), text, call]}
        ).output
    )
