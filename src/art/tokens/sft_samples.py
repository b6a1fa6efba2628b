"""Conversations written by hand -> the tokens that the model would have been served, and which of them are trained.

A demonstration is trained as what it stands for: a conversation of this model. So its prompts are rendered as the
server renders them, and each of the assistant's messages is a completion behind its prompt, up to and including
the token that ends the turn. Under the history policy `keep` a conversation is one sequence, grown turn by turn
(`tokens/bridge`); under `template` each trained message has the prompt that the template writes at that point.

Axis legend: T tokens of one sequence, S tokens of all sequences one after the other, B sequences, O examples in
the order in which they are trained.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from art.errors import InvalidInput
from art.tokens.bridge import tail_tokens
from art.tokens.renderer import Renderer
from art.tokens.samples import BoolArray, IntArray
from art.types.messages import Message, Tool, parse_messages, parse_tools

_THOUGHT_OPENS = re.compile(r"<(\w+)>\s*$")
"""What a template may write where it opens the turn of a model that always thinks first."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """One list of messages, and which of them teach."""

    messages: list[Message]
    trained: list[bool]
    """Per message; True only for messages of the assistant."""
    tools: list[Tool]


@dataclass(frozen=True, slots=True)
class SftSequence:
    """One sequence of tokens that is trained in part."""

    token_ids: list[int]
    """[T]."""
    trained: list[bool]
    """[T]; never the first, which nothing predicts."""
    example: int
    """The trajectory it belongs to, as an index."""


def read_conversation(messages: object, tools: object = None) -> Conversation:
    """A conversation in the format of OpenAI's chat API.

    Every message of the assistant is trained, except where it says `"trainable": false` (or `"weight": 0`, as
    OpenAI's fine-tuning files do). InvalidInput names what is wrong.
    """
    parsed = parse_messages(messages)
    assert isinstance(messages, list)
    trained = [
        message.role == "assistant" and _wanted(raw, number)
        for number, (message, raw) in enumerate(zip(parsed, messages, strict=True))
    ]
    return Conversation(messages=parsed, trained=trained, tools=parse_tools(tools))


def _wanted(message: dict[str, Any], number: int) -> bool:
    """What the message says about itself."""
    trainable, weight = message.get("trainable"), message.get("weight")
    if trainable is not None and not isinstance(trainable, bool):
        raise InvalidInput(
            f"`messages[{number}].trainable` is {trainable!r}, which is neither true nor false"
        )
    if weight is not None and weight not in (0, 1):
        raise InvalidInput(
            f"`messages[{number}].weight` is {weight!r}", hint="1 trains the message, 0 leaves it out"
        )
    return trainable is not False and weight != 0


def render(
    renderer: Renderer,
    conversation: Conversation,
    *,
    stops: frozenset[int],
    history: Literal["keep", "template"],
    example: int = 0,
) -> list[SftSequence]:
    """The sequences of a conversation. `stops` are the tokens that end a turn.

    InvalidInput with the template's reason where it cannot write the conversation.
    """
    write = _Writer(renderer, conversation, stops)
    if history == "keep":
        tokens, trained = write.grown()
        return [SftSequence(tokens, trained, example)]
    return [
        SftSequence(*write.turn(number), example)
        for number, wanted in enumerate(conversation.trained)
        if wanted
    ]


class _Writer:
    """Writes the turns of one conversation."""

    def __init__(self, renderer: Renderer, conversation: Conversation, stops: frozenset[int]) -> None:
        self._renderer = renderer
        self._messages = conversation.messages
        self._trained = conversation.trained
        self._tools = conversation.tools
        self._stops = stops

    def grown(self) -> tuple[list[int], list[bool]]:
        """The conversation up to its last trained answer: what was served stays, and the rest is written behind it."""
        last = len(self._trained) - 1 - self._trained[::-1].index(True)
        begun = self._trained.index(True)
        tokens = self._prompt(begun)
        trained = [False] * len(tokens)
        for number in range(begun, last + 1):
            if self._messages[number].role != "assistant":
                continue
            if number > begun:
                tail = tail_tokens(
                    self._renderer,
                    self._messages[: begun + 1],
                    self._messages[begun + 1 : number],
                    last_token=tokens[-1],
                    tools=self._tools,
                )
                tokens += tail
                trained += [False] * len(tail)
            answer = self._answer(number)
            tokens += answer
            trained += [self._trained[number]] * len(answer)
            begun = number
        return tokens, trained

    def turn(self, number: int) -> tuple[list[int], list[bool]]:
        """One answer behind the prompt that the template writes for it."""
        prompt, answer = self._prompt(number), self._answer(number)
        return prompt + answer, [False] * len(prompt) + [True] * len(answer)

    def _prompt(self, number: int) -> list[int]:
        """What the model is given before message `number`."""
        if number == 0:
            raise InvalidInput(
                "a trained answer is the first message of its conversation",
                cause="nothing was asked before it, and the model is never served an empty conversation",
                hint='put what it answers before it, or give the message "trainable": false',
            )
        return self._renderer.tokens(self._messages[:number], tools=self._tools)

    def _answer(self, number: int) -> list[int]:
        """The completion that says message `number`, with the token that ends the turn."""
        text = self._answer_text(number)
        tokens = _tokens_behind(self._renderer, text)
        ends = [at for at, token in enumerate(tokens) if token in self._stops]
        if ends and not self._renderer.tokenizer.decode(tokens[ends[-1] + 1 :], skip_special=False).strip():
            # Templates write a line break behind the end of a turn, which the model does not sample.
            return tokens[: ends[-1] + 1]
        return _tokens_behind(self._renderer, text.rstrip())

    def _answer_text(self, number: int) -> str:
        """What the template writes for message `number` behind the opened turn."""
        before, message = self._messages[:number], self._messages[number]
        opened = self._renderer.text(before, tools=self._tools)
        whole = self._renderer.text([*before, message], tools=self._tools, generation=False)
        if whole.startswith(opened):
            return whole[len(opened) :]
        # A model that always thinks first: its turn is opened with the mark of a thought, which the template leaves
        # out of a finished message, or writes only where there is one.
        thought = _THOUGHT_OPENS.search(opened)
        if thought is None or not whole.startswith(opened[: thought.start()]):
            at = _common(opened, whole)
            raise InvalidInput(
                "the chat template does not write an answer behind the turn that it opens for it",
                cause=f"it opens the turn with {opened[at:][:80]!r}, and writes {whole[at:][:80]!r} there",
                hint="give the model another chat_template",
            )
        return f"{message.reasoning or ''}\n</{thought[1]}>\n\n{whole[thought.start() :]}"


def _common(left: str, right: str) -> int:
    """Length of the common beginning."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(left), len(right)))


def _tokens_behind(renderer: Renderer, text: str) -> list[int]:
    """Tokens of a text that follows another one.

    Some tokenizers put a space before the first word of all; with a line break in front it is not the first.
    """
    tokenizer = renderer.tokenizer
    lead, both = tokenizer.encode("\n"), tokenizer.encode(f"\n{text}")
    return both[len(lead) :] if both[: len(lead)] == lead else tokenizer.encode(text)


# -- as arrays, in which they go to the trainer


def to_arrays(sequences: Sequence[SftSequence], order: Sequence[int]) -> dict[str, np.ndarray]:
    """`token_ids` int32 [S], `trained` bool [S], `length` int64 [B], `example` int64 [B], `order` int64 [O]."""
    return {
        "token_ids": np.array([token for one in sequences for token in one.token_ids], dtype=np.int32),
        "trained": np.array([flag for one in sequences for flag in one.trained], dtype=np.bool_),
        "length": np.array([len(one.token_ids) for one in sequences], dtype=np.int64),
        "example": np.array([one.example for one in sequences], dtype=np.int64),
        "order": np.array(order, dtype=np.int64),
    }


@dataclass(frozen=True, slots=True)
class Trained:
    """A sequence as the trainer gets it."""

    token_ids: IntArray
    """[T]."""
    trained: BoolArray
    """[T]."""


def from_arrays(arrays: dict[str, np.ndarray]) -> tuple[dict[int, list[Trained]], list[int]]:
    """(the sequences of each example, the order of the examples). InvalidInput for arrays that do not fit together."""
    try:
        lengths, owners = arrays["length"], arrays["example"]
        token_ids, trained = arrays["token_ids"], arrays["trained"]
        order = [int(example) for example in arrays["order"]]
    except KeyError as error:
        raise InvalidInput(f"the token file has no array {error}", hint="submit the job again") from error
    if not int(lengths.sum()) == len(token_ids) == len(trained) or len(lengths) != len(owners):
        raise InvalidInput("the token file's arrays do not fit together", hint="submit the job again")
    found: dict[int, list[Trained]] = {}
    at = 0
    for length, owner in zip(lengths.tolist(), owners.tolist(), strict=True):
        part = slice(at, at + length)
        found.setdefault(owner, []).append(Trained(token_ids[part].astype(np.int64), trained[part]))
        at += length
    return found, order
