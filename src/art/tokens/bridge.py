"""From one turn to the next without touching what was sampled.

For any chat template: the tokens that follow an assistant's completion are found by rendering the
conversation with a mark in place of that completion and tokenising only what stands behind the mark. So the
next prompt is the last prompt, the sampled tokens, and this tail. `proof.prove` shows at registration that the
template allows it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from art.errors import InvalidInput
from art.tokens.formats import call_end
from art.tokens.parsers import harmony
from art.tokens.renderer import Renderer
from art.types.messages import FunctionCall, FunctionSpec, Message, Tool, ToolCall

SAME_END = {harmony.RETURN: harmony.END, harmony.CALL: harmony.END}
"""Tokens with which a model ends its turn, and the one that the template writes behind an answer without calls. As
the first was sampled, it stays, and the second is not written behind it."""


def suffix_text(
    renderer: Renderer,
    history: Sequence[Message],
    tail: Sequence[Message],
    *,
    tools: Sequence[Tool] = (),
    options: Mapping[str, Any] | None = None,
) -> str:
    """What the template writes behind the completion that is `history`'s last message.

    It starts with the end of that turn and ends with the assistant's next turn opened.
    """
    short = _beginning(history)
    if len(short) < len(history):
        with_tools = bool(tools) or any(message.role == "tool" for message in tail)
        if _tail_is_local(renderer, with_tools, json.dumps(options or {}, sort_keys=True, default=str)):
            # Long conversations need not be rendered again. Nor need answers that the template could not write,
            # such as two calls where it takes one: the memory has them as tokens.
            history = short
    return _suffix(renderer, history, tail, tools=tools, options=options)


def _suffix(
    renderer: Renderer,
    history: Sequence[Message],
    tail: Sequence[Message],
    *,
    tools: Sequence[Tool],
    options: Mapping[str, Any] | None,
) -> str:
    if history[-1].tool_calls and tail and tail[0].role == "tool" and _writes_results_by_call(renderer):
        return _behind_calls(renderer, history, tail, tools=tools, options=options)
    mark = _mark([*history, *tail])
    marked = [*history[:-1], Message(role="assistant", content=mark), *tail]
    text = renderer.text(marked, tools=tools, options=options)
    return text[_end_of(mark, text) :]


def tail_tokens(
    renderer: Renderer,
    history: Sequence[Message],
    tail: Sequence[Message],
    *,
    last_token: int,
    at_most: int | None = None,
    tools: Sequence[Tool] = (),
    options: Mapping[str, Any] | None = None,
) -> list[int]:
    """The tokens that follow the sampled tokens of `history`'s last message.

    `last_token` is the last one sampled. Where it is the token with which the template ends the turn, that
    end is not written twice; where the completion was cut off, the end is added. `at_most` as in `Tokenizer.encode`.
    """
    tokenizer = renderer.tokenizer
    text = suffix_text(renderer, history, tail, tools=tools, options=options)
    end = tokenizer.decode([last_token], skip_special=False)
    unspaced = text.lstrip()
    if end in SAME_END and unspaced.startswith(SAME_END[end]):
        return tokenizer.encode(unspaced.removeprefix(SAME_END[end]), at_most=at_most)
    if end and unspaced.startswith(end):
        tokens = tokenizer.encode(unspaced, at_most=None if at_most is None else at_most + 1)
        if tokens and tokens[0] == last_token:
            return tokens[1:]
    return tokenizer.encode(text, at_most=at_most)


def _behind_calls(
    renderer: Renderer,
    history: Sequence[Message],
    tail: Sequence[Message],
    *,
    tools: Sequence[Tool],
    options: Mapping[str, Any] | None,
) -> str:
    """As `suffix_text`, with the calls kept, whose names and ids the results need, and marked arguments in them."""
    mark = _mark([*history, *tail])
    arguments = FunctionCall(name="f", arguments=f'{{"mark": "{mark}"}}').arguments
    calls = tuple(
        ToolCall(id=call.id, function=FunctionCall(name=call.function.name, arguments=arguments))
        for call in history[-1].tool_calls
    )
    marked = [*history[:-1], Message(role="assistant", content="", tool_calls=calls), *tail]
    text = renderer.text(marked, tools=tools, options=options)
    closing = call_end(renderer)
    at = text.find(closing, _end_of(mark, text))
    if at < 0:
        raise InvalidInput("the chat template does not write the assistant's calls as it describes them")
    return text[at + len(closing) :]


@lru_cache(maxsize=64)
def _writes_results_by_call(renderer: Renderer) -> bool:
    """Whether the template needs the calls in order to write their results (GPT-OSS, Gemma 4)."""
    if not call_end(renderer):
        return False
    call = ToolCall(id="call_000000001", function=FunctionCall(name="look_up", arguments='{"key": "a"}'))
    start = Message(role="user", content="Question?")
    result = Message(role="tool", content="Result.", tool_call_id=call.id, name="look_up")
    try:
        full = renderer.text([start, Message(role="assistant", content="", tool_calls=(call,)), result])
    except InvalidInput:
        return False
    try:
        plain = renderer.text([start, Message(role="assistant", content="MARK"), result])
    except InvalidInput:
        return True
    return not full.endswith(plain[_end_of("MARK", plain) :])


def _beginning(history: Sequence[Message]) -> list[Message]:
    """The messages up to the first user's, and the last one."""
    first = next((n for n, message in enumerate(history) if message.role == "user"), len(history) - 1)
    return [*history[: first + 1], history[-1]] if first + 1 < len(history) else list(history)


@lru_cache(maxsize=256)
def _tail_is_local(renderer: Renderer, with_tools: bool, options: str) -> bool:
    """Whether what follows an answer does not depend on the turns between the first question and that answer.

    Tried on a conversation with two of everything. `options` as JSON text, so that they can be remembered.
    """
    call, other = (
        ToolCall(
            id=f"call0000{n}", function=FunctionCall(name=_PROBE.function.name, arguments='{"key": "a"}')
        )
        for n in (1, 2)
    )
    answer = Message(role="assistant", content="Answer.")
    thought = Message(role="assistant", content="Another.", reasoning="Thought.")
    more = [Message(role="user", content="More?")]
    history = [Message(role="user", content="Question?")]
    turns: list[tuple[Message, list[Message]]] = [(answer, more), (thought, more), (answer, more)]
    if with_tools:
        turns = []
        for calls in ((call,), (other,)):
            said = Message(role="assistant", content="", tool_calls=calls)
            results = [
                Message(role="tool", content="Result.", tool_call_id=c.id, name="look_up") for c in calls
            ]
            turns += [(said, results), (thought, more), (said, results)]
    settings = {"tools": (_PROBE,) if with_tools else (), "options": json.loads(options)}
    try:
        for said, then in turns:
            history = [*history, said]
            full = _suffix(renderer, history, then, **settings)
            if full != _suffix(renderer, _beginning(history), then, **settings):
                return False
            history += then
    except InvalidInput:
        return False
    return True


_PROBE = Tool(
    function=FunctionSpec(
        name="look_up",
        description="Looks up.",
        parameters={"type": "object", "properties": {"key": {"type": "string", "description": "What."}}},
    )
)


def _end_of(mark: str, text: str) -> int:
    at = text.rfind(mark)
    if at < 0:
        raise InvalidInput("the chat template leaves out the assistant's earlier message")
    return at + len(mark)


def _mark(messages: Sequence[Message]) -> str:
    """Text that no message contains and that no template trims."""
    number = 0
    while any(f"ART{number}MARK" in message.text for message in messages):
        number += 1
    return f"ART{number}MARK"
