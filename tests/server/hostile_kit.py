"""An agent that treats its history badly, in every dialect, and what the engine and the trainer saw of it."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from chat_kit import Served

from art.config.model import LoraConfig
from art.config.train import ResolvedTrainConfig, TrainConfig
from art.server.batch import Batch
from art.store.records import JobSpec
from art.store.store import Store
from art.trainer.batch import load_batch
from art.trainer.protocol import TrainJob
from art.types.jobs import ResolvedBaseModel
from art.types.wire import GroupIn, TrajectoryIn

TURN = r"[^<]*<\|im_end\|>\n<\|im_start\|>assistant\n$"
STEPS = [
    f"<think>\nThought {i}.\n</think>\n\n{text}"
    f'<tool_call>{{"name":  "look", "arguments": {{"n": {i}.0, "deep": {{"b": [1,  2.50], "a": "é"}}, "c": null}}}}'
    "</tool_call>"
    for i in range(8)
    for text in (f"Step {i}. ", "")
]
SCRIPT: dict[str, Any] = {
    "token_delay_ms": 1,
    "rules": [
        {"match": rf"(task|result|go on){TURN}", "replies": STEPS},
        {"match": rf"finish{TURN}", "replies": [f"Done, {i}." for i in range(8)]},
        {"match": rf"slowly{TURN}", "replies": [f"{i} " + "tick " * 60 for i in range(8)]},
        {"match": rf"a fruit{TURN}", "replies": ["apple", "banana", "cherry", "date", "fig", "kiwi"]},
    ],
    "default": "I do not know.",
}
LOOK: dict[str, Any] = {
    "name": "look",
    "description": "Looks.",
    "parameters": {"type": "object", "properties": {"n": {"type": "number"}}},
}


@dataclass
class Said:
    """A message of the agent's history. `calls` are (id, arguments as JSON text)."""

    role: str
    text: str | None
    thought: str | None = None
    calls: list[tuple[str, str]] = field(default_factory=list)
    answers: str = ""
    """Of a tool's result: the id of its call."""


class Chat:
    """OpenAI Chat Completions."""

    path = "/chat/completions"

    def body(self, history: list[Said], tools: bool) -> dict[str, Any]:
        out: dict[str, Any] = {"messages": [self._message(item) for item in history]}
        return out | ({"tools": [{"type": "function", "function": LOOK}]} if tools else {})

    def _message(self, item: Said) -> dict[str, Any]:
        data: dict[str, Any] = {"role": item.role, "content": item.text}
        if item.role == "assistant":
            if not item.text:  # "", null and no content at all are one
                data = random.choice([data, {"role": "assistant"}, data | {"content": None}])
            if item.calls:
                data["tool_calls"] = [
                    {"id": name, "type": "function", "function": {"name": "look", "arguments": given}}
                    for name, given in item.calls
                ]
            if item.thought:
                data["reasoning_content"] = item.thought
        if item.answers:
            data["tool_call_id"] = item.answers
        return data

    def said(self, answer: dict[str, Any]) -> Said:
        message = answer["choices"][0]["message"]
        calls = [(call["id"], call["function"]["arguments"]) for call in message.get("tool_calls") or []]
        return Said("assistant", message.get("content"), message.get("reasoning_content"), calls)

    def part(self, event: dict[str, Any]) -> str:
        """The text of a streamed event."""
        return str(event["choices"][0]["delta"].get("content") or "")


class Responses:
    """OpenAI Responses, stateless."""

    path = "/responses"

    def body(self, history: list[Said], tools: bool) -> dict[str, Any]:
        out: dict[str, Any] = {
            "input": [part for item in history for part in self._items(item)],
            "store": False,
        }
        return out | ({"tools": [{"type": "function", "strict": False, **LOOK}]} if tools else {})

    def _items(self, item: Said) -> list[dict[str, Any]]:
        if item.role == "tool":
            return [{"type": "function_call_output", "call_id": item.answers, "output": item.text}]
        out = [{"role": item.role, "content": item.text}] if item.text or item.role != "assistant" else []
        return out + [
            {"type": "function_call", "call_id": name, "name": "look", "arguments": given}
            for name, given in item.calls
        ]

    def said(self, answer: dict[str, Any]) -> Said:
        text, calls = "", []
        for item in answer["output"]:
            if item["type"] == "message":
                text += "".join(part["text"] for part in item["content"])
            elif item["type"] == "function_call":
                calls.append((item["call_id"], item["arguments"]))
        return Said("assistant", text, None, calls)

    def part(self, event: dict[str, Any]) -> str:
        return str(event["delta"]) if event["type"] == "response.output_text.delta" else ""


class Anthropic:
    """Anthropic Messages."""

    path = "/messages"

    def body(self, history: list[Said], tools: bool) -> dict[str, Any]:
        system = " ".join(item.text or "" for item in history if item.role == "system")
        messages = [self._message(item) for item in history if item.role != "system"]
        out: dict[str, Any] = {"messages": messages, "max_tokens": 1000} | (
            {"system": system} if system else {}
        )
        look = {"name": "look", "description": LOOK["description"], "input_schema": LOOK["parameters"]}
        return out | ({"tools": [look]} if tools else {})

    def _message(self, item: Said) -> dict[str, Any]:
        if item.role == "tool":
            block = {"type": "tool_result", "tool_use_id": item.answers, "content": item.text}
            return {"role": "user", "content": [block]}
        blocks: list[dict[str, Any]] = [{"type": "text", "text": item.text}] if item.text else []
        blocks += [
            {"type": "tool_use", "id": name, "name": "look", "input": json.loads(given)}
            for name, given in item.calls
        ]
        return {"role": item.role, "content": blocks}

    def said(self, answer: dict[str, Any]) -> Said:
        text, calls = "", []
        for block in answer["content"]:
            if block["type"] == "text":
                text += block["text"]
            elif block["type"] == "tool_use":
                calls.append((block["id"], json.dumps(block["input"])))
        return Said("assistant", text, None, calls)

    def part(self, event: dict[str, Any]) -> str:
        return str(event["delta"].get("text", "")) if event["type"] == "content_block_delta" else ""


