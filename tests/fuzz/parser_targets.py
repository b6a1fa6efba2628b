"""What is fuzzed: functions of bytes that return whether the input meant something, and raise where a promise is broken.

The promises: a request is read or refused with an error that says so (never a 5xx, never another exception), and what was
read can be rendered and compared; a completion's pieces are the same however its text is cut, its calls are of functions
that were offered, and without a call its text is what was sampled; an event stream's objects are the same however it is cut.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Protocol

from art.backends.events import EventReader
from art.errors import ArtError, InfraError
from art.rollouts.recording import completed_choices
from art.server.body import read_json, reading
from art.server.calls import CallRequest
from art.server.dialects.anthropic_request import parse_count_request, parse_messages_request
from art.server.dialects.chat_request import parse_chat_request
from art.server.dialects.completions_request import parse_completions_request
from art.server.dialects.responses_items import Reference, messages_of
from art.server.dialects.responses_request import parse_responses_request
from art.server.upstreams_answer import events, said, usage_of
from art.tokens.formats import REASONING_FORMATS, TOOL_FORMATS
from art.tokens.parsers.base import CallParser, Offered, OutputParser
from art.tokens.parsers.harmony import HarmonyParser
from art.tokens.parsers.reasoning import ReasoningParser
from art.types.messages import Message, Piece, Thought, ToolCall, template_messages

OFFERED = Offered(
    {
        "get_weather": {
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "near": {"type": "array"},
                "more": {"type": "object"},
                "hint": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "ratio": {"type": "number"},
            }
        },
        "look_up": {},
    }
)
SINGLE = 100
"""Characters up to which a text is also cut between all of them."""


# -- requests


class Parse(Protocol):
    """Reads a request's body."""

    def __call__(self, body: object, *, size: int) -> Any: ...


def read(data: bytes, parse: Parse) -> Any:
    """What the server makes of a body, None where it refuses it."""
    try:
        body = read_json(data)
        with reading("the request"):
            return parse(body, size=len(data))
    except ArtError as refusal:
        error = refusal
    assert 400 <= error.status < 500, error
    assert error.message, error
    json.dumps(error.to_dict()).encode()
    return None


def usable(call: CallRequest, messages: list[Message]) -> None:
    """What is done with every request's messages before a model sees them."""
    template_messages(messages)
    for message in messages:
        kept = json.dumps(message.to_openai(), ensure_ascii=False).encode()
        Message.model_validate_json(kept)
    for tool in call.tools:
        json.dumps(tool.to_template(), ensure_ascii=False).encode()
    call.digests()


def chat(data: bytes) -> bool:
    """POST /v1/chat/completions."""
    ask = read(data, parse_chat_request)
    if ask is not None:
        usable(ask.call, ask.call.messages)
    return ask is not None


def messages(data: bytes) -> bool:
    """POST /v1/messages, and /v1/messages/count_tokens."""
    ask, count = read(data, parse_messages_request), read(data, parse_count_request)
    for call in ([ask.call] if ask is not None else []) + ([count] if count is not None else []):
        usable(call, call.messages)
    return ask is not None or count is not None


def responses(data: bytes) -> bool:
    """POST /v1/responses."""
    ask = read(data, parse_responses_request)
    if ask is None:
        return False
    known = [item for item in ask.items if not isinstance(item, Reference)]
    usable(ask.call, messages_of(known))
    json.dumps(ask.call.kept).encode()
    return True


def completions(data: bytes) -> bool:
    """POST /v1/completions."""
    return read(data, parse_completions_request) is not None


# -- completions


def cut(text: Any, seed: int) -> list[Any]:
    """Text or bytes in pieces of random length."""
    draw = random.Random(seed)
    places = {draw.randrange(len(text) + 1) for _ in range(draw.randrange(1, 12))}
    return [text[a:b] for a, b in pairwise(sorted(places | {0, len(text)}))]


def pieces(parser: OutputParser, parts: list[str]) -> list[Piece]:
    """All that a parser makes of a text in these parts."""
    return [piece for part in parts for piece in parser.feed(part)] + parser.finish()


def shape(found: list[Piece]) -> list[tuple[str, Any]]:
    """Comparable: neighbours of a kind joined, calls without their ids."""
    out: list[tuple[str, Any]] = []
    for piece in found:
        if isinstance(piece, ToolCall):
            out.append(("call", (piece.function.name, piece.function.arguments)))
            continue
        kind, text = ("thought", piece.text) if isinstance(piece, Thought) else ("text", piece)
        if out and out[-1][0] == kind:
            text = out.pop()[1] + text
        out.append((kind, text))
    return out


def parser_of(tools: int, reasoning: int) -> tuple[OutputParser, bool]:
    """A fresh parser by numbers, and whether it shows all text as it was sampled where there is no call."""
    form = TOOL_FORMATS[tools % len(TOOL_FORMATS)].form
    if form is None:
        return HarmonyParser(OFFERED), False
    inner = CallParser(form(), OFFERED)
    kinds = [marks for marks in REASONING_FORMATS.values() if marks is not None]
    number = reasoning % (2 * len(kinds) + 1)
    if number == 0:
        return inner, True
    marks = kinds[(number - 1) // 2]
    return ReasoningParser(marks, inner, inside=number % 2 == 0), False


def tool_calls(data: bytes) -> bool:
    """The format of calls, the format of reasoning, a seed for the cuts, and the completion's text in UTF-8."""
    if len(data) < 4:
        return False
    text = data[3:].decode("utf-8", "replace")

    def made(parts: list[str]) -> list[tuple[str, Any]]:
        return shape(pieces(parser_of(data[0], data[1])[0], parts))

    whole = made([text])
    assert made(cut(text, data[2])) == whole
    if len(text) <= SINGLE:
        assert made(list(text)) == whole
    called = [value for kind, value in whole if kind == "call"]
    for name, arguments in called:
        assert name in OFFERED.parameters
        assert isinstance(json.loads(arguments), dict)
        arguments.encode()
    if parser_of(data[0], data[1])[1] and not called:
        assert "".join(value for _, value in whole) == text
    return bool(called) or any(kind == "thought" for kind, _ in whole)


# -- streams


def objects(parts: list[bytes]) -> tuple[list[Any], bool]:
    """The events of a stream, and whether it was read to its end."""
    reader, found = EventReader(), []
    try:
        for part in parts:
            found += reader.feed(part)
    except InfraError:
        return found, False
    return found, True


def sse(data: bytes) -> bool:
    """A seed for the cuts, and a stream of server-sent events: as jobs', as an upstream's, as a chat completion's."""
    if not data:
        return False
    stream = data[1:]
    whole, sound = objects([stream])
    in_parts, parts_sound = objects(cut(stream, data[0]))
    assert parts_sound == sound
    if sound:
        assert in_parts == whole
    if len(stream) <= SINGLE:
        each, each_sound = objects([stream[at : at + 1] for at in range(len(stream))])
        assert each_sound == sound
        assert each == whole or not sound
    passed_on = events(stream)
    usage_of(passed_on)
    said(stream).encode("utf-8", "surrogatepass")
    choices = completed_choices(stream)
    assert all(isinstance(choice, dict) for choice in choices)
    return bool(whole or passed_on or choices)


TARGETS: dict[str, Callable[[bytes], bool]] = {
    "chat": chat,
    "responses": responses,
    "messages": messages,
    "completions": completions,
    "tool_calls": tool_calls,
    "sse": sse,
}
JSON_TARGETS = frozenset({"chat", "responses", "messages", "completions"})
"""Those whose input is one JSON value: it is changed as such too, not only byte by byte."""
