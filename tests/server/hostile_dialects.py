"""An agent's history, and how each dialect writes it: with every form that the dialect has for one and the same thing."""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass, field
from typing import Any, Protocol

LOOK: dict[str, Any] = {
    "name": "look",
    "description": "Looks.",
    "parameters": {"type": "object", "properties": {"n": {"type": "number"}}},
}
LEFT_OUT, WHOLE, UNSEALED, SEALED, NAMED = "left out", "whole", "without its seal", "the seal alone", "by id"
"""How reasoning goes back to the server."""


@dataclass
class Called:
    """A tool call. `item` is the id of the item that it stood in, where the dialect has items."""

    name: str
    arguments: str
    """JSON text."""
    item: str | None = None


@dataclass
class Said:
    """A message of the agent's history, and how it is written the next time."""

    role: str
    text: str | None
    thought: str | None = None
    calls: list[Called] = field(default_factory=list)
    answers: str = ""
    """Of a tool's result: the id of its call."""
    seal: str | None = None
    """What names the reasoning: a signature, or encrypted content."""
    items: dict[str, str] = field(default_factory=dict)
    """Ids of the items that reasoning and text stood in."""
    own: bool = False
    """An assistant's message that the client wrote: it is history as it stands, and nothing of it is forgiven."""
    sends: str = LEFT_OUT
    """Which form of its reasoning goes back."""
    empty: str = "kept"
    """What becomes of empty content: `kept`, `null` or `dropped`."""
    cut: int | None = None
    """Where the text is cut into two parts."""

    def parts(self) -> list[str]:
        """The text as the parts that it is sent in."""
        text = self.text or ""
        return [text] if self.cut is None or not text else [text[: self.cut], text[self.cut :]]


class Dialect(Protocol):
    """One protocol, as a client of it writes requests and reads answers."""

    path: str
    forms: tuple[str, ...]
    """In which forms it can send reasoning back."""

    def body(self, history: list[Said], *, tools: bool, joined: bool) -> dict[str, Any]:
        """A request. `joined`: results that follow one another are one message, where the dialect can do that."""

    def said(self, answer: dict[str, Any]) -> Said:
        """The message of a whole answer."""

    def whole(self, events: list[dict[str, Any]]) -> dict[str, Any]:
        """A streamed answer put together, as far as `said` reads it."""

    def part(self, event: dict[str, Any]) -> str:
        """The text of a streamed event."""


class Chat:
    """OpenAI Chat Completions."""

    path = "/chat/completions"
    forms = (LEFT_OUT, WHOLE, UNSEALED)

    def body(self, history: list[Said], *, tools: bool, joined: bool) -> dict[str, Any]:
        out: dict[str, Any] = {"messages": [self._message(item) for item in history]}
        return out | ({"tools": [{"type": "function", "function": LOOK}]} if tools else {})

    def _message(self, item: Said) -> dict[str, Any]:
        data: dict[str, Any] = {"role": item.role, "content": item.text}
        if item.cut is not None and item.text:
            data["content"] = [{"type": "text", "text": part} for part in item.parts()]
        if item.role == "assistant":
            if not item.text and item.empty == "dropped":
                del data["content"]
            elif not item.text:
                data["content"] = None if item.empty == "null" else ""
            if item.calls:
                data["tool_calls"] = [
                    {
                        "id": call.name,
                        "type": "function",
                        "function": {"name": "look", "arguments": self._arguments(item, call)},
                    }
                    for call in item.calls
                ]
            if item.thought and item.sends != LEFT_OUT:
                # vLLM's clients know it by the second name.
                data["reasoning_content" if item.sends == WHOLE else "reasoning"] = item.thought
        if item.answers:
            data["tool_call_id"] = item.answers
        return data

    def _arguments(self, item: Said, call: Called) -> str:
        """No arguments may be an empty text."""
        return "" if item.empty != "kept" and call.arguments.strip() == "{}" else call.arguments

    def said(self, answer: dict[str, Any]) -> Said:
        message = answer["choices"][0]["message"]
        calls = [
            Called(call["id"], call["function"]["arguments"]) for call in message.get("tool_calls") or []
        ]
        return Said("assistant", message.get("content"), message.get("reasoning_content"), calls)

    def whole(self, events: list[dict[str, Any]]) -> dict[str, Any]:
        message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
        for event in events:
            for name, value in event["choices"][0]["delta"].items():
                if name in message:
                    message[name] += value
        return {"choices": [{"message": message}]}

    def part(self, event: dict[str, Any]) -> str:
        return str(event["choices"][0]["delta"].get("content") or "")


