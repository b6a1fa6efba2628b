"""Token memory: which messages a session has seen, and the exact tokens they were.

A node stands behind an assistant message that was sampled here. It is found by the messages up to and
including that one, in canonical form: key order, white space and the spelling of numbers in tool arguments, tool-call
ids, white space around an answer and reasoning that the client left out make no difference. Its tokens are the
prompt as served and the completion as sampled. Unknown history finds a shorter path or none; nothing is ever realigned.

A node keeps only the tokens that its parent lacks, so a conversation costs its length and not the sum of its
prompts. What a session may hold is bounded (`MAX_HELD_TOKENS`): past it, the ends of paths that were not used for
longest are forgotten, and a call that goes on from one of them is rendered anew, as any unknown history.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from art.types.messages import Message, Tool, ToolCall

MAX_HELD_TOKENS = 2_000_000
"""Of one session, 8 MB. A path is at most one context long, so this is dozens of branches of the longest contexts."""


Given = tuple[int, str, str]
"""Index among the messages, text and reasoning of an assistant's turn that was not sampled here."""


@dataclass(slots=True, eq=False)
class Node:
    """One sampled choice and the path to it."""

    digest: str
    parent: Node | None
    depth: int
    """Messages up to and including this one."""
    message: Message
    shared: int
    """Leading tokens that it has from its parent."""
    tail: NDArray[np.int32]
    """The tokens behind those: the rest of the prompt, and the completion."""
    call_id: str
    choice: int
    branch: int
    turn: str
    """Digest of the prompt it answers; siblings have the same."""
    given: tuple[Given, ...] = ()
    """What the client put into the assistant's mouth behind its parent: such turns are the client's own text."""
    children: int = 0

    @property
    def name(self) -> str:
        """What a client may call it by: the signature of a thinking block."""
        return node_name(self.call_id, self.choice)

    @property
    def length(self) -> int:
        """Tokens of prompt and completion."""
        return self.shared + len(self.tail)

    @property
    def tokens(self) -> NDArray[np.int32]:
        """Prompt and completion."""
        parts, length, node = [self.tail], self.shared, self.parent
        while length and node is not None:
            if length > node.shared:
                parts.append(node.tail[: length - node.shared])
                length = node.shared
            node = node.parent
        return np.concatenate(parts[::-1])


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
class _Turn:
    """The calls of one and the same request."""

    branch: int
    calls: int = 1
    """Those that run or were answered."""


