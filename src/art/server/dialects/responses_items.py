"""Input items of a Responses request, and how they become messages. Pure: what only the store knows is filled in between.

OpenAI's items are smaller than a turn: reasoning, text and every call of one answer stand one after another.
Items that we made carry the call they are of in their id, which tells turns apart and puts them back together.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import ValidationError

from art.errors import InvalidInput, UnsupportedOption
from art.tokens.graph import node_name
from art.types.messages import FunctionCall, Message, ToolCall

_OURS = re.compile(r"(?:rs|msg|fc)_(?P<call>call-[0-9a-f]{32})_(?P<index>[0-9]{1,6})")
_NODE = re.compile(r"art:(?P<call>call-[0-9a-f]{32}):0")
_TEXT_PARTS = frozenset({"input_text", "output_text", "text"})
_MEDIA = frozenset({"input_image", "input_file", "input_audio"})


def item_id(prefix: Literal["rs", "msg", "fc"], call_id: str, index: int) -> str:
    """The id of output item `index` of a call."""
    return f"{prefix}_{call_id}_{index}"


def call_of_item(given: object) -> str | None:
    """The call that an item of ours is of; None for any other id."""
    found = _OURS.fullmatch(given) if isinstance(given, str) else None
    return found["call"] if found else None


@dataclass(frozen=True, slots=True)
class Said:
    """A message."""

    role: str
    text: str
    call: str | None = None
    """Of an item that we made: the call it is of. So in the other items."""


@dataclass(frozen=True, slots=True)
class Called:
    """A tool call of the model's."""

    tool_call: ToolCall
    call: str | None = None


@dataclass(frozen=True, slots=True)
class Returned:
    """What a tool answered."""

    tool_call_id: str
    text: str


@dataclass(frozen=True, slots=True)
class Thinking:
    """Reasoning. Without a text it may be in the record of `call`."""

    text: str | None
    call: str | None = None
    number: int = 0
    """Of the input item, for errors."""
    sealed: bool = False
    """It came with `encrypted_content`."""


@dataclass(frozen=True, slots=True)
class Reference:
    """An item that only the store has."""

    item_id: str
    number: int


Item = Said | Called | Returned | Thinking | Reference


def parse_input(data: object) -> list[Item]:
    """The items of `input`. InvalidInput and UnsupportedOption name the item."""
    if data is None:
        return []
    if isinstance(data, str):
        return [Said("user", data)]
    if not isinstance(data, list):
        raise InvalidInput("`input` must be a text or a list of items")
    return [parse_item(item, number) for number, item in enumerate(data)]


def parse_item(item: object, number: int) -> Item:
    """One item of `input`."""
    where = f"input[{number}]"
    if not isinstance(item, dict):
        raise InvalidInput(f"`{where}` must be an object")
    kind = item.get("type")
    if kind is None:
        kind = "message" if "role" in item else "item_reference"
    call = call_of_item(item.get("id"))
    if kind == "message":
        return _message(item, where, call)
    if kind == "function_call":
        return Called(_tool_call(item, where), call)
    if kind == "function_call_output":
        text = _content(item.get("output"), f"{where}.output")
        return Returned(_required(item, "call_id", where), text)
    if kind == "reasoning":
        return _thinking(item, number, call)
    if kind == "item_reference":
        return Reference(_required(item, "id", where), number)
    raise UnsupportedOption(
        f"`{where}` is of type {str(kind)[:80]!r}, which this server does not take",
        hint="possible: message, function_call, function_call_output, reasoning, item_reference",
    )


def _message(item: dict[str, Any], where: str, call: str | None) -> Said:
    role = item.get("role")
    if role not in ("user", "assistant", "system", "developer"):
        raise InvalidInput(
            f"`{where}.role` is {str(role)[:80]!r}", hint="user, assistant, system or developer"
        )
    text = _content(item.get("content"), f"{where}.content")
    return Said("system" if role == "developer" else role, text, call)


def _tool_call(item: dict[str, Any], where: str) -> ToolCall:
    name, given = _required(item, "name", where), item.get("arguments", "{}")
    try:
        function = FunctionCall(name=name, arguments=given)
    except ValidationError as error:
        reason = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
        raise InvalidInput(f"`{where}` is not valid: {reason}") from error
    return ToolCall(id=_required(item, "call_id", where), function=function)


