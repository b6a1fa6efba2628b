"""How a model writes tool calls and reasoning, chosen from its chat template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from art.errors import ConfigError
from art.tokens.renderer import Renderer
from art.tokens.tools import CLOSE, OPEN, ToolParser
from art.types.messages import Piece, Tool


class OutputParser(Protocol):
    """A completion's text in; text, reasoning and whole tool calls out. However the text is cut, the pieces are the same."""

    def feed(self, text: str) -> list[Piece]:
        """The pieces that have become certain."""
        ...

    def finish(self) -> list[Piece]:
        """What was held back, at the end of the completion. A call that is not well formed is text."""
        ...


class _Plain:
    """Text as it is."""

    def feed(self, text: str) -> list[Piece]:
        return [text]

    def finish(self) -> list[Piece]:
        return []


@dataclass(frozen=True, slots=True)
class CallEnvelope:
    """What a model writes around a call, for a grammar that makes it call.

    Style `json`: `begin`, then `{"name": ..., "arguments": ...}`, then `end`. Style `named`: `begin`, the name,
    `separator`, the arguments as a JSON object, `end`.
    """

    begin: str
    end: str
    separator: str = ""
    """Style `json`: what stands between two calls, each with its own begin and end. Style `named`: between name and arguments."""
    style: Literal["json", "named"] = "json"
    arguments: str = "arguments"
    """The key of the arguments in style `json`."""


@dataclass(frozen=True, slots=True)
class Formats:
    """The formats of one model."""

    tools: str
    reasoning: str
    kept_token_ids: frozenset[int] = frozenset()
    """Special tokens that the parsers read; all others are no text."""

    def call_envelope(self) -> CallEnvelope | None:
        """How a call is written; None where the format cannot be forced."""
        return CallEnvelope(begin=f"{OPEN}\n", end=f"\n{CLOSE}", separator="\n")

    def parser(self, tools: Sequence[Tool], *, prompt_token_ids: Sequence[int]) -> OutputParser:
        """A fresh parser for one choice. `tools` are those that may be called; the prompt's end tells whether a turn
        begins inside reasoning."""
        names = [tool.function.name for tool in tools]
        return ToolParser(names) if names else _Plain()


def choose_formats(
    renderer: Renderer, *, tool_parser: str | None = None, reasoning_parser: str | None = None
) -> Formats:
    """The formats for a template. ConfigError, naming the known ones, for a parser that does not exist."""
    if tool_parser not in (None, "hermes"):
        raise ConfigError(f"there is no tool_parser {tool_parser!r}", hint="known: hermes")
    if reasoning_parser not in (None, "none"):
        raise ConfigError(f"there is no reasoning_parser {reasoning_parser!r}", hint="known: none")
    return Formats(tools="hermes", reasoning="none")
