"""Chat completions through the real OpenAI SDK against a real server with the scripted engine."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from chat_kit import FRUITS, TICKS, TOOLS, Served, arguments, says, stream


def test_an_answer_carries_its_tokens_and_its_call(served: Served) -> None:
    answer = served.client().chat.completions.create(model="tests/alpha", messages=says("count"))
    choice = answer.choices[0]
    assert choice.message.content == "one two three four five"
    assert choice.finish_reason == "stop"
    assert len(choice.token_ids) == len(choice.logprobs.content) == answer.usage.completion_tokens
    assert (
        b"".join(bytes(row.bytes) for row in choice.logprobs.content[:-1]).decode() == choice.message.content
    )
    assert len(answer.prompt_token_ids) == answer.usage.prompt_tokens
    assert answer.model == choice.art["version"] == "tests/alpha@0"
    assert choice.art["choice"] == 0
    row = served.call_row(choice.art["call_id"])
    assert row["prompt_token_count"] == len(answer.prompt_token_ids)
    assert row["version"] == "tests/alpha@0"


def test_the_art_field_survives_copy_and_dump(served: Served) -> None:
    choice = served.client().chat.completions.create(model="tests/alpha", messages=says("hi")).choices[0]
    for kept in (
        copy.deepcopy(choice),
        choice.model_copy(),
        type(choice).model_validate(choice.model_dump()),
    ):
        assert kept.art == choice.art
        assert kept.token_ids == choice.token_ids


@pytest.mark.parametrize("text", ["count", "greet me", "a fruit"])
def test_a_stream_says_what_an_answer_says(served: Served, text: str) -> None:
    client = served.client()
    asked: dict[str, Any] = {"model": "tests/alpha", "messages": says(text), "seed": 7}
    whole = client.chat.completions.create(**asked)
    parts = stream(
        client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )
    choice = whole.choices[0]
    assert parts["text"][0] == choice.message.content
    assert parts["tokens"][0] == choice.token_ids
    assert [row.logprob for row in parts["logprobs"][0]] == [row.logprob for row in choice.logprobs.content]
    assert parts["finish"] == {0: "stop"}
    assert parts["prompt"] == whole.prompt_token_ids
    assert parts["usage"].total_tokens == whole.usage.total_tokens
    assert parts["art"][0]["call_id"] != choice.art["call_id"]
    assert served.call_row(parts["art"][0]["call_id"])["version"] == "tests/alpha@0"


def test_deltas_leave_while_tokens_are_sampled(served: Served) -> None:
    parts = served.client().chat.completions.create(
        model="tests/alpha", messages=says("slowly please"), max_tokens=200, stream=True
    )
    first = next(chunk for chunk in parts if chunk.choices[0].delta.content)
    running = sum(worker["stats"].get("running", 0) for worker in served.api("GET", "health")["workers"])
    assert first.choices[0].delta.content == "t"
    assert first.choices[0].finish_reason is None
    rest = stream(parts)
    assert rest["chunks"] > 100
    assert rest["finish"] == {0: "length"}
    assert running <= 1  # a heartbeat may be a second old; what counts is that the stream was not over


def _tool_loop(served: Served, *, streamed: bool) -> None:
    agent = served.agent(served.open(sampling="caller"))
    messages: list[Any] = says("What is the weather in Paris?")
    turns = []
    for _ in range(2):
        request: dict[str, Any] = {"model": "tests/alpha", "messages": messages, "tools": TOOLS}
        if streamed:
            got = stream(agent.chat.completions.create(**request, stream=True))
            calls, text = got["calls"][0], got["text"][0] or None
            prompt, tokens, finish = got["prompt"], got["tokens"][0], got["finish"][0]
        else:
            answer = agent.chat.completions.create(**request)
            calls, text = answer.choices[0].message.tool_calls or [], answer.choices[0].message.content
            prompt, tokens = answer.prompt_token_ids, answer.choices[0].token_ids
            finish = answer.choices[0].finish_reason
        turns.append((prompt, tokens, finish, text))
        if calls:
            assert calls[0].id.startswith("call_")
            assert calls[0].function.name == "get_weather"
            assert arguments(calls[0]) == {"city": "Paris"}
            # As agents do it: arguments parsed and written anew, ids kept, white space and key order lost.
            call = {
                "id": calls[0].id,
                "type": "function",
                "function": {"name": "get_weather", "arguments": json.dumps(arguments(calls[0]), indent=1)},
            }
            messages = [*messages, {"role": "assistant", "content": text, "tool_calls": [call]}]
            messages.append({"role": "tool", "tool_call_id": calls[0].id, "content": "sunny"})
    (prompt1, tokens1, finish1, text1), (prompt2, _, finish2, text2) = turns
    assert (finish1, finish2) == ("tool_calls", "stop")
    assert text1 == "Let me see. "
    assert text2 == "Take a hat, it is sunny."
    assert prompt2[: len(prompt1) + len(tokens1)] == prompt1 + tokens1
    assert len(prompt2) > len(prompt1) + len(tokens1)


@pytest.mark.parametrize("streamed", [False, True])
def test_the_second_turn_continues_the_exact_tokens_of_the_first(served: Served, streamed: bool) -> None:
    _tool_loop(served, streamed=streamed)


def test_a_malformed_call_reaches_the_agent_as_text(served: Served) -> None:
    for streamed in (False, True):
        request: dict[str, Any] = {"model": "tests/alpha", "messages": says("broken call"), "tools": TOOLS}
        if streamed:
            got = stream(served.client().chat.completions.create(**request, stream=True))
            text, calls, finish = got["text"][0], got["calls"][0], got["finish"][0]
        else:
            choice = served.client().chat.completions.create(**request).choices[0]
            text, calls, finish = choice.message.content, choice.message.tool_calls, choice.finish_reason
        assert text == '<tool_call>{"name": "get_weather", oops}</tool_call>'
        assert not calls
        assert finish == "stop"


def test_calls_in_plain_json_and_calls_that_are_not_wanted(served: Served) -> None:
    create = served.client().chat.completions.create
    plain = create(model="tests/alpha", messages=says("plain json"), tools=TOOLS).choices[0]
    assert plain.finish_reason == "tool_calls"
    assert plain.message.content is None
    assert arguments(plain.message.tool_calls[0]) == {"city": "Oslo"}
    without = create(model="tests/alpha", messages=says("plain json")).choices[0]
    assert without.message.content.startswith('{"name"')
    none = create(model="tests/alpha", messages=says("two calls"), tools=TOOLS, tool_choice="none").choices[0]
    assert none.message.tool_calls is None
    assert none.message.content.count("<tool_call>") == 2
    both = create(model="tests/alpha", messages=says("two calls"), tools=TOOLS).choices[0]
    assert [arguments(call)["city"] for call in both.message.tool_calls] == ["Oslo", "Rome"]
    one = create(
        model="tests/alpha", messages=says("two calls"), tools=TOOLS, parallel_tool_calls=False
    ).choices[0]
    assert len(one.message.tool_calls) == 1


@pytest.mark.parametrize("streamed", [False, True])
def test_four_choices_of_one_call(served: Served, streamed: bool) -> None:
    opened = served.open(sampling="caller")
    create = served.agent(opened).chat.completions.create
    if streamed:
        got = stream(create(model="alpha", messages=says("a fruit"), n=4, stream=True))
        texts = [got["text"][i] for i in range(4)]
        marks = [got["art"][i] for i in range(4)]
    else:
        answer = create(model="alpha", messages=says("a fruit"), n=4)
        texts = [choice.message.content for choice in answer.choices]
        marks = [choice.art for choice in answer.choices]
        assert answer.usage.completion_tokens == sum(len(choice.token_ids) for choice in answer.choices)
    assert set(texts) <= set(FRUITS)
    assert [mark["choice"] for mark in marks] == [0, 1, 2, 3]
    assert len({mark["call_id"] for mark in marks}) == 1
    calls = served.rollout(opened["rollout_id"])["calls"]
    assert [len(call["choices"]) for call in calls] == [4]


def test_a_continued_choice_is_the_one_that_was_sampled(served: Served) -> None:
    agent = served.agent(served.open(sampling="caller"))
    first = agent.chat.completions.create(model="alpha", messages=says("a fruit"), n=4)
    picked = first.choices[2]
    said = {"role": "assistant", "content": picked.message.content}
    then = agent.chat.completions.create(model="alpha", messages=[*says("a fruit"), said, *says("count")])
    known = first.prompt_token_ids + picked.token_ids
    assert then.prompt_token_ids[: len(known)] == known


def test_a_stop_string_across_tokens(served: Served) -> None:
    create = served.client().chat.completions.create
    choice = create(model="tests/alpha", messages=says("count"), stop=["ee f", "never"]).choices[0]
    assert choice.message.content == "one two thr"
    assert choice.finish_reason == "stop"
    assert bytes(b for row in choice.logprobs.content for b in row.bytes).decode() == "one two three f"
    got = stream(create(model="tests/alpha", messages=says("count"), stop="ee f", stream=True))
    assert got["text"][0] == "one two thr"


def test_max_tokens_ends_a_choice_and_the_next_turn_closes_it(served: Served) -> None:
    agent = served.agent(served.open(sampling="caller"))
    first = agent.chat.completions.create(model="alpha", messages=says("count"), max_completion_tokens=5)
    assert first.choices[0].message.content == "one t"
    assert first.choices[0].finish_reason == "length"
    said = {"role": "assistant", "content": "one t"}
    then = agent.chat.completions.create(model="alpha", messages=[*says("count"), said, *says("hi")])
    known = first.prompt_token_ids + first.choices[0].token_ids
    assert then.prompt_token_ids[: len(known)] == known
    # What follows is the end of the turn that the model did not write.
    assert then.prompt_token_ids[len(known)] == 257


def test_the_same_seed_gives_the_same_answer(served: Served) -> None:
    create = served.client().chat.completions.create

    def fruit(seed: int) -> str:
        choice = create(model="tests/alpha", messages=says("a fruit"), seed=seed).choices[0]
        return str(choice.message.content)

    assert len({fruit(11) for _ in range(3)}) == 1
    assert len({fruit(seed) for seed in range(12)}) > 1


def test_alternatives_are_given_when_asked(served: Served) -> None:
    answer = served.client().chat.completions.create(
        model="tests/alpha", messages=says("count"), logprobs=True, top_logprobs=3
    )
    assert all(len(row.top_logprobs) == 3 for row in answer.choices[0].logprobs.content)


def test_ten_calls_at_once(served: Served) -> None:
    async def ask() -> list[Any]:
        async with openai.AsyncOpenAI(
            base_url=f"{served.server.url}/v1", api_key=served.server.admin_key, max_retries=0
        ) as client:
            return await asyncio.gather(
                *(
                    client.chat.completions.create(model="tests/alpha", messages=says(f"count {i}"))
                    for i in range(10)
                )
            )

    answers = asyncio.run(ask())
    assert {answer.choices[0].message.content for answer in answers} == {"one two three four five"}
    assert len({answer.choices[0].art["call_id"] for answer in answers}) == 10


BAD: list[tuple[dict[str, Any], int, str, str]] = [
    ({"messages": says("hi"), "model": "nobody"}, 404, "not_found", "tests/beta"),
    ({"messages": says("hi"), "model": "alpha"}, 409, "conflict", "other/alpha"),
    ({"messages": says("hi"), "model": "beta@7"}, 404, "not_found", "its steps are: 0"),
    ({"messages": []}, 400, "invalid_input", "messages"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, 400, "invalid_input", "messages[0].role"),
    ({"messages": [{"role": "user"}]}, 400, "invalid_input", "needs content"),
    ({"messages": says("hi"), "temprature": 0.5}, 400, "invalid_input", "did you mean `temperature`"),
    ({"messages": says("hi"), "temperature": "hot"}, 400, "invalid_input", "temperature"),
    ({"messages": says("hi"), "n": 0}, 400, "invalid_input", "`n`"),
    ({"messages": says("hi"), "frequency_penalty": 0.5}, 400, "unsupported_option", "frequency_penalty"),
    ({"messages": says("hi"), "logit_bias": {"5": 1}}, 400, "unsupported_option", "logit_bias"),
    (
        {"messages": says("hi"), "response_format": {"type": "json_schema"}},
        400,
        "invalid_input",
        "json_schema",
    ),
    (
        {"messages": says("hi"), "tool_choice": "required"},
        400,
        "invalid_input",
        "required",
    ),
    ({"messages": says("hi"), "chat_template_kwargs": {"thinking": True}}, 400, "invalid_input", "thinking"),
    ({"messages": says("long " * 300)}, 400, "context_length_exceeded", "takes 1024"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        400,
        "invalid_input",
        "image_url",
    ),
]


@pytest.mark.parametrize(("body", "status", "code", "words"), BAD)
def test_bad_input_is_one_clear_error(
    served: Served, body: dict[str, Any], status: int, code: str, words: str
) -> None:
    response = served.chat(body)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (status, code)
    assert words in error["message"]


def test_a_wrong_key_and_a_body_that_is_no_json(served: Served) -> None:
    with pytest.raises(openai.AuthenticationError):
        served.client(key="art_nobody_x").chat.completions.create(model="tests/alpha", messages=says("hi"))
    response = httpx2.post(
        f"{served.server.url}/v1/chat/completions",
        content=b"{",
        headers={"Authorization": f"Bearer {served.server.admin_key}"},
    )
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_input"


def test_harmless_options_are_accepted(served: Served) -> None:
    answer = served.client().chat.completions.create(
        model="tests/alpha",
        messages=[{"role": "developer", "content": [{"type": "text", "text": "count"}]}, *says("hi")],
        user="me",
        metadata={"a": "b"},
        store=False,
        frequency_penalty=0,
        presence_penalty=0.0,
        response_format={"type": "text"},
        extra_body={"top_k": -1, "return_token_ids": True, "min_p": 0},
    )
    assert answer.choices[0].message.content


def test_an_engine_that_refuses_is_an_error_with_a_hint(served: Served) -> None:
    for streamed in (False, True):
        response = served.chat({"messages": says("fail now"), "stream": streamed})
        assert response.status_code == 503
        error = response.json()["error"]
        assert error["code"] == "infra_error"
        assert "the engine lost its mind" in error["message"]
        assert "try again later" in error["hint"]


@pytest.mark.parametrize("streamed", [True, False])
def test_a_client_that_leaves_ends_its_call_and_keeps_what_was_sampled(
    served: Served, streamed: bool
) -> None:
    opened = served.open(sampling="caller")
    url = f"{opened['base_url']}/chat/completions"
    headers = {"Authorization": f"Bearer {opened['api_key']}"}
    body = {"model": "alpha", "messages": says("slowly please"), "stream": streamed}
    if streamed:
        with httpx2.stream("POST", url, json=body, headers=headers) as response:
            next(line for line in response.iter_lines() if '"content":"t"' in line)
    else:
        with pytest.raises(httpx2.TimeoutException):
            httpx2.post(url, json=body, headers=headers, timeout=httpx2.Timeout(30, read=0.3))
    # The call goes on for a client that comes back; the end of the rollout is its end.
    calls = served.api("POST", f"rollouts/{opened['rollout_id']}/finish", {})["calls"]
    assert [choice["finish_reason"] for choice in calls[0]["choices"]] == ["cancelled"]
    assert 0 < calls[0]["choices"][0]["token_count"] < len(TICKS)


def test_a_dead_engine_is_an_error_and_the_same_call_is_served_again(served: Served) -> None:
    opened = served.open(sampling="caller")
    agent = served.agent(opened).with_options(max_retries=5)
    ask: dict[str, Any] = {"model": "alpha", "messages": says("slowly please"), "max_tokens": 300}
    parts = agent.chat.completions.create(**ask, stream=True)
    next(chunk for chunk in parts if chunk.choices[0].delta.content)
    engine = next(w for w in served.api("GET", "health")["workers"] if w["name"] == "engine")
    os.kill(engine["pid"], signal.SIGKILL)
    with pytest.raises(openai.APIError, match="engine process ended"):
        stream(parts)
    answer = agent.chat.completions.create(**ask)
    assert answer.choices[0].finish_reason == "length"
    failed, repeated = served.rollout(opened["rollout_id"])["calls"]
    assert failed["choices"][0]["finish_reason"] == "error"
    assert failed["choices"][0]["fate"] == "filtered"
    assert 0 < failed["choices"][0]["token_count"] < 300
    assert repeated["choices"][0]["fate"] == "pending"
    # The repetition stands where the failed call stood.
    assert (failed["branch"], repeated["branch"]) == (0, 0)


def _template(name: str) -> str:
    return (Path(__file__).parents[1] / "data" / "templates" / f"{name}.jinja").read_text().removesuffix("\n")


def test_tools_work_with_a_template_that_has_no_section_for_them(served: Served) -> None:
    served.register("tests", "smol", chat_template=_template("smollm2"))
    agent = served.agent(served.open("tests/smol", sampling="caller"))
    example = [
        {"role": "system", "content": "You are a weather agent."},
        {"role": "user", "content": "And Lima?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "e",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": '{"city":"Lima"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "e", "content": "rain"},
        {"role": "assistant", "content": "Rain."},
    ]
    messages: list[Any] = [*example, *says("What is the weather in Paris?")]
    first = agent.chat.completions.create(model="smol", messages=messages, tools=TOOLS)
    text = served.decode(first.prompt_token_ids)
    assert "You are a weather agent.\n\nYou may call" in text
    assert '"name": "get_weather", "description"' in text
    # A call of the agent's own example reads as the model is asked to write one.
    assert '<tool_call>{"name": "get_weather", "arguments": {"city": "Lima"}}</tool_call><|im_end|>' in text
    assert "<|im_start|>tool\nrain<|im_end|>" in text
    (call,) = first.choices[0].message.tool_calls
    messages.append(
        first.choices[0].message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"})
    )
    messages.append({"role": "tool", "tool_call_id": call.id, "content": "sunny"})
    second = agent.chat.completions.create(model="smol", messages=messages, tools=TOOLS)
    assert second.choices[0].message.content == "Take a hat, it is sunny."
    known = first.prompt_token_ids + first.choices[0].token_ids
    assert second.prompt_token_ids[: len(known)] == known
    tail = served.decode(second.prompt_token_ids[len(known) :])
    assert tail == "\n<|im_start|>tool\nsunny<|im_end|>\n<|im_start|>assistant\n"


def test_a_template_that_cannot_be_served_is_refused_at_registration(served: Served) -> None:
    body = {"project": "tests", "name": "bad", "config": {"base_model": served.base_model}}
    for template, words in ((_template("forgetful"), "once more follows"), ("{% for", "compiling")):
        body["config"] = {"base_model": served.base_model, "chat_template": template}
        response = served.raw("POST", "/api/v1/models", body)
        assert response.status_code == 400
        assert words in json.dumps(response.json())
    assert "tests/bad" not in {model.id for model in served.client().models.list()}
    # The same template can be served as it is where nothing has to be kept.
    served.register("tests", "bad", chat_template=_template("forgetful"), history="template")
    answer = served.client().chat.completions.create(model="bad", messages=says("count"))
    assert answer.choices[0].message.content == "one two three four five"


def test_tools_are_refused_where_the_template_holds_no_results(served: Served) -> None:
    served.register("tests", "mistral", chat_template=_template("mistral_v3"))
    with pytest.raises(openai.BadRequestError, match="line 11 of the template writes it"):
        served.client().chat.completions.create(model="mistral", messages=says("hi"), tools=TOOLS)


def test_models_are_listed_for_every_name(served: Served) -> None:
    client = served.client()
    listed = {model.id: model for model in client.models.list()}
    assert {"tests/alpha", "tests/beta", "other/alpha"} <= set(listed)
    assert client.models.retrieve("beta").id == "tests/beta"
    assert client.models.retrieve("tests/beta@0").art["step"] == 0
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gamma")
