"""Recorded choices as a trie of token sequences, so that a shared prefix is computed once.

Axis legend: S flattened tokens of a trie, N trained tokens, P prompt tokens, T sampled tokens of a choice.

A choice is a path: its prompt tokens, then its sampled tokens but the last, which predicts nothing. A call whose prompt starts with another call's
prompt and completion continues the same path; a rewritten history leaves it and starts a branch. Sorting
the paths puts equal prefixes side by side, and writing out of each path only what the one before it lacks
gives the trie in depth-first order. In that order the descendants of a token are the tokens up to `tout`, so a
query at index q sees the key at index k if and only if k <= q < tout[k].

Every sampled token of a choice is one target. Two rollouts that sampled the same tokens share the trie's
tokens and have a target each, so sharing changes no weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class SampledChoice:
    """One recorded choice that is to be trained."""

    call_id: str
    choice: int
    rollout: int
    """Index of its rollout in the batch."""
    prompt: IntArray
    """[P], P >= 1."""
    completion: IntArray
    """[T], T >= 1."""
    logprobs: FloatArray
    """[T], as recorded at `temperature`."""
    trainable: BoolArray
    """[T]; False where a grammar forced the token."""
    temperature: float
    on_policy: bool = True
    """Sampled from the parent of the step; the parity check looks at these alone."""
    weight: float = 1.0

    @property
    def path(self) -> IntArray:
        """[P + T - 1]: what the model must read. The last sampled token predicts nothing that is trained."""
        return np.concatenate([self.prompt, self.completion[:-1]])

    @property
    def length(self) -> int:
        """P + T."""
        return len(self.prompt) + len(self.completion)


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of trie tokens [start, end) without a fork inside; their descendants end before `tout`."""

    start: int
    end: int
    tout: int


@dataclass(frozen=True, slots=True)
class Trie:
    """Token sequences with shared prefixes, in depth-first order. A forest when they share nothing."""

    token_ids: IntArray
    """[S]."""
    depth: IntArray
    """[S]; position of the token within every path through it."""
    tout: IntArray
    """[S]; one past the last descendant. The index itself is `tin`."""
    paths: tuple[IntArray, ...]
    """Per leaf, the trie indices from the root to it."""
    query: IntArray
    """[N]; trie index of the token whose hidden state predicts the target."""
    target: IntArray
    """[N]; the sampled token."""
    choice: IntArray
    """[N]; index into the choices that the trie was built from."""
    offset: IntArray
    """[N]; index of the token within its choice's completion."""
    leaf: IntArray
    """[N]; a path that holds the query."""
    segments: tuple[Segment, ...]

    @property
    def size(self) -> int:
        """S."""
        return len(self.token_ids)


def common_prefix(a: IntArray, b: IntArray) -> int:
    """Length of the longest common prefix of two token sequences."""
    length = min(len(a), len(b))
    differing = np.flatnonzero(a[:length] != b[:length])
    return int(differing[0]) if len(differing) else length


def sort_key(path: IntArray) -> bytes:
    """Bytes whose order is the order of token sequences: a prefix comes before what extends it."""
    return path.astype(">u4").tobytes()


def depth_first(choices: Sequence[SampledChoice]) -> list[int]:
    """Indices of `choices` in the order of their paths, so that neighbours share the longest prefixes."""
    keys = [sort_key(choice.path) for choice in choices]
    return sorted(range(len(choices)), key=lambda index: keys[index])


def build_trie(choices: Sequence[SampledChoice]) -> Trie:
    """The trie of the choices' paths, with one target for every trainable sampled token.

    Raises ValueError for a choice without a prompt: its first token has no position that predicts it.
    """
    order = depth_first(choices)
    sequences = [choices[index].path for index in order]
    leaves: list[IntArray] = []
    leaf_of = np.empty(len(choices), dtype=np.int64)
    for rank, sequence in enumerate(sequences):
        # A path that the next one extends is no leaf: the next one stands for it.
        is_prefix = rank + 1 < len(sequences) and common_prefix(sequence, sequences[rank + 1]) == len(
            sequence
        )
        leaf_of[order[rank]] = len(leaves)
        if not is_prefix:
            leaves.append(sequence)
    shared = [0, *(common_prefix(a, b) for a, b in pairwise(leaves))]
    paths = _paths(leaves, shared)
    token_ids = np.concatenate([leaf[lcp:] for leaf, lcp in zip(leaves, shared, strict=True)])
    depth = np.concatenate(
        [np.arange(lcp, len(leaf), dtype=np.int64) for leaf, lcp in zip(leaves, shared, strict=True)]
    )
    tout = _tout(leaves, shared, paths)
    query, target, choice, offset = _targets(choices, leaf_of, paths)
    return Trie(
        token_ids=token_ids,
        depth=depth,
        tout=tout,
        paths=tuple(paths),
        query=query,
        target=target,
        choice=choice,
        offset=offset,
        leaf=leaf_of[choice],
        segments=_segments(depth, tout),
    )


def _paths(leaves: list[IntArray], shared: list[int]) -> list[IntArray]:
    """Per leaf, where its tokens lie: the shared part where the leaf before has it, then new indices."""
    paths: list[IntArray] = []
    size = 0
    for leaf, lcp in zip(leaves, shared, strict=True):
        new = np.arange(size, size + len(leaf) - lcp, dtype=np.int64)
        paths.append(np.concatenate([paths[-1][:lcp], new]) if lcp else new)
        size += len(leaf) - lcp
    return paths


def _tout(leaves: list[IntArray], shared: list[int], paths: list[IntArray]) -> IntArray:
    """[S]; a token lives until the first later leaf that leaves its path above it."""
    starts = [int(path[lcp]) for path, lcp in zip(paths, shared, strict=True)]
    size = starts[-1] + len(leaves[-1]) - shared[-1]
    tout = np.full(size, size, dtype=np.int64)
    for start, lcp, before in zip(starts[1:], shared[1:], paths, strict=False):
        ended = before[lcp:]
        tout[ended] = np.minimum(tout[ended], start)
    return tout


def _segments(depth: IntArray, tout: IntArray) -> tuple[Segment, ...]:
    """Runs of tokens that follow one another and have the same descendants."""
    breaks = np.flatnonzero((depth[1:] != depth[:-1] + 1) | (tout[1:] != tout[:-1])) + 1
    bounds = [0, *breaks.tolist(), len(depth)]
    return tuple(Segment(start=a, end=b, tout=int(tout[a])) for a, b in pairwise(bounds))


def _targets(
    choices: Sequence[SampledChoice], leaf_of: IntArray, paths: list[IntArray]
) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    queries, targets, owners, offsets = [], [], [], []
    for index, choice in enumerate(choices):
        start = len(choice.prompt)
        if start < 1:
            raise ValueError(f"call {choice.call_id} has no prompt tokens")
        trained = np.flatnonzero(choice.trainable)
        queries.append(paths[int(leaf_of[index])][start - 1 + trained])
        targets.append(choice.completion[trained])
        owners.append(np.full(len(trained), index, dtype=np.int64))
        offsets.append(trained)
    return (
        np.concatenate(queries).astype(np.int64),
        np.concatenate(targets).astype(np.int64),
        np.concatenate(owners),
        np.concatenate(offsets).astype(np.int64),
    )
