"""`response_format` and `tool_choice` over HTTP, with the real engine and the openai SDK, up to what the trainer reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import anthropic
import jsonschema
import numpy as np
import openai
import pydantic
import pytest
from chat_kit import TOOLS, Served, says, stream
from train_kit import ENVIRONMENT, MODEL, Trained

from art.engine.protocol import SampleRequest
from art.engine.torch.engine import TorchEngine
from art.errors import InfraError
from art.server.sampling import SeedSpace, call_seed
from art.store.blobs import BlobStore
from art.testing.engine_process import join
from art.tokens.formats import choose_formats
from art.tokens.grammar import Form, grammar_for
from art.tokens.renderer import Renderer
from art.types.tokens import BlobRef

SCHEMA = {
    "type": "object",
    "properties": {
        "answer": {"enum": ["yes", "no", "maybe"]},
        "marks": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "maxItems": 2},
    },
    "required": ["answer", "marks"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {
    "type": "function",
    "function": {
        "name": "get_time",
        "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
    },
}
WORDS = {"type": "string", "maxLength": 3}
NAMED = {"type": "function", "function": {"name": "get_time"}}


class Verdict(pydantic.BaseModel):
    """What `parse` makes of an answer."""

    model_config = pydantic.ConfigDict(extra="forbid")

    answer: Literal["yes", "no", "maybe"]
    sure: bool
    level: int = pydantic.Field(ge=0, le=9)


@pytest.fixture(scope="module")
def real(start_art_server: Any, tiny_model_dir: Path) -> Iterator[Trained]:
    server = start_art_server(engine="torch", environment=ENVIRONMENT)
    trained = Trained(server, tiny_model_dir)
    trained.register()
    yield trained
    server.stop()


@pytest.fixture(scope="module")
def client(real: Trained) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"{real.server.url}/v1", api_key=real.server.admin_key, max_retries=0, timeout=120
    )


def ask(client: openai.OpenAI, **options: Any) -> Any:
    values = {"model": MODEL, "messages": says("is it red?"), "max_completion_tokens": 700}
    return client.chat.completions.create(**{**values, **options})


def test_an_answer_follows_the_schema(client: openai.OpenAI) -> None:
    answer = ask(client, response_format=FORMAT, n=3)
    for choice in answer.choices:
        jsonschema.validate(json.loads(choice.message.content), SCHEMA)
        assert choice.finish_reason == "stop"
        assert choice.message.tool_calls is None
    assert len({choice.message.content for choice in answer.choices}) > 1


def test_a_stream_follows_the_schema(client: openai.OpenAI) -> None:
    said = stream(ask(client, response_format=FORMAT, stream=True, stream_options={"include_usage": True}))
    jsonschema.validate(json.loads(said["text"][0]), SCHEMA)
    assert said["finish"] == {0: "stop"}
    assert len(said["tokens"][0]) == said["usage"].completion_tokens


def test_json_object_is_any_object(client: openai.OpenAI) -> None:
    answer = ask(client, response_format={"type": "json_object"}, max_completion_tokens=900, seed=4)
    (choice,) = answer.choices
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content), dict)
    else:
        assert choice.message.content.startswith("{")


def test_parse_gives_an_object_of_the_class(client: openai.OpenAI) -> None:
    parsed = client.chat.completions.parse(
        model=MODEL, messages=says("is it red?"), response_format=Verdict, max_completion_tokens=700
    )
    assert isinstance(parsed.choices[0].message.parsed, Verdict)


def test_a_required_call_is_one_of_the_tools(client: openai.OpenAI) -> None:
    answer = ask(client, tools=[WEATHER, CLOCK], tool_choice="required", parallel_tool_calls=False, n=4)
    for choice in answer.choices:
        (call,) = choice.message.tool_calls
        assert choice.message.content is None
        assert choice.finish_reason == "tool_calls"
        expected = {"get_weather": WEATHER, "get_time": CLOCK}[call.function.name]
        jsonschema.validate(json.loads(call.function.arguments), expected["function"]["parameters"])


@pytest.mark.parametrize(
    "choice",
    [NAMED, {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}],
    ids=["named", "allowed"],
)
def test_a_named_tool_is_the_one_that_is_called(client: openai.OpenAI, choice: Any) -> None:
    answer = ask(client, tools=[WEATHER, CLOCK], tool_choice=choice, parallel_tool_calls=False)
    (call,) = answer.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_time", {})


def test_an_answer_that_is_cut_says_so(client: openai.OpenAI) -> None:
    answer = ask(client, response_format=FORMAT, max_completion_tokens=3)
    assert answer.choices[0].finish_reason == "length"


def test_a_call_is_answered_and_the_conversation_goes_on(real: Trained, client: openai.OpenAI) -> None:
    """The next turn is served from memory, after a choice that a grammar ended without an end-of-turn token."""
    opened = real.api("POST", "rollouts", {"model": MODEL})
    agent = openai.OpenAI(base_url=opened["base_url"], api_key=opened["api_key"], max_retries=0, timeout=120)
    messages: list[Any] = says("what time is it?")
    first = ask(agent, messages=messages, tools=[CLOCK], tool_choice="required", parallel_tool_calls=False)
    message = first.choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    messages.append({"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "noon"})
    second = ask(agent, messages=messages, tools=[CLOCK], max_completion_tokens=8)
    before = [*first.prompt_token_ids, *first.choices[0].token_ids]
    assert second.prompt_token_ids[: len(before)] == before


def test_the_responses_dialect(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": MODEL, "input": "is it red?", "max_output_tokens": 700}
    form = {"type": "json_schema", "name": "answer", "schema": SCHEMA, "strict": True}
    answer = client.responses.create(**asked, text={"format": form})
    jsonschema.validate(json.loads(answer.output_text), SCHEMA)
    tools = [{"type": "function", **tool["function"], "strict": False} for tool in (WEATHER, CLOCK)]
    choice = {"type": "function", "name": "get_time"}
    called = client.responses.create(**asked, tools=tools, tool_choice=choice, parallel_tool_calls=False)
    assert [(item.type, item.name) for item in called.output] == [("function_call", "get_time")]


def test_the_messages_dialect(real: Trained) -> None:
    client = anthropic.Anthropic(base_url=real.server.url, api_key=real.server.admin_key, max_retries=0)
    tools = [
        {"name": tool["function"]["name"], "input_schema": tool["function"]["parameters"]}
        for tool in (WEATHER, CLOCK)
    ]
    answer = client.messages.create(
        model=MODEL,
        max_tokens=700,
        messages=says("weather?"),
        tools=tools,
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
    )
    (block,) = answer.content
    assert block.type == "tool_use"
    jsonschema.validate(block.input, {t["name"]: t["input_schema"] for t in tools}[block.name])
    assert answer.stop_reason == "tool_use"


def test_clients_that_leave_and_many_at_once(real: Trained, client: openai.OpenAI) -> None:
    """Streams are left in their middle, and the engine serves the others and whoever comes next."""

    def one(number: int) -> str | None:
        asked = {"response_format": FORMAT} if number % 3 else {"max_completion_tokens": 8}
        if number % 4:
            return str(ask(client, **asked).choices[0].message.content)
        with ask(client, stream=True, **asked) as answer:
            next(iter(answer))
        return None

    with ThreadPoolExecutor(12) as pool:
        said = list(pool.map(one, range(24)))
    for number, text in enumerate(said):
        if text is not None and number % 3:
            jsonschema.validate(json.loads(text), SCHEMA)
    jsonschema.validate(json.loads(ask(client, response_format=FORMAT).choices[0].message.content), SCHEMA)


# -- what is refused

BAD: list[tuple[dict[str, Any], str, str]] = [
    (
        {"tools": [CLOCK], "tool_choice": {"type": "function", "function": {"name": "rob"}}},
        "invalid_input",
        "rob",
    ),
    ({"tool_choice": "required"}, "invalid_input", "needs `tools`"),
    ({"tools": [CLOCK], "tool_choice": "any"}, "unsupported_option", "tool_choice"),
    ({"response_format": {"type": "grammar"}}, "unsupported_option", "response_format"),
    ({"response_format": {"type": "json_schema"}}, "invalid_input", "json_schema"),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"type": "objekt"}},
            }
        },
        "invalid_input",
        "objekt",
    ),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"type": "array", "uniqueItems": True}},
            }
        },
        "invalid_input",
        "uniqueItems",
    ),
]


@pytest.mark.parametrize(("options", "code", "words"), BAD, ids=[words for _, _, words in BAD])
def test_what_cannot_be_followed_is_one_clear_error(
    served: Served, options: dict[str, Any], code: str, words: str
) -> None:
    response = served.chat({"messages": says("hi"), **options})
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, code)
    assert words in error["message"]


def test_many_hard_schemas_at_once_leave_the_server_answering(served: Served) -> None:
    chain = {f"d{i}": {"items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(2500)}
    schema = {"$ref": "#/$defs/d0", "$defs": {**chain, "d2500": {"type": "integer"}}}
    asked = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    for _ in range(3):
        response = served.chat({"messages": says("hi"), "response_format": asked})
        assert response.status_code == 400  # the script's reply is no such answer
        assert "grammar" in response.json()["error"]["message"]
    assert served.chat({"messages": says("a fruit")}).status_code == 200


def test_tool_choice_auto_and_none_are_free(served: Served) -> None:
    free = served.chat({"messages": says("broken call"), "tools": TOOLS, "tool_choice": "auto"})
    assert "oops" in free.json()["choices"][0]["message"]["content"]
    none = served.chat({"messages": says("two calls"), "tools": TOOLS, "tool_choice": "none"})
    assert none.json()["choices"][0]["message"].get("tool_calls") is None


# -- what is recorded and trained


def arrays_of(real: Trained, call_id: str) -> dict[str, np.ndarray[Any, Any]]:
    """The token record of a call, as the trainer reads it."""
    ((blob,),) = real.query("SELECT blob FROM calls WHERE call_id = ?", call_id)
    return BlobStore(real.server.path / "server" / "blobs").read(BlobRef.model_validate_json(blob))


def again(real: Trained, request: SampleRequest) -> Any:
    """The same choice by an engine in this process."""
    engine = TorchEngine.load(real.base_model, dtype="fp32", max_batch=2, threads=1)
    engine.submit(0, request)
    events = []
    while (step := engine.step()) is not None:
        for _, event in step:
            assert not isinstance(event, InfraError)
            events.append(event)
    return join(events)


def test_the_trainer_sees_exactly_the_forced_tokens_left_out(real: Trained, client: openai.OpenAI) -> None:
    # In an evaluation the caller's seed alone decides, so the draws can be repeated.
    opened = real.api("POST", "rollouts", {"model": MODEL, "purpose": "evaluate"})
    agent = openai.OpenAI(base_url=opened["base_url"], api_key=opened["api_key"], max_retries=0, timeout=120)
    answer = ask(agent, response_format=FORMAT, seed=11)
    (choice,) = answer.choices
    formats = choose_formats(Renderer.load(Path(real.base_model)))
    request = SampleRequest(
        prompt_token_ids=answer.prompt_token_ids,
        max_tokens=700,
        seed=call_seed(SeedSpace(0, "", 0, 0, 0), 0, 0, 11, "caller"),
        stop_token_ids=tuple(formats.tokenizer.stop_token_ids),
        grammar=grammar_for(Form(schema=SCHEMA), formats, answer.prompt_token_ids),
    )
    repeated = again(real, request)
    assert repeated.token_ids == choice.token_ids
    assert any(repeated.forced)
    call = real.rollout(opened["rollout_id"])["calls"][0]
    assert call["sampling_asked"]["response_schema"] == SCHEMA
    stored = arrays_of(real, choice.art["call_id"])
    assert stored["c0.token_ids"].tolist() == choice.token_ids
    assert (~stored["c0.trainable"]).tolist() == repeated.forced
    free = ask(agent)
    assert "c0.trainable" not in arrays_of(real, free.choices[0].art["call_id"])


def test_a_step_trains_the_tokens_that_were_not_forced(real: Trained) -> None:
    group: dict[str, Any] = {"trajectories": []}
    trainable = 0
    for reward in (0.0, 1.0, 0.0, 1.0):
        trajectory = real.trajectory(
            reward, response_format={"type": "json_schema", "json_schema": {"name": "w", "schema": WORDS}}
        )
        group["trajectories"].append(trajectory)
        stored = arrays_of(real, trajectory["messages_and_choices"][1]["art"]["call_id"])
        trainable += (
            int(stored["c0.trainable"].sum()) if "c0.trainable" in stored else len(stored["c0.token_ids"])
        )
    result = real.train([group])
    assert result["metrics"]["data/step_trained_tokens"] == trainable > 0
    assert result["published"]
