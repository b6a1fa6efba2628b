"""That a template lets earlier turns stay as they were served: shown when a model is registered, or refused.

What a conversation is served as under the policy `keep` is a row of segments, rendered once each (the beginning,
then what follows each answer), with the sampled answers between them. The proof lets conversations grow and
demands that the template, asked for the whole, still writes every segment as it was. The assistant's own turns
may come out differently: templates drop reasoning from earlier turns or add empty blocks. Those are noted, and
stay as they were sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from art.errors import ArtError, ConfigError, InvalidInput
from art.tokens.bridge import suffix_text
from art.tokens.formats import ends_messages_only, stop_marks
from art.tokens.renderer import Renderer
from art.types.messages import FunctionCall, FunctionSpec, Message, Tool, ToolCall


@dataclass(frozen=True, slots=True)
class Proof:
    """What registration found out about a template."""

    stop_token_ids: frozenset[int]
    """The model's own stop tokens, and the one that ends a turn in the template."""
    tools_refused: str = ""
    """Why this template cannot hold tool results; empty when it can."""
    notes: list[str] = field(default_factory=list)


_TOOL = Tool(
    function=FunctionSpec(
        name="look_up",
        description="Looks something up.",
        parameters={
            "type": "object",
            "properties": {"key": {"type": "string", "description": "What to look for."}},
            "required": ["key"],
        },
    )
)
_SYSTEM = Message(role="system", content="Be brief.")

Turn = tuple[Message, Sequence[Message]]
"""An answer and the messages that follow it."""


def prove(renderer: Renderer) -> Proof:
    """Show that earlier turns stay as they are while a conversation grows: with a system message, over several turns,
    with reasoning, with calls and their results.

    ConfigError with the first difference, and the template's line that writes it, where they do not.
    """
    notes: list[str] = []
    for reasoning in (False, True):
        turns: list[Turn] = [(_answer(n, reasoning=reasoning), [_question(n)]) for n in (1, 2, 3)]
        notes += _Growth(renderer, [_question(0)]).check(turns)
        if takes(renderer, [_SYSTEM, _question(0)]):
            notes += _Growth(renderer, [_SYSTEM, _question(0)]).check(turns)
        else:
            notes.append("the template takes no system message")
    tools_refused = ""
    try:
        notes += _prove_tools(renderer)
    except ArtError as error:
        tools_refused = error.cause or error.message
        notes.append(f"no tools: {tools_refused}")
    stops, stop_notes = turn_end(renderer)
    return Proof(
        stop_token_ids=stops, tools_refused=tools_refused, notes=list(dict.fromkeys(notes + stop_notes))
    )


def _prove_tools(renderer: Renderer) -> list[str]:
    """Calls alone, with words, with reasoning, then several at once. Notes; ArtError where results cannot be held."""
    one, two = _call(1), _call(2)
    notes = _Growth(renderer, [_question(0)], (_TOOL,)).check(_tool_turns(words=False))
    if takes(renderer, [_SYSTEM, _question(0)], (_TOOL,)):
        notes += _Growth(renderer, [_SYSTEM, _question(0)], (_TOOL,)).check(_tool_turns(words=False))
    try:
        notes += _Growth(renderer, [_question(0)], (_TOOL,)).check(_tool_turns(words=True))
    except ConfigError:
        # The words were sampled before the call, and there they stay; only a history from elsewhere loses them.
        notes.append("the template moves or drops words beside a call; here they stay as served")
    several = _answer(1, calls=(one, two), words=False)
    results = [_result(one), _result(two)]
    if not takes(renderer, [_question(0), several, *results], (_TOOL,)):
        return [
            *notes,
            "the template takes one call a message; several reach the agent, and stay only as they were served",
        ]
    parallel: list[Turn] = [(several, results), (_answer(2), [_question(2)])]
    return notes + _Growth(renderer, [_question(0)], (_TOOL,)).check(parallel)


def _tool_turns(*, words: bool) -> list[Turn]:
    """A call, an answer, two calls one after the other with reasoning, an answer. `words`: the calls have some too."""
    one, two, three = (_call(number) for number in (1, 2, 3))
    return [
        (_answer(1, calls=(one,), words=words), [_result(one)]),
        (_answer(2), [_question(2)]),
        (_answer(3, calls=(two,), words=words, reasoning=not words), [_result(two)]),
        (_answer(4, calls=(three,), words=False, reasoning=True), [_result(three)]),
        (_answer(5, reasoning=True), [_question(5)]),
    ]


