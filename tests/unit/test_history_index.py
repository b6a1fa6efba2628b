"""The memory of sessions that nobody opened is bounded, by their number and by the tokens they keep."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from art.server import history_index
from art.server.history_index import HistoryIndex
from art.server.sampling import SeedSpace
from art.server.session import Session
from art.server.versions import ModelEntry
from art.store.records import RolloutRow
from art.tokens.graph import Node
from art.types.messages import Message


class Entry:
    key = ("p", "m")


ENTRY = cast(ModelEntry, Entry())


def session(name: str) -> Session:
    row = RolloutRow(rollout_id=name, project="p", model="m", step=0, implicit=True)
    return Session(row=row, entry=ENTRY, aliases=False, seeds=SeedSpace(0, name, 0, 0, 0))


def say(index: HistoryIndex, to: Session, digest: str, tokens: int) -> None:
    node = Node(
        digest=digest, parent=None, depth=1, message=Message(role="assistant", content="x"), shared=0,
        tail=np.zeros(tokens, dtype=np.int32), call_id="c", choice=0, branch=0, turn=digest,
    )  # fmt: skip
    forgotten = to.graph.add(node, at_most=100)
    index.remember(to, ENTRY, node)
    index.forget(to, ENTRY, forgotten)


@pytest.mark.parametrize(("bound", "value"), [("MAX_SESSIONS", 3), ("MAX_HELD_TOKENS", 150)])
def test_the_sessions_unused_longest_make_room(monkeypatch: Any, bound: str, value: int) -> None:
    monkeypatch.setattr(history_index, bound, value)
    index, left = HistoryIndex(), []
    for number in range(8):
        new = session(f"s{number}")
        for other in index.add(new):
            left.append(other.id)
            assert index.remove(other.id) is other
        say(index, new, f"d{number}", 60)
    assert left == [f"s{number}" for number in range(len(left))]
    assert len(left) == 5
    assert index.held == 60 * (8 - len(left))
    for number in range(8):
        index.remove(f"s{number}")
    assert index.held == 0
    assert not index._heads


def test_what_a_session_forgets_is_not_found_any_more() -> None:
    index, mine = HistoryIndex(), session("s")
    index.add(mine)
    for number in range(5):
        say(index, mine, f"d{number}", 40)
    assert index.held == mine.graph.held == 80
    assert {key[2] for key in mine.heads} == {"d3", "d4"}
    assert len(index._heads) == 2


def test_a_running_session_stays(monkeypatch: Any) -> None:
    monkeypatch.setattr(history_index, "MAX_SESSIONS", 1)
    index, busy = HistoryIndex(), session("busy")
    index.add(busy)
    busy.enter()
    assert index.add(session("next")) == []
