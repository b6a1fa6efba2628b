"""What the tests of OpenAI Responses share: a script with reasoning, a server with a token log, strict SDK types."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from chat_kit import SCRIPT, Served
from openai.types import responses as sdk
from pydantic import TypeAdapter

from art.testing.server import ArtServer
from art.testing.tiny import CHAT_TEMPLATE

REASONED: dict[str, Any] = SCRIPT | {
    "rules": [
        {"match": r"effort high.*ponder[^<]*<\|im_end\|>\n<\|im_start\|>assistant\n$", "replies": ["Hard."]},
        {
            "match": r"ponder[^<]*<\|im_end\|>\n<\|im_start\|>assistant\n$",
            "replies": ["<think>2 + 2</think>4"],
        },
        {
            "match": r"look up[^<]*<\|im_end\|>\n<\|im_start\|>assistant\n$",
            "replies": [
                "<think>I need the weather.</think>Wait. "
                '<tool_call>{"name": "get_weather", "arguments": {"city": "Bonn"}}</tool_call>'
            ],
        },
        {
            "match": r"mixed[^<]*<\|im_end\|>\n<\|im_start\|>assistant\n$",
            "replies": [
                'First. <tool_call>{"name": "get_weather", "arguments": {"city": "Bonn"}}</tool_call> Then.'
                '<tool_call>{"name": "get_weather", "arguments": {"city": "Rome"}}</tool_call>'
            ],
        },
        {"match": r"nothing[^<]*<\|im_end\|>\n<\|im_start\|>assistant\n$", "replies": [""]},
        *[
            {"match": rf"{word}[^<]*<\|im_end\|>\n<\|im_start\|>assistant\n$", "replies": [reply]}
            for word, reply in (
                ("count", "one two three four five"),
                ("greet", "Grüße, 你好 🙂!"),
                ("a place", '{"city": "Oslo"}'),
                ("use it", '<tool_call>{"name": "other", "arguments": {"city": "Oslo"}}</tool_call>'),
            )
        ],
        *SCRIPT["rules"],
    ]
}
THINKING_TEMPLATE = CHAT_TEMPLATE.replace(
    "assistant\\n' + (message.content or '')",
    "assistant\\n' + ('<think>' + message.reasoning_content + '</think>' if message.reasoning_content else '')"
    " + (message.content or '')",
).replace(
    "{%- if tools %}",
    "{%- if reasoning_effort %}{{- '<|im_start|>system\\neffort ' + reasoning_effort + '<|im_end|>\\n' }}"
    "{%- endif %}\n{%- if tools %}",
    1,
)
TOOL: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": True,
}
LOGPROBS, ENCRYPTED = "message.output_text.logprobs", "reasoning.encrypted_content"
EVENT: TypeAdapter[Any] = TypeAdapter(sdk.ResponseStreamEvent)


@dataclass
class Logged(Served):
    """A server whose engine writes down what it was given and sampled."""

    log: str = ""

    def sampled(self, response: Any) -> dict[str, Any]:
        """The engine's own record of a response."""
        with open(self.log) as lines:
            records = [json.loads(line) for line in lines]
        tokens = (response.prompt_token_ids, response.token_ids)
        found = [r for r in records if (r["prompt_token_ids"], r["token_ids"]) == tokens]
        assert found, "the engine never sampled this"
        return dict(found[-1])

    def text(self, response: Any) -> str:
        """The prompt of a response."""
        return self.decode(response.prompt_token_ids)

    def continues(self, second: Any, first: Any) -> bool:
        """Whether the engine was given the first call's exact tokens, prompt and completion, before anything else."""
        known = self.sampled(first)
        tokens = known["prompt_token_ids"] + known["token_ids"]
        prompt = self.sampled(second)["prompt_token_ids"]
        return len(prompt) > len(tokens) and prompt[: len(tokens)] == tokens

    def post(self, body: dict[str, Any], **options: Any) -> Any:
        """A request as plain HTTP."""
        return self.raw("POST", "/v1/responses", {"model": "tests/alpha", **body}, **options)


def start(start_art_server: Any, base_model: str, folder: Any) -> Logged:
    """Models: `tests/alpha`, `tests/thinker` (reasoning in <think>), `other/alpha`."""
    log = str(folder / "tokens.jsonl")
    server: ArtServer = start_art_server(script=REASONED, environment={"ART_ENGINE__TOKEN_LOG": log})
    served = Logged(server, base_model, log)
    for project in ("tests", "other"):
        served.register(project, "alpha")
    served.register("tests", "thinker", chat_template=THINKING_TEMPLATE, reasoning_parser="think")
    return served


def strict(body: dict[str, Any]) -> sdk.Response:
    """The response as the SDK's type, checked field by field."""
    return sdk.Response.model_validate(body, strict=True)


def events(response: Any) -> list[dict[str, Any]]:
    """The events of a streamed answer, each checked against the SDK's type of its name."""
    out = []
    for block in response.text.strip().split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        EVENT.validate_python(event, strict=True)
        out.append(event)
    assert [event["sequence_number"] for event in out] == list(range(len(out)))
    return out


def rounded(data: Any) -> Any:
    """With numbers as a float32 keeps them, and without the alternatives to tokens: what a call's record has."""
    if isinstance(data, dict):
        return {name: [] if name == "top_logprobs" else rounded(value) for name, value in data.items()}
    if isinstance(data, list):
        return [rounded(value) for value in data]
    return round(data, 4) if isinstance(data, float) else data


def back(items: Iterable[Any], *, without: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Output items as a client sends them back."""
    dumped = [item.model_dump(exclude_none=True) for item in items]
    return [{name: value for name, value in item.items() if name not in without} for item in dumped]


def result(call: Any, text: str = "sunny") -> dict[str, Any]:
    """What a tool returned."""
    return {"type": "function_call_output", "call_id": call.call_id, "output": text}