def takes(renderer: Renderer, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> bool:
    """Whether the template renders the messages at all."""
    try:
        renderer.text(messages, tools=tools)
    except ArtError:
        return False
    return True


# -- the probes: every message has words of its own, so that it is found in the text


def _question(number: int) -> Message:
    return Message(role="user", content=f"Question {number}?")


def _answer(
    number: int, *, calls: tuple[ToolCall, ...] = (), words: bool = True, reasoning: bool = False
) -> Message:
    return Message(
        role="assistant",
        content=f"Answer {number}." if words else "",
        reasoning=f"Thought {number}." if reasoning else None,
        tool_calls=calls,
    )


def _call(number: int) -> ToolCall:
    arguments = f'{{"key": "Key {number}"}}'
    return ToolCall(
        id=f"call00000{number}", function=FunctionCall(name=_TOOL.function.name, arguments=arguments)
    )


def _result(call: ToolCall) -> Message:
    return Message(
        role="tool", content=f"Result of {call.id}.", tool_call_id=call.id, name=call.function.name
    )


# -- growing a conversation


@dataclass(slots=True)
class _Segment:
    """Text that is served once and stays: from the end of an answer to the opening of the next."""

    text: str
    fixed: int
    """Characters up to the end of its last message's words; the rest opens the assistant's turn."""


class _Growth:
    """One conversation, checked at every turn."""

    def __init__(self, renderer: Renderer, start: Sequence[Message], tools: Sequence[Tool] = ()) -> None:
        self._renderer = renderer
        self._tools = tools
        self._history = list(start)
        self._answers: list[Message] = []
        self._notes: list[str] = []
        self._segments = [self._segment(renderer.text(start, tools=tools), start[-1])]

    def check(self, turns: Sequence[Turn]) -> list[str]:
        """Notes, or ConfigError."""
        for answer, tail in turns:
            self._history.append(answer)
            self._answers.append(answer)
            try:
                suffix = suffix_text(self._renderer, self._history, tail, tools=self._tools)
            except InvalidInput:
                self._left_out(tail)
                raise
            self._history += tail
            self._segments.append(self._segment(suffix, tail[-1]))
            self._compare(self._renderer.text(self._history, tools=self._tools))
        return self._notes

    def _left_out(self, tail: Sequence[Message]) -> None:
        """ConfigError where the answer does not stand in the whole rendering."""
        self._history += tail
        full = self._renderer.text(self._history, tools=self._tools)
        before = self._segments[-1]
        at = full.find(before.text[: before.fixed]) + before.fixed
        self._between(len(self._answers) - 1, full, at, len(full))

    def _segment(self, text: str, last: Message) -> _Segment:
        at = text.rfind(last.text)
        if at < 0:
            self._refuse("a message is left out", last.text, text, 0)
        return _Segment(text, at + len(last.text))

    def _compare(self, full: str) -> None:
        """Every segment still stands in the whole rendering, in order, with the answers between them."""
        at = 0
        last = len(self._segments) - 1
        for number, segment in enumerate(self._segments):
            wanted = segment.text if number == last else segment.text[: segment.fixed]
            found = full.find(wanted, at) if number else at
            if number:
                self._between(number - 1, full, at, found if found >= 0 else len(full))
            if found < 0 or not full.startswith(wanted, found):
                start = self._end_of_answer(number - 1, full, at) if number else 0
                self._refuse(
                    f"turn {number + 1} is rendered differently once more follows", wanted, full, start
                )
            at = found + len(wanted)
        if at != len(full):
            self._refuse("what follows an answer depends on its words", self._segments[-1].text, full, at)

    def _between(self, number: int, full: str, start: int, end: int) -> None:
        """What the template makes of an answer, against what was served before it and sampled."""
        now = full[start:end]
        answer = self._answers[number]
        header = self._segments[number].text[self._segments[number].fixed :]
        if answer.text and answer.text not in now:
            self._refuse("the assistant's earlier message is left out", header + answer.text, full, start)
        lacking = [
            call.function.arguments for call in answer.tool_calls if call.function.arguments[9:-2] not in now
        ]
        if lacking and self._renderer.has_tools_section:
            self._notes.append("the template leaves out calls of earlier turns; here they stay as served")
        if answer.reasoning is not None and answer.reasoning not in now:
            if (
                "think" in self._renderer.sources.lower()
            ):  # of a model that does not reason, nobody needs telling
                self._notes.append(
                    "the template leaves reasoning out of earlier turns; here it stays as served"
                )
        elif answer.text and not now.startswith(header):
            opening = now[: now.find(answer.text)]
            same = _common(opening, header)
            self._notes.append(
                f"the template writes {opening[same:]!r} into earlier turns where {header[same:]!r} opened them;"
                " here they stay as served"
            )

    def _end_of_answer(self, number: int, full: str, at: int) -> int:
        """Where the answer ends in the whole rendering, as well as it can be told."""
        answer = self._answers[number]
        found = full.find(answer.text, at) if answer.text else -1
        return found + len(answer.text) if found >= 0 else at

    def _refuse(self, what: str, wanted: str, full: str, start: int) -> NoReturn:
        """ConfigError with the first difference between `wanted` and `full[start:]`, and who wrote it."""
        got = full[start:]
        at = _common(wanted, got)
        near = slice(max(0, at - 20), at + 40)
        line, text = self._renderer.line_at(self._history, start + at, tools=self._tools)
        cause = (
            f"{what}: {wanted[near]!r} became {got[near]!r};"
            f" line {line} of the template writes it: {_short(text)}"
        )
        raise ConfigError(
            "this chat template does not keep earlier turns as they were",
            cause=cause,
            hint='give another ModelConfig.chat_template, or history="template" to serve what the template gives',
        )


def _common(left: str, right: str) -> int:
    """Length of the common beginning."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(left), len(right)))


def _short(text: str) -> str:
    return text if len(text) <= 160 else f"{text[:160]}..."


def turn_end(renderer: Renderer) -> tuple[frozenset[int], list[str]]:
    """Stop tokens with the template's end of turn among them."""
    tokenizer = renderer.tokenizer
    ids = {token for mark in stop_marks(renderer) if (token := tokenizer.token_id(mark)) is not None}
    stops = tokenizer.stop_token_ids | ids
    if ends_messages_only(renderer):
        return stops, []
    suffix = suffix_text(renderer, [_question(0), _answer(1)], [_question(1)])
    tokens = tokenizer.encode(suffix.lstrip())
    if not tokens or tokens[0] in stops:
        return stops, []
    text = tokenizer.decode([tokens[0]], skip_special=False)
    if tokenizer.decode([tokens[0]]):  # ordinary text: the model ends by its own stop token
        return stops, [f"the template ends a turn with {text!r}, which is no stop token"]
    return stops | {tokens[0]}, [f"{text} ends a turn in the template and is taken as a stop token"]
