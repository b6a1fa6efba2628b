"""Sessions that nobody opened, found by the history a call extends."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from art.server.session import Session
from art.server.versions import ModelEntry
from art.tokens.graph import Match, Node
from art.types.messages import Message

MAX_SESSIONS = 4096
"""Sessions kept; the one unused longest makes room. Its calls stay in the store."""
MAX_HELD_TOKENS = 64_000_000
"""Tokens that all of them keep together, 256 MB."""


class HistoryIndex:
    """The open sessions without an owner, by (key, model, digest of a known history)."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._heads: dict[tuple[str, tuple[str, str], str], list[Session]] = {}
        self.held = 0
        """Tokens that the sessions keep."""

    def add(self, session: Session) -> list[Session]:
        """Take a session in; returns the ones that must make room for it."""
        self._sessions[session.id] = session
        sessions, tokens = len(self._sessions) - MAX_SESSIONS, self.held - MAX_HELD_TOKENS
        leaving: list[Session] = []
        for other in self._sessions.values():
            if sessions <= 0 and tokens <= 0:
                break
            if not other.running and other is not session:
                leaving.append(other)
                sessions, tokens = sessions - 1, tokens - other.graph.held
        return leaving

    def remove(self, rollout_id: str) -> Session | None:
        """Forget a session; None when it is none of these."""
        session = self._sessions.pop(rollout_id, None)
        if session is not None:
            self.held -= session.graph.held
            for key in session.heads:
                self._heads[key].remove(session)
                if not self._heads[key]:
                    del self._heads[key]
            session.heads.clear()
        return session

    def remember(self, session: Session, entry: ModelEntry, node: Node) -> None:
        """A sampled choice by which the session can be found. A session that was removed stays out."""
        if session.id not in self._sessions:
            return
        self.held += len(node.tail)
        key = (session.row.key_id or "", entry.key, node.digest)
        if key not in session.heads:
            session.heads.add(key)
            self._heads.setdefault(key, []).append(session)

    def forget(self, session: Session, entry: ModelEntry, nodes: Sequence[Node]) -> None:
        """Choices that the session's memory no longer holds."""
        if session.id not in self._sessions:
            return
        for node in nodes:
            self.held -= len(node.tail)
            key = (session.row.key_id or "", entry.key, node.digest)
            if key in session.heads and not session.graph.knows(node.digest):
                session.heads.remove(key)
                self._heads[key].remove(session)
                if not self._heads[key]:
                    del self._heads[key]

    def find(
        self, key_id: str, entry: ModelEntry, digests: Sequence[str], messages: Sequence[Message]
    ) -> list[tuple[Session, Match]]:
        """The sessions of a key whose history the messages extend furthest; none when the history is new."""
        for depth in range(len(digests), 0, -1):
            heads = self._heads.get((key_id, entry.key, digests[depth - 1]), ())
            found = [(session, session.graph.match(digests, messages)) for session in heads]
            found = [(session, match) for session, match in found if match.depth == depth]
            if found:
                for session, _ in found:
                    self._sessions.move_to_end(session.id)
                return found
        return []


def same_tokens(matches: Sequence[Match]) -> bool:
    """True when all the matches are the same recorded tokens."""
    nodes = [match.node for match in matches if match.node is not None]
    return all(np.array_equal(nodes[0].tokens, node.tokens) for node in nodes[1:])