class Responses:
    """OpenAI Responses, stateless."""

    path = "/responses"
    forms = (LEFT_OUT, WHOLE, UNSEALED, SEALED, NAMED)

    def body(self, history: list[Said], *, tools: bool, joined: bool) -> dict[str, Any]:
        out: dict[str, Any] = {
            "input": [part for item in history for part in self._items(item)],
            "store": False,
            "include": ["reasoning.encrypted_content"],
        }
        return out | ({"tools": [{"type": "function", "strict": False, **LOOK}]} if tools else {})

    def _items(self, item: Said) -> list[dict[str, Any]]:
        if item.role == "tool":
            return [{"type": "function_call_output", "call_id": item.answers, "output": item.text}]
        if item.role != "assistant":
            return [{"role": item.role, "content": item.text}]
        out = self._reasoning(item)
        if item.text or not item.calls:
            content: Any = item.text or ""
            if item.cut is not None and item.text:
                content = [{"type": "output_text", "text": part} for part in item.parts()]
            message = {"type": "message", "role": "assistant", "content": content}
            out.append(message | ({"id": item.items["message"]} if "message" in item.items else {}))
        for call in item.calls:
            data = {
                "type": "function_call",
                "call_id": call.name,
                "name": "look",
                "arguments": call.arguments,
            }
            out.append(data | ({"id": call.item} if call.item else {}))
        return out

    def _reasoning(self, item: Said) -> list[dict[str, Any]]:
        if item.seal is None or item.sends == LEFT_OUT:
            return []
        data: dict[str, Any] = {"type": "reasoning", "summary": []}
        if item.sends in (WHOLE, NAMED) and "reasoning" in item.items:
            data["id"] = item.items["reasoning"]
        if item.sends in (WHOLE, UNSEALED):
            data["content"] = [{"type": "reasoning_text", "text": item.thought}]
        if item.sends in (WHOLE, SEALED):
            data["encrypted_content"] = item.seal
        return [data] if len(data) > 2 else []

    def said(self, answer: dict[str, Any]) -> Said:
        out = Said("assistant", "")
        for item in answer["output"]:
            if item["type"] == "message":
                out.text = (out.text or "") + "".join(part["text"] for part in item["content"])
                out.items["message"] = item["id"]
            elif item["type"] == "function_call":
                out.calls.append(Called(item["call_id"], item["arguments"], item["id"]))
            elif item["type"] == "reasoning":
                out.thought = "".join(part["text"] for part in item["content"])
                out.seal, out.items["reasoning"] = item["encrypted_content"], item["id"]
        return out

    def whole(self, events: list[dict[str, Any]]) -> dict[str, Any]:
        return dict(events[-1]["response"])

    def part(self, event: dict[str, Any]) -> str:
        return str(event["delta"]) if event["type"] == "response.output_text.delta" else ""


class Anthropic:
    """Anthropic Messages. `hidden`: thoughts come without their text, with their signature alone."""

    path = "/messages"
    forms = (LEFT_OUT, WHOLE, UNSEALED, SEALED)

    def __init__(self, *, hidden: bool = False) -> None:
        self._hidden = hidden

    def body(self, history: list[Said], *, tools: bool, joined: bool) -> dict[str, Any]:
        system = [item.text for item in history if item.role == "system"]
        messages = [self._message(item) for item in history if item.role != "system"]
        out: dict[str, Any] = {"messages": _joined(messages) if joined else messages, "max_tokens": 1000}
        if system:
            (out["system"],) = system
            if joined:  # as programs that mark what is to be cached write it
                out["system"] = [
                    {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}} for text in system
                ]
        if self._hidden:
            out["thinking"] = {"type": "adaptive", "display": "omitted"}
        look = {"name": "look", "description": LOOK["description"], "input_schema": LOOK["parameters"]}
        return out | ({"tools": [look]} if tools else {})

    def _message(self, item: Said) -> dict[str, Any]:
        if item.role == "tool":
            block = {"type": "tool_result", "tool_use_id": item.answers, "content": item.text}
            return {"role": "user", "content": [block]}
        if item.role == "user":
            return {"role": "user", "content": [{"type": "text", "text": item.text}]}
        blocks = self._thinking(item)
        if item.text or item.empty == "kept":
            blocks += [{"type": "text", "text": part} for part in item.parts()]
        blocks += [
            {"type": "tool_use", "id": call.name, "name": "look", "input": json.loads(call.arguments)}
            for call in item.calls
        ]
        return {"role": item.role, "content": blocks}

    def _thinking(self, item: Said) -> list[dict[str, Any]]:
        if item.seal is None or item.sends == LEFT_OUT:
            return []
        data = {"type": "thinking", "thinking": "", "signature": ""}
        if item.sends in (WHOLE, UNSEALED):
            data["thinking"] = item.thought or ""
        if item.sends in (WHOLE, SEALED):
            data["signature"] = item.seal
        return [data]

    def said(self, answer: dict[str, Any]) -> Said:
        out = Said("assistant", "")
        for block in answer["content"]:
            if block["type"] == "text":
                out.text = (out.text or "") + block["text"]
            elif block["type"] == "tool_use":
                out.calls.append(Called(block["id"], json.dumps(block["input"])))
            elif block["type"] == "thinking":
                out.thought, out.seal = block["thinking"] or None, block["signature"]
        return out

    def whole(self, events: list[dict[str, Any]]) -> dict[str, Any]:
        blocks: list[dict[str, Any]] = []
        given = ""
        for event in events:
            if event["type"] == "content_block_start":
                blocks.append(dict(event["content_block"]))
                given = ""
            elif event["type"] == "content_block_delta":
                delta = event["delta"]
                given += delta.get("partial_json", "")
                for name in ("text", "thinking", "signature"):
                    if name in delta:
                        blocks[-1][name] += delta[name]
            elif event["type"] == "content_block_stop" and given:
                blocks[-1]["input"] = json.loads(given)
        return {"content": blocks}

    def part(self, event: dict[str, Any]) -> str:
        return str(event["delta"].get("text", "")) if event["type"] == "content_block_delta" else ""


