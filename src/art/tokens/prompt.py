"""A request's prompt: the known path's exact tokens and the rendered rest."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from art.tokens.bridge import tail_tokens
from art.tokens.graph import Match, Node, TokenGraph, prefix_digests
from art.tokens.renderer import Renderer
from art.types.messages import Message, Tool


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the engine is given, and how it came about."""

    token_ids: list[int]
    reused: int
    """Leading tokens taken from token memory instead of being rendered anew."""
    node: Node | None
    """The choice this request continues."""
    depth: int
    """Messages that `node`'s path covers; the rest is new."""
    digest: str
    """Of all messages of the request."""

    @property
    def turn(self) -> str:
        """Of the tokens: requests that differ in what makes no other message (reasoning) still are not the same."""
        return hashlib.sha256(np.asarray(self.token_ids, dtype=np.int32).tobytes()).hexdigest()


def build_prompt(
    renderer: Renderer,
    graph: TokenGraph,
    messages: Sequence[Message],
    *,
    tools: Sequence[Tool] = (),
    options: Mapping[str, Any] | None = None,
    history: Literal["keep", "template"] = "keep",
) -> Prompt:
    """Tokens of `messages` with the assistant's turn opened.

    Policy `keep` serves the longest known path as the tokens it was; `template` renders everything anew and
    uses the memory only to tell which call is continued. InvalidInput with the template's reason.
    """
    digests = prefix_digests(messages, tools=tools, options=options)
    return prompt_after(
        renderer,
        graph.match(digests, messages),
        messages,
        digests,
        tools=tools,
        options=options,
        history=history,
    )


def prompt_after(
    renderer: Renderer,
    match: Match,
    messages: Sequence[Message],
    digests: Sequence[str],
    *,
    tools: Sequence[Tool] = (),
    options: Mapping[str, Any] | None = None,
    history: Literal["keep", "template"] = "keep",
    at_most: int | None = None,
) -> Prompt:
    """`build_prompt` where the known path has been found already.

    PromptTooLong without tokenising for a text that cannot fit into `at_most` tokens.
    """
    node = match.node
    if node is None or history == "template":
        token_ids = renderer.tokens(messages, tools=tools, options=options, at_most=at_most)
        reused = 0 if node is None else _common(node.tokens, token_ids)
        return Prompt(token_ids=token_ids, reused=reused, node=node, depth=match.depth, digest=digests[-1])
    known = [int(token) for token in node.tokens]
    tail = tail_tokens(
        renderer,
        messages[: match.depth],
        messages[match.depth :],
        last_token=known[-1],
        at_most=None if at_most is None else at_most - len(known),
        tools=tools,
        options=options,
    )
    return Prompt(token_ids=known + tail, reused=len(known), node=node, depth=match.depth, digest=digests[-1])


def _common(known: np.ndarray[Any, np.dtype[np.int32]], token_ids: Sequence[int]) -> int:
    """Length of the common prefix."""
    length = min(len(known), len(token_ids))
    different = np.flatnonzero(known[:length] != np.asarray(token_ids[:length], dtype=np.int32))
    return int(different[0]) if len(different) else length
