"""Token memory: which messages a session has seen, and the exact tokens they were.

A node stands behind an assistant message that was sampled here. It is found by the messages up to and
including that one, in canonical form: key order and white space of tool arguments, tool-call ids, white space
around an answer and reasoning that the client left out make no difference. Its tokens are the prompt as
served and the completion as sampled. Unknown history finds a shorter path or none; nothing is ever realigned.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from art.types.messages import Message, Tool


@dataclass(slots=True)
class Node:
    """One sampled choice and the path to it."""

    digest: str
    parent: Node | None
    depth: int
    """Messages up to and including this one."""
    message: Message
    tokens: NDArray[np.int32]
    """Prompt and completion."""
    call_id: str
    choice: int
    branch: int

    @property
    def name(self) -> str:
        """What a client may call it by: the signature of a thinking block."""
        return node_name(self.call_id, self.choice)


def node_name(call_id: str, choice: int) -> str:
    """`art:<call id>:<choice>`."""
    return f"art:{call_id}:{choice}"


@dataclass(frozen=True, slots=True)
class Match:
    """The longest known path of a request."""

    node: Node | None
    depth: int
    """Messages the path covers; 0 without a node."""


@dataclass(slots=True)
class TokenGraph:
    """The calls of one session."""

    _nodes: dict[str, list[Node]] = field(default_factory=dict)
    _continued: set[str] = field(default_factory=set)
    _branches: int = 0

    def match(self, digests: Sequence[str], messages: Sequence[Message]) -> Match:
        """The node with the longest path that is a prefix of `messages`.

        `digests[i]` is `prefix_digests(...)`'s digest of the first i + 1 messages. Where several choices
        said the same, the one whose tool-call ids the client returned is meant, then the one with its white space,
        else the newest.
        """
        for depth in range(len(digests), 0, -1):
            nodes = [
                node for node in self._nodes.get(digests[depth - 1], ()) if _same_reasoning(node, messages)
            ]
            if nodes:
                wanted = [call.id for call in messages[depth - 1].tool_calls]
                meant = [node for node in nodes if _ids(node) == wanted] or nodes
                exact = [node for node in meant if node.message.text == messages[depth - 1].text]
                return Match(node=(exact or meant)[-1], depth=depth)
        return Match(node=None, depth=0)

    def longest_prefix(self, token_ids: Sequence[int]) -> Node | None:
        """The node whose tokens are the longest beginning of `token_ids`, the newest of several; None where none is."""
        prompt = np.asarray(token_ids, dtype=np.int32)
        found: Node | None = None
        for node in (node for nodes in self._nodes.values() for node in nodes):
            length = len(node.tokens)
            longer = found is None or length >= len(found.tokens)
            if longer and length <= len(prompt) and np.array_equal(node.tokens, prompt[:length]):
                found = node
        return found

    def branch_for(self, node: Node | None) -> int:
        """The branch of a call that continues `node`: its own the first time, a new one after that."""
        key = node.call_id if node is not None else ""
        if key not in self._continued:
            self._continued.add(key)
            if node is not None:
                return node.branch
            self._branches = max(self._branches, 1)
            return 0
        self._branches += 1
        return self._branches - 1

    def abandon(self, node: Node | None, branch: int) -> None:
        """The call that continued `node` as `branch` failed: the next one takes its place on that branch."""
        if branch == (node.branch if node is not None else 0):
            self._continued.discard(node.call_id if node is not None else "")

    def add(self, node: Node) -> None:
        """Remember a sampled choice."""
        self._nodes.setdefault(node.digest, []).append(node)


def prefix_digests(
    messages: Sequence[Message], *, tools: Sequence[Tool] = (), options: Mapping[str, Any] | None = None
) -> list[str]:
    """Digest of the first 1, 2, ... messages, together with the tools and the template's options."""
    digests: list[str] = []
    last = _digest(["root", [tool.to_template() for tool in tools], dict(options or {})])
    for message in messages:
        last = next_digest(last, message)
        digests.append(last)
    return digests


def next_digest(digest: str, message: Message) -> str:
    """The digest of a path that `message` extends."""
    return _digest([digest, canonical(message)])


def canonical(message: Message) -> list[Any]:
    """What makes two messages the same one.

    Programs strip answers or end them with a newline before they send them back; the sampled tokens stay as they
    are. White space inside an answer, and any in what others wrote, is part of the text.
    """
    text = message.text.strip() if message.role == "assistant" else message.text
    calls = [[call.function.name, call.function.parsed()] for call in message.tool_calls]
    return [message.role, text, calls, message.name]


def _digest(data: object) -> str:
    text = json.dumps(data, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _ids(node: Node) -> list[str]:
    return [call.id for call in node.message.tool_calls]


def _same_reasoning(node: Node, messages: Sequence[Message]) -> bool:
    """Reasoning may be left out by the client, but not changed, and a choice that it names is that one."""
    at: Node | None = node
    while at is not None:
        said = messages[at.depth - 1]
        if said.reasoning is not None and said.reasoning != at.message.reasoning:
            return False
        if said.recorded is not None and said.recorded != at.name:
            return False
        at = at.parent
    return True