def _joined(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Neighbouring messages of the user's as one, which is how Anthropic wants the results of parallel calls."""
    out: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "user" and out and out[-1]["role"] == "user" and _results(message):
            out[-1] = {"role": "user", "content": [*out[-1]["content"], *message["content"]]}
        else:
            out.append(message)
    return out


def _results(message: dict[str, Any]) -> bool:
    return all(block["type"] == "tool_result" for block in message["content"])


DIALECTS: dict[str, Dialect] = {"chat": Chat(), "responses": Responses(), "anthropic": Anthropic()}


# -- what clients do to their history before they send it


def answers(history: list[Said]) -> list[Said]:
    """The answers that the server gave."""
    return [item for item in history if item.role == "assistant" and not item.own]


def strips_reasoning(history: list[Said], rng: random.Random) -> None:
    """No thought goes back."""
    for item in answers(history):
        item.sends = LEFT_OUT


class SendsReasoning:
    """Thoughts go back in one form, or each in any of several."""

    def __init__(self, *forms: str) -> None:
        self._forms = forms

    def __call__(self, history: list[Said], rng: random.Random) -> None:
        for item in answers(history):
            item.sends = rng.choice(self._forms)


def reorders_keys(history: list[Said], rng: random.Random) -> None:
    """Arguments are read and written with their keys in another order."""

    def again(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: again(value[key]) for key in rng.sample(list(value), len(value))}
        return [again(item) for item in value] if isinstance(value, list) else value

    for call in _calls(answers(history)):
        call.arguments = json.dumps(again(json.loads(call.arguments)))


def changes_white_space(history: list[Said], rng: random.Random) -> None:
    """Around an answer, and between the parts of arguments."""
    for item in answers(history):
        if item.text and item.text.strip():
            item.text = rng.choice(["", " ", "\n"]) + item.text.strip() + rng.choice(["", "\n", " \t"])
    for call in _calls(answers(history)):
        style: dict[str, Any] = rng.choice([{"indent": 2}, {"separators": (",", ":")}])
        call.arguments = json.dumps(json.loads(call.arguments), **style)


def spells_arguments_anew(history: list[Said], rng: random.Random) -> None:
    """As a program in JavaScript writes them: every number is a double, 1.0 is 1, infinity is null."""

    def again(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: again(item) for key, item in value.items()}
        if isinstance(value, list):
            return [again(item) for item in value]
        if isinstance(value, bool) or not isinstance(value, int | float):
            return value
        number = float(value)
        if not math.isfinite(number):
            return None
        return int(number) if number.is_integer() else number

    for call in _calls(answers(history)):
        call.arguments = json.dumps(again(json.loads(call.arguments)), ensure_ascii=rng.random() < 0.5)


def renumbers_calls(history: list[Said], rng: random.Random) -> None:
    """Tool calls get other ids, and their results too."""
    names: dict[str, str] = {}
    for item in history:
        for call in item.calls:
            names[call.name] = f"call_{len(names)}_{rng.randrange(1000)}"
            call.name = names[call.name]
        item.answers = names.get(item.answers, item.answers)


def drops_empty_content(history: list[Said], rng: random.Random) -> None:
    """ "", null and no content at all are one."""
    for item in answers(history):
        item.empty = rng.choice(["kept", "null", "dropped"])


def cuts_text(history: list[Said], rng: random.Random) -> None:
    """An answer is sent in two parts."""
    for item in answers(history):
        item.cut = rng.randrange(len(item.text) + 1) if item.text and rng.random() < 0.7 else None


def forgets_items(history: list[Said], rng: random.Random) -> None:
    """The ids of some items are left out."""
    for item in answers(history):
        for name in [name for name in item.items if rng.random() < 0.5]:
            del item.items[name]
        for call in item.calls:
            call.item = call.item if rng.random() < 0.5 else None


def _calls(history: list[Said]) -> list[Called]:
    return [call for item in history for call in item.calls]


def habits_of(dialect: Dialect) -> dict[str, Any]:
    """What a client of the dialect may do, by name."""
    habits: dict[str, Any] = {
        "keeps everything": SendsReasoning(WHOLE),
        "strips reasoning": strips_reasoning,
        "reorders keys": reorders_keys,
        "changes white space": changes_white_space,
        "spells arguments anew": spells_arguments_anew,
        "renumbers calls": renumbers_calls,
        "drops empty content": drops_empty_content,
        "cuts text": cuts_text,
        "sends reasoning now and then": SendsReasoning(*dialect.forms),
    }
    habits |= {f"sends reasoning {form}": SendsReasoning(form) for form in dialect.forms[2:]}
    return habits | ({"forgets items": forgets_items} if NAMED in dialect.forms else {})