@dataclass(slots=True)
class TokenGraph:
    """The calls of one session."""

    held: int = 0
    """Tokens kept."""
    _nodes: dict[str, list[Node]] = field(default_factory=dict)
    _leaves: OrderedDict[Node, None] = field(default_factory=OrderedDict)
    """Nodes that nothing goes on from, the one unused longest first."""
    _turns: dict[str, _Turn] = field(default_factory=dict)
    _continued: set[str] = field(default_factory=set)
    """Turns that a call goes on from; "" is the beginning."""
    _branches: int = 0

    def match(self, digests: Sequence[str], messages: Sequence[Message]) -> Match:
        """The node with the longest path that is a prefix of `messages`.

        `digests[i]` is `prefix_digests(...)`'s digest of the first i + 1 messages. Where several choices
        said the same, the one whose tool-call ids the client returned is meant, then the one with its arguments to
        the last digit, then the one with its white space, else the newest.
        """
        for depth in range(len(digests), 0, -1):
            nodes = [
                node for node in self._nodes.get(digests[depth - 1], ()) if _same_reasoning(node, messages)
            ]
            if nodes:
                found = _meant(nodes, messages[depth - 1])
                if found in self._leaves:
                    self._leaves.move_to_end(found)
                return Match(node=found, depth=depth)
        return Match(node=None, depth=0)

    def knows(self, digest: str) -> bool:
        """Whether a choice behind this history is remembered."""
        return digest in self._nodes

    def longest_prefix(self, token_ids: Sequence[int]) -> Node | None:
        """The node whose tokens are the longest beginning of `token_ids`, the newest of several; None where none is."""
        prompt = np.asarray(token_ids, dtype=np.int32)
        found: Node | None = None
        for node in (node for nodes in self._nodes.values() for node in nodes):
            longer = found is None or node.length >= found.length
            if longer and node.length <= len(prompt) and np.array_equal(node.tokens, prompt[: node.length]):
                found = node
        if found is not None and found in self._leaves:
            self._leaves.move_to_end(found)
        return found

    def branch_for(self, node: Node | None, digest: str) -> int:
        """The branch of a call that continues `node` with the prompt of this `digest`.

        A prompt that came before makes a sibling, on the same branch. Otherwise it is the node's own branch for the
        first request that goes on from that turn, and a new one after that.
        """
        turn = self._turns.get(digest)
        if turn is not None:
            turn.calls += 1
            return turn.branch
        branch = self._next_branch(node)
        self._turns[digest] = _Turn(branch)
        return branch

    def _next_branch(self, node: Node | None) -> int:
        before = _turn_of(node)
        if before not in self._continued:
            self._continued.add(before)
            if node is not None:
                return node.branch
            self._branches = max(self._branches, 1)
            return 0
        self._branches += 1
        return self._branches - 1

    def abandon(self, node: Node | None, branch: int, digest: str) -> None:
        """The call that continued `node` failed: the next one takes its place on that branch."""
        turn = self._turns.get(digest)
        if turn is None:
            return
        turn.calls -= 1
        if turn.calls == 0:
            del self._turns[digest]
            if branch == (node.branch if node is not None else 0):
                self._continued.discard(_turn_of(node))

    def add(self, node: Node, *, at_most: int = MAX_HELD_TOKENS) -> list[Node]:
        """Remember a sampled choice; the nodes that were forgotten to make room for it."""
        self._nodes.setdefault(node.digest, []).append(node)
        self.held += len(node.tail)
        parent = self._own(node.parent)
        if parent is not None:
            parent.children += 1
            self._leaves.pop(parent, None)
        self._leaves[node] = None
        forgotten: list[Node] = []
        while self.held > at_most and len(self._leaves) > 1:
            forgotten.append(self._forget(next(iter(self._leaves))))
        return forgotten

    def _forget(self, leaf: Node) -> Node:
        del self._leaves[leaf]
        self.held -= len(leaf.tail)
        same = self._nodes[leaf.digest]
        same.remove(leaf)
        if not same:
            del self._nodes[leaf.digest]
        self._turns.pop(leaf.turn, None)
        parent = self._own(leaf.parent)
        if parent is not None:
            parent.children -= 1
            if parent.children == 0:
                self._leaves[parent] = None
                self._leaves.move_to_end(parent, last=False)
        return leaf

    def _own(self, node: Node | None) -> Node | None:
        """The node where it is one of this graph's: a session may go on from what another one served."""
        return node if node is not None and node in self._nodes.get(node.digest, ()) else None


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

    Programs strip answers or end them with a newline before they send them back, read tool arguments and write them
    anew, and put a name on their agent's messages; the sampled tokens stay as they are. White space inside an
    answer, and any in what others wrote, is part of the text.
    """
    ours = message.role == "assistant"
    text = message.text.strip() if ours else message.text
    calls = [[call.function.name, _arguments(call)] for call in message.tool_calls]
    return [message.role, text, calls, None if ours else message.name]


def _arguments(call: ToolCall) -> Any:
    """The arguments as data, numbers as JavaScript reads and writes them; none at all are an empty object."""
    text = call.function.arguments
    if text.strip() in ("", "null"):
        return {}
    try:
        return json.loads(text, parse_float=_number, parse_int=_number, parse_constant=_number)
    except ValueError:
        return text


def _number(text: str) -> int | float | None:
    """A double: 1.0 is 1, an integer past 2^53 is the double next to it, and what is not finite is null."""
    value = float(text)
    if not math.isfinite(value):
        return None
    return int(value) if value.is_integer() else value


def _digest(data: object) -> str:
    text = json.dumps(data, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def given_turns(messages: Sequence[Message], start: int) -> tuple[Given, ...]:
    """The assistant's turns from index `start` on, none of which was sampled here."""
    return tuple(
        given_turn(messages, index)
        for index in range(start, len(messages))
        if messages[index].role == "assistant"
    )


def given_turn(messages: Sequence[Message], index: int) -> Given:
    """One of them. Nothing of it is forgiven: no record holds what the client changed."""
    return index, messages[index].text, messages[index].reasoning or ""


def _turn_of(node: Node | None) -> str:
    return node.turn if node is not None else ""


def _meant(nodes: Sequence[Node], sent: Message) -> Node:
    """Of choices that said the same, the one that the client goes on from, as far as it can be told."""
    for of in (_ids, _data, _text):
        nodes = [node for node in nodes if of(node.message) == of(sent)] or nodes
    return nodes[-1]


def _ids(message: Message) -> list[str]:
    return [call.id for call in message.tool_calls]


def _data(message: Message) -> list[Any]:
    return [call.function.parsed() for call in message.tool_calls]


def _text(message: Message) -> str:
    return message.text


def _same_reasoning(node: Node, messages: Sequence[Message]) -> bool:
    """Reasoning may be left out by the client, or lose the white space around it, but not be changed; a choice that it
    names is that one, and turns that the client wrote itself are as they were."""
    at: Node | None = node
    while at is not None:
        message = messages[at.depth - 1]
        said = (message.reasoning or "").strip()
        if said and said != (at.message.reasoning or "").strip():
            return False
        if message.recorded is not None and message.recorded != at.name:
            return False
        if any(given_turn(messages, index) != (index, text, thought) for index, text, thought in at.given):
            return False
        at = at.parent
    return True
