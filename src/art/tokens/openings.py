"""Template variables that decide nothing but how the assistant's turn opens.

`enable_thinking` of many families is one: off, it writes an empty thought for the model to go on behind. The turns
before stay what they are, so a conversation in which it is switched is still one conversation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from art.errors import InvalidInput
from art.tokens.renderer import Renderer
from art.types.messages import FunctionCall, FunctionSpec, Message, Tool, ToolCall

_TOOL = Tool(function=FunctionSpec(name="look_up", description="Looks up.", parameters={"type": "object"}))
_CALL = ToolCall(id="call_000000001", function=FunctionCall(name="look_up", arguments="{}"))
_USER = Message(role="user", content="A question?")
_ANSWER = Message(role="assistant", content="An answer.", reasoning="A thought.")
_CALLED = [
    Message(role="assistant", content="", reasoning="A second.", tool_calls=(_CALL,)),
    Message(role="tool", content="A result.", tool_call_id=_CALL.id),
]
_SYSTEM = Message(role="system", content="Be brief.")
_PROBES: list[tuple[list[Message], list[Tool]]] = [
    ([_SYSTEM, _USER, _ANSWER, _USER, *_CALLED, _ANSWER, _USER], [_TOOL]),
    ([_USER, _ANSWER, _USER, *_CALLED, _ANSWER], [_TOOL]),
    ([_SYSTEM, _USER, _ANSWER, _USER], []),
    ([_USER, _ANSWER, _USER], []),
]


def opening_options(renderer: Renderer, options: Mapping[str, Any]) -> frozenset[str]:
    """The names among `options` that change nothing in the turns before; none where no conversation can be rendered."""
    return frozenset(name for name, value in options.items() if _opens_only(renderer, {name: value}))


def _opens_only(renderer: Renderer, option: Mapping[str, Any]) -> bool:
    """Whether conversations with and without the option are the same, as far as the template takes them."""
    compared = 0
    for messages, tools in _PROBES:
        without = _closed(renderer, messages, tools, {})
        if without is None:
            continue
        compared += 1
        if _closed(renderer, messages, tools, option) != without:
            return False
    return compared > 0


def _closed(
    renderer: Renderer, messages: Sequence[Message], tools: Sequence[Tool], options: Mapping[str, Any]
) -> str | None:
    """The conversation without a turn that is opened; None where the template refuses it."""
    try:
        return renderer.text(messages, tools=tools, options=options, generation=False)
    except InvalidInput:
        return None
