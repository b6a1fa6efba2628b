"""Token memory: what makes two messages the same one, how little it keeps, and that what it keeps is bounded."""

from __future__ import annotations

import json

import numpy as np
import pytest

from art.tokens.graph import Node, TokenGraph, canonical, given_turns, next_digest, prefix_digests
from art.types.messages import FunctionCall, Message, ToolCall

USER = Message(role="user", content="a")


def assistant(text: str | None = "b", *arguments: str, **options: str) -> Message:
    calls = tuple(
        ToolCall(id=f"id{i}", function=FunctionCall(name="f", arguments=a)) for i, a in enumerate(arguments)
    )
    return Message(role="assistant", content=text, tool_calls=calls, **options)


def node(
    graph: TokenGraph, parent: Node | None, digest: str, tail: list[int], depth: int, name: str = "c"
) -> Node:
    found = Node(
        digest=digest,
        parent=parent,
        depth=depth,
        message=assistant(),
        shared=parent.length if parent else 0,
        tail=np.asarray(tail, dtype=np.int32),
        call_id=name,
        choice=0,
        branch=0,
        turn=f"turn {digest}",
    )
    graph.add(found)
    return found


@pytest.mark.parametrize(
    ("sampled", "sent"),
    [
        (assistant("b"), assistant(" b\n")),
        (assistant(None, "{}"), assistant("", "{}")),
        (assistant("x", '{"b": [1, 2.0],  "a": "é"}'), assistant("x", '{"a":"\\u00e9","b":[1,2]}')),
        (assistant(None, '{"n": 1.0, "m": 1e3}'), assistant(None, '{"m": 1000, "n": 1}')),
        # JavaScript knows doubles only, and writes null for those that are no number.
        (assistant(None, '{"id": 123456789012345678}'), assistant(None, '{"id": 123456789012345680}')),
        (assistant(None, '{"n": [1e400, -Infinity, NaN]}'), assistant(None, '{"n": [null, null, null]}')),
        (assistant(None, f'{{"n": {"9" * 5000}}}'), assistant(None, '{"n": null}')),
        (assistant(None, '{"n": -0.0}'), assistant(None, '{"n": 0}')),
        (assistant(None, "{}"), assistant(None, "")),
        (assistant(None, "{}"), assistant(None, "null")),
        (assistant("b"), assistant("b", name="planner")),
        (assistant("b", reasoning="so"), assistant("b")),
    ],
)
def test_what_clients_do_to_an_answer_leaves_it_the_same(sampled: Message, sent: Message) -> None:
    assert canonical(sampled) == canonical(sent)
    assert prefix_digests([USER, sampled]) == prefix_digests([USER, sent])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (assistant("b c"), assistant("b  c")),
        (assistant("x", '{"a": 1}'), assistant("x", '{"a": "1"}')),
        (assistant("x", '{"a": 1.5}'), assistant("x", '{"a": 1}')),
        (assistant("x", '{"a": 9007199254740991}'), assistant("x", '{"a": 9007199254740992}')),
        (assistant("x", "{}", "{}"), assistant("x", "{}")),
        (assistant(None, "{oops"), assistant(None, "{oops }")),
        (USER, Message(role="user", content="a ")),
        (Message(role="tool", content="a", name="f"), Message(role="tool", content="a", name="g")),
    ],
)
def test_what_changes_the_meaning_makes_another_message(one: Message, other: Message) -> None:
    assert canonical(one) != canonical(other)


def test_reasoning_is_known_without_its_white_space() -> None:
    graph = TokenGraph()
    thought = assistant("b", reasoning="because\n")
    digest = next_digest(prefix_digests([USER])[-1], thought)
    known = node(graph, None, digest, [1, 2], 2)
    known.message = thought
    for said, found in ((None, True), ("", True), ("because", True), ("otherwise", False)):
        sent = [USER, thought.model_copy(update={"reasoning": said})]
        assert (graph.match(prefix_digests(sent), sent).node is known) == found