def _thinking(item: dict[str, Any], number: int, call: str | None) -> Thinking:
    where = f"input[{number}]"
    content, sealed = item.get("content"), item.get("encrypted_content")
    if content is not None and not isinstance(content, list):
        raise InvalidInput(f"`{where}.content` must be a list")
    texts = []
    for part in content or []:
        if not isinstance(part, dict) or not isinstance(part.get("text"), str):
            raise InvalidInput(f"`{where}.content` must hold parts of type reasoning_text")
        texts.append(part["text"])
    if sealed is not None and not isinstance(sealed, str):
        raise InvalidInput(f"`{where}.encrypted_content` must be a text")
    found = _NODE.fullmatch(sealed) if sealed else None
    return Thinking(
        text="".join(texts) if texts else None,
        call=found["call"] if found else call,
        number=number,
        sealed=bool(sealed),
    )


def _required(item: dict[str, Any], name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str) or not value:
        raise InvalidInput(f"`{where}.{name}` must be a text that is not empty")
    return value


def _content(content: object, where: str) -> str:
    """A text or text parts as one text."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidInput(f"`{where}` must be a text or a list of parts")
    texts = []
    for number, part in enumerate(content):
        kind = str(part.get("type")) if isinstance(part, dict) else ""
        if kind in _MEDIA:
            raise InvalidInput(
                f"`{where}[{number}]` is of type {kind!r}; this model takes text only",
                hint="put what it shows or says into words",
            )
        value = part.get("refusal" if kind == "refusal" else "text") if isinstance(part, dict) else None
        if (kind not in _TEXT_PARTS and kind != "refusal") or not isinstance(value, str):
            raise InvalidInput(f"`{where}[{number}]` is of type {kind[:80]!r}; input_text is possible")
        texts.append(value)
    return "".join(texts)


@dataclass(slots=True)
class _Turn:
    """An answer of the model, put together from its items, and what its tools returned."""

    call: str | None = None
    thoughts: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    tool_calls: list[ToolCall] = field(default_factory=list)
    returned: list[Returned] = field(default_factory=list)
    last: type[Said | Called | Thinking] | None = None

    def takes(self, item: Said | Called | Thinking) -> bool:
        """Whether the item belongs to this answer.

        Known calls decide. Otherwise an answer ends where a tool has returned something, and two messages that
        stand side by side are two: nobody knows that they were one.
        """
        if self.call is not None and item.call is not None:
            return self.call == item.call
        beside = isinstance(item, Said) and self.last is Said
        return not self.returned and not beside

    def add(self, item: Said | Called | Thinking) -> None:
        self.call, self.last = self.call or item.call, type(item)
        if isinstance(item, Said):
            self.texts.append(item.text)
        elif isinstance(item, Called):
            self.tool_calls.append(item.tool_call)
        elif item.text is not None:
            self.thoughts.append(item.text)

    def messages(self) -> Iterator[Message]:
        text = "".join(self.texts)
        answer = Message(
            role="assistant",
            content=text if text or not self.tool_calls else None,
            reasoning="".join(self.thoughts) if self.thoughts else None,
            tool_calls=tuple(self.tool_calls),
        )
        if self.call is not None:
            answer = answer.model_copy(update={"recorded": node_name(self.call, 0)})
        yield answer
        for returned in self.returned:
            yield _tool_message(returned)


def _tool_message(returned: Returned) -> Message:
    return Message(role="tool", content=returned.text, tool_call_id=returned.tool_call_id)


def messages_of(items: Sequence[Item]) -> list[Message]:
    """Items as messages. References must have been replaced, and missing reasoning filled in where it is known."""
    out: list[Message | _Turn] = []
    for item in items:
        turn = out[-1] if out and isinstance(out[-1], _Turn) else None
        if isinstance(item, Reference):
            raise AssertionError("a reference was not resolved")
        if isinstance(item, Returned):
            if turn is not None:
                turn.returned.append(item)
            else:
                out.append(_tool_message(item))
        elif isinstance(item, Said) and item.role != "assistant":
            out.append(Message.model_validate({"role": item.role, "content": item.text}))
        else:
            if turn is None or not turn.takes(item):
                turn = _Turn()
                out.append(turn)
            turn.add(item)
    return [
        message for entry in out for message in (entry.messages() if isinstance(entry, _Turn) else [entry])
    ]
