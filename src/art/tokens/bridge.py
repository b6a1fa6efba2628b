"""From one turn to the next without touching what was sampled.

For any chat template: the tokens that follow an assistant's completion are found by rendering the
conversation with a mark in place of that completion and tokenising only what stands behind the mark. So the
next prompt is the last prompt, the sampled tokens, and this tail. `prove` shows at registration that the
template allows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from art.errors import ArtError, ConfigError, InvalidInput
from art.tokens.renderer import Renderer
from art.types.messages import FunctionSpec, Message, Tool


@dataclass(frozen=True, slots=True)
class Proof:
    """What registration found out about a template."""

    stop_token_ids: frozenset[int]
    """The model's own stop tokens, and the one that ends a turn in the template."""
    tools_refused: str = ""
    """Why this template cannot hold tool results; empty when it can."""
    notes: list[str] = field(default_factory=list)


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
    mark = _mark([*history, *tail])
    marked = [*history[:-1], Message(role="assistant", content=mark), *tail]
    text = renderer.text(marked, tools=tools, options=options)
    at = text.rfind(mark)
    if at < 0:
        raise InvalidInput("the chat template leaves out the assistant's earlier message")
    return text[at + len(mark) :]


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
    if end and unspaced.startswith(end):
        tokens = tokenizer.encode(unspaced, at_most=None if at_most is None else at_most + 1)
        if tokens and tokens[0] == last_token:
            return tokens[1:]
    return tokenizer.encode(text, at_most=at_most)


def _mark(messages: Sequence[Message]) -> str:
    """Text that no message contains and that no template trims."""
    number = 0
    while any(f"ART{number}MARK" in message.text for message in messages):
        number += 1
    return f"ART{number}MARK"


# -- proof


_TOOL = Tool(
    function=FunctionSpec(
        name="look_up",
        description="Looks something up.",
        parameters={"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
    )
)
_USER = Message(role="user", content="First question?")
_MORE = Message(role="user", content="And another?")
_SYSTEM = Message(role="system", content="Be brief.")
_RESULT = Message(role="tool", content='{"value": 7}', tool_call_id="call_000000001", name="look_up")
_ANSWERS = ("It is the first answer.", "A second one")


def prove(renderer: Renderer) -> Proof:
    """Show that earlier turns stay as they are while a conversation grows, with a system message, over several turns, and with tools.

    ConfigError with the place of the first difference where they do not.
    """
    notes: list[str] = []
    for start in ([_USER], [_SYSTEM, _USER]):
        for tails in ([[_MORE], [_MORE]], [[], [_MORE]]):
            if start[0].role == "system" and not _takes_system(renderer):
                continue
            if not tails[0] and not _takes(renderer, [*start, _assistant(0)], ()):
                continue  # templates may insist on a user between two assistants
            notes += _grow(renderer, start, tails, ())
    tools_refused = ""
    try:
        for tails in ([[_RESULT], [_MORE]], [[_RESULT, _RESULT], [_RESULT]]):
            notes += _grow(renderer, [_USER], tails, (_TOOL,))
    except ArtError as error:
        tools_refused = error.cause or error.message
        notes.append(f"no tools: {tools_refused}")
    stops, stop_notes = turn_end(renderer)
    return Proof(
        stop_token_ids=stops, tools_refused=tools_refused, notes=list(dict.fromkeys(notes + stop_notes))
    )


def _assistant(number: int) -> Message:
    return Message(role="assistant", content=_ANSWERS[number % len(_ANSWERS)])


def _takes_system(renderer: Renderer) -> bool:
    return _takes(renderer, [_SYSTEM, _USER], ())


def _takes(renderer: Renderer, messages: Sequence[Message], tools: Sequence[Tool]) -> bool:
    try:
        renderer.text(messages, tools=tools)
    except InvalidInput:
        return False
    return True


def _grow(
    renderer: Renderer, start: Sequence[Message], tails: Sequence[Sequence[Message]], tools: Sequence[Tool]
) -> list[str]:
    """Check every turn of one conversation; returns notes."""
    notes: list[str] = []
    history = list(start)
    for number, tail in enumerate(tails):
        answer = _assistant(number)
        opened = renderer.text(history, tools=tools)
        closed = renderer.text(history, tools=tools, generation=False)
        full = renderer.text([*history, answer, *tail], tools=tools)
        if not opened.startswith(closed) or not full.startswith(closed):
            longer = full if opened.startswith(closed) else opened
            raise _unstable(f"turn {number + 1} is rendered differently once more follows", closed, longer)
        header, grown = opened[len(closed) :], full[len(closed) :]
        at = grown.find(answer.text)
        if at < 0:
            raise _unstable("the assistant's earlier message is left out", answer.text, grown)
        opening = grown[:at]
        if (
            opening != header and opening.strip() != header.strip()
        ):  # a model may write the white space itself
            if not header.startswith(opening):
                raise _unstable("an assistant's turn opens differently in the history", header, opening)
            notes.append(f"the template drops {header[at:]!r} from earlier turns; here they stay as served")
        suffix = suffix_text(renderer, [*history, answer], tail, tools=tools)
        if suffix != grown[at + len(answer.text) :]:
            raise _unstable(
                "what follows depends on the assistant's words", suffix, grown[at + len(answer.text) :]
            )
        history += [answer, *tail]
    return notes


def _unstable(what: str, left: str, right: str) -> ConfigError:
    at = next(
        (i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right))
    )
    near = slice(max(0, at - 20), at + 40)
    return ConfigError(
        "this chat template does not keep earlier turns as they were",
        cause=f"{what}: {left[near]!r} became {right[near]!r}",
        hint='give another ModelConfig.chat_template, or history="template" to serve what the template gives',
    )


def turn_end(renderer: Renderer) -> tuple[frozenset[int], list[str]]:
    """Stop tokens with the template's end of turn among them."""
    tokenizer = renderer.tokenizer
    suffix = suffix_text(renderer, [_USER, _assistant(0)], [_MORE])
    tokens = tokenizer.encode(suffix.lstrip())
    stops = tokenizer.stop_token_ids
    if not tokens or tokens[0] in stops:
        return stops, []
    text = tokenizer.decode([tokens[0]], skip_special=False)
    if tokenizer.decode([tokens[0]]):  # ordinary text: the model ends by its own stop token
        return stops, [f"the template ends a turn with {text!r}, which is no stop token"]
    return stops | {tokens[0]}, [f"{text} ends a turn in the template and is taken as a stop token"]