def test_a_conversation_costs_its_length() -> None:
    graph = TokenGraph()
    parent: Node | None = None
    whole: list[int] = []
    for turn in range(200):
        tail = list(range(turn, turn + 50))
        whole += tail
        parent = node(graph, parent, f"d{turn}", tail, 2 * turn + 2)
        assert parent.tokens.tolist() == whole
    assert graph.held == len(whole) == 200 * 50


def test_tokens_that_leave_the_parent_s_path_are_its_own() -> None:
    graph = TokenGraph()
    first = node(graph, None, "a", [1, 2, 3, 4], 2)
    second = node(graph, first, "b", [5, 6], 4)
    second.shared = 3  # a template that changed the end of the earlier turn
    third = node(graph, second, "c", [7], 6)
    third.shared = 4
    fourth = node(graph, third, "d", [8], 8)
    fourth.shared = 2
    assert second.tokens.tolist() == [1, 2, 3, 5, 6]
    assert third.tokens.tolist() == [1, 2, 3, 5, 7]
    assert fourth.tokens.tolist() == [1, 2, 8]


def test_what_was_not_used_for_longest_is_forgotten_first_and_never_what_a_path_needs() -> None:
    graph = TokenGraph()
    trunk = node(graph, None, "trunk", [0] * 10, 2)
    for number in range(50):
        leaf = Node(
            digest=prefix_digests([USER, assistant(f"leaf {number}")])[-1],
            parent=trunk,
            depth=2,
            message=assistant(f"leaf {number}"),
            shared=10,
            tail=np.full(10, number, dtype=np.int32),
            call_id=f"c{number}",
            choice=0,
            branch=0,
            turn=f"t{number}",
        )
        graph.branch_for(trunk, leaf.turn)
        forgotten = graph.add(leaf, at_most=60)
        assert graph.held <= 60
        assert all(old.tokens[0] == 0 for old in forgotten)
        keep = [USER, assistant("leaf 0")]  # used again and again, so it stays
        assert graph.match(prefix_digests(keep), keep).node is not None
    gone = [USER, assistant("leaf 7")]
    assert graph.match(prefix_digests(gone), gone).node is None
    last = [USER, assistant("leaf 49")]
    assert graph.match(prefix_digests(last), last).node is leaf
    assert graph.knows("trunk")
    assert leaf.tokens.tolist() == [0] * 10 + [49] * 10
    assert len(graph._turns) <= 6  # as many as there are answers


def test_a_chain_longer_than_the_bound_stays_whole() -> None:
    graph = TokenGraph()
    parent: Node | None = None
    for turn in range(20):
        tail = np.arange(10, dtype=np.int32)
        parent = Node(
            digest=f"d{turn}", parent=parent, depth=turn, message=assistant(), shared=10 * turn, tail=tail,
            call_id="c", choice=0, branch=0, turn=f"t{turn}",
        )  # fmt: skip
        assert graph.add(parent, at_most=50) == []
    assert parent is not None
    assert parent.length == len(parent.tokens) == 200


def test_numbers_as_javascript_writes_them() -> None:
    for value in (0.0, -3.0, 2.5, 1e20, 123456789012345680.0):
        python = assistant(None, json.dumps({"x": value}))
        javascript = assistant(None, json.dumps({"x": int(value) if value.is_integer() else value}))
        assert prefix_digests([USER, python]) == prefix_digests([USER, javascript])


@pytest.mark.parametrize(
    ("reasoning", "text", "same"),
    [("A", "Hello", True), ("B", "Hello", False), (None, "Hello", False), ("A", "Hello\n", False)],
)
def test_a_turn_that_the_client_wrote_itself_is_the_same_only_as_it_was(
    reasoning: str | None, text: str, same: bool
) -> None:
    """A few-shot example was not sampled here: no record holds what a client changes in it."""
    asked = [USER, assistant("Hello", reasoning="A"), USER]
    digests = prefix_digests(asked)
    graph, answer = TokenGraph(), assistant()
    found = node(graph, None, next_digest(digests[-1], answer), [1, 2, 3], 4)
    found.message, found.given = answer, given_turns(asked, 0)
    again = [USER, assistant(text, reasoning=reasoning), USER, answer, USER]
    assert (graph.match(prefix_digests(again), again).node is found) == same