DIALECTS: dict[str, Any] = {"chat": Chat(), "responses": Responses(), "anthropic": Anthropic()}


class Agent:
    """An agent inside one rollout. `spoil` is what it does to its history before every call."""

    def __init__(
        self, served: Served, opened: dict[str, Any], dialect: Any, spoil: Callable[[list[Said]], None]
    ):
        self.opened = opened
        self.dialect = dialect
        self._served = served
        self._spoil = spoil
        self._headers = {"Authorization": f"Bearer {opened['api_key']}"}

    def body(self, history: list[Said], *, tools: bool = True) -> dict[str, Any]:
        self._spoil(history)
        return {"model": "gpt-4o", **self.dialect.body(history, tools)}

    def send(self, body: dict[str, Any], **headers: str) -> Said:
        url = self.opened["base_url"] + self.dialect.path
        response = httpx2.post(url, json=body, headers=self._headers | headers, timeout=120)
        assert response.status_code == 200, response.text
        return self.dialect.said(response.json())

    def ask(self, history: list[Said], *, tools: bool = True, **headers: str) -> Said:
        """A call with the history, whose answer is added to it."""
        answer = self.send(self.body(history, tools=tools), **headers)
        history.append(answer)
        return answer

    def work(self, history: list[Said], turns: int, **headers: str) -> None:
        """Calls with a tool's result behind each."""
        for _ in range(turns):
            answer = self.ask(history, **headers)
            history += [Said("tool", "result", answers=name) for name, _ in answer.calls]
            if not answer.calls:
                history.append(Said("user", "go on"))

    def stream(self, body: dict[str, Any], *, at_most: int | None = None) -> str:
        """A streamed answer's text; `at_most` characters are read of it before the client goes away."""
        url, text = self.opened["base_url"] + self.dialect.path, ""
        body = body | {"stream": True}
        with httpx2.stream("POST", url, json=body, headers=self._headers, timeout=120) as response:
            assert response.status_code == 200
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    text += self.dialect.part(json.loads(line[6:]))
                if at_most is not None and len(text) >= at_most:
                    break
        return text


def rewritten(history: list[Said]) -> None:
    """What a careless client does to its assistant's messages: no thought stays, arguments are written anew, calls are
    numbered anew, and the text has other white space around it."""
    names: dict[str, str] = {}
    for item in history:
        item.thought = None
        if item.role == "assistant" and item.text:
            item.text = random.choice(["", " ", "\n"]) + item.text.strip() + random.choice(["", "\n"])
        for name, _ in item.calls:
            names[name] = f"call_{len(names)}_{random.randrange(1000)}"
        item.calls = [(names[name], shuffled(given)) for name, given in item.calls]
        item.answers = names.get(item.answers, item.answers)


def shuffled(given: str) -> str:
    """The same arguments as another program would write them."""

    def again(value: Any) -> Any:
        if isinstance(value, dict):
            keys = random.sample(list(value), len(value))
            return {key: again(value[key]) for key in keys}
        if isinstance(value, float) and value.is_integer():
            return int(value)
        return [again(item) for item in value] if isinstance(value, list) else value

    style: dict[str, Any] = random.choice(
        [{"indent": 2}, {"separators": (",", ":")}, {"ensure_ascii": False}]
    )
    return json.dumps(again(json.loads(given)), **style)


Tokens = tuple[tuple[int, ...], tuple[int, ...]]
"""What an engine was given, and what it sampled."""


@dataclass
class Watched(Served):
    """A server whose engine writes down what it was given and sampled."""

    log: Path = Path()

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []

    def engine_saw(self, since: int) -> Counter[Tokens]:
        return Counter(
            (tuple(row["prompt_token_ids"]), tuple(row["token_ids"])) for row in self.lines()[since:]
        )

    def spec(self, trajectories: list[dict[str, Any]], model: str) -> JobSpec:
        """What a train call of one group would hand to the trainer."""

        async def build() -> JobSpec:
            store = await Store.open(self.server.path / "server")
            try:
                batch = Batch(store, "tests", model, TrainConfig())
                await batch.add(0, GroupIn(trajectories=[TrajectoryIn(**item) for item in trajectories]))
                return await batch.finish()
            finally:
                await store.close()

        return asyncio.run(build())

    def trainer_gets(self, *rollout_ids: str, model: str = "alpha") -> Counter[Tokens]:
        """What the trainer reads for a train call with these whole rollouts."""
        whole = [{"rollout_id": name, "selects_rollout": True, "reward": 1.0} for name in rollout_ids]
        job = TrainJob(
            job_id="j", project="tests", name=model, batch=1, parent_step=0, step=1, lora=LoraConfig(),
            base=ResolvedBaseModel(
                name="b", path="b", sha256="", parameters=1, context_length=8192, source="folder"
            ),
            model_dir="m", blob_dir=str(self.server.path / "server" / "blobs"),
            config=ResolvedTrainConfig(learning_rate=1e-3), groups=self.spec(whole, model).groups,
        )  # fmt: skip
        choices = [choice for member in load_batch(job, max_length=8192).members for choice in member.choices]
        assert all(choice.trainable.all() for choice in choices)
        return Counter(
            (tuple(choice.prompt.tolist()), tuple(choice.completion.tolist())) for choice in choices
        )
