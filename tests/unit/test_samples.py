"""Tries of sampled tokens: what is shared, what sees what, and that every sampled token counts once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from art.algorithms.packing import pack
from art.tokens.samples import SampledChoice, build_trie


def choice(
    prompt: Sequence[int], completion: Sequence[int], *, trainable: Sequence[bool] | None = None
) -> SampledChoice:
    return SampledChoice(
        call_id="call",
        choice=0,
        rollout=0,
        prompt=np.array(prompt, dtype=np.int64),
        completion=np.array(completion, dtype=np.int64),
        logprobs=np.zeros(len(completion), dtype=np.float32),
        trainable=np.array([True] * len(completion) if trainable is None else trainable, dtype=np.bool_),
        temperature=1.0,
    )


def test_a_call_that_extends_another_continues_its_sequence() -> None:
    first = choice([1, 2], [3, 4])
    second = choice([1, 2, 3, 4, 5], [6, 7])
    trie = build_trie([first, second])
    assert trie.token_ids.tolist() == [1, 2, 3, 4, 5, 6]
    assert len(trie.paths) == 1
    assert list(zip(trie.query.tolist(), trie.target.tolist(), strict=True)) == [
        (1, 3),
        (2, 4),
        (4, 6),
        (5, 7),
    ]


def test_a_rewritten_history_is_a_branch_that_shares_the_prefix() -> None:
    trie = build_trie([choice([1, 2, 3], [4, 5]), choice([1, 2, 9], [4, 5])])
    assert trie.token_ids.tolist() == [1, 2, 3, 4, 9, 4]
    assert trie.depth.tolist() == [0, 1, 2, 3, 2, 3]
    assert trie.tout.tolist() == [6, 6, 4, 4, 6, 6]
    assert len(trie.target) == 4


def test_two_rollouts_with_the_same_tokens_share_them_and_count_twice() -> None:
    trie = build_trie([choice([1, 2], [3, 4]), choice([1, 2], [3, 4])])
    assert trie.size == 3
    assert trie.choice.tolist() == [0, 0, 1, 1]


def test_forced_tokens_are_read_but_not_trained() -> None:
    trie = build_trie([choice([1], [2, 3, 4], trainable=[True, False, True])])
    assert trie.target.tolist() == [2, 4]
    assert trie.query.tolist() == [0, 2]
    assert trie.offset.tolist() == [0, 2]


def test_prompts_without_a_common_start_are_a_forest() -> None:
    trie = build_trie([choice([1], [2]), choice([5, 6], [7])])
    assert trie.tout.tolist() == [1, 3, 3]


def test_a_choice_without_a_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="no prompt"):
        build_trie([choice([], [1, 2])])


tokens = st.lists(st.integers(0, 2), min_size=1, max_size=6)
choices = st.lists(st.builds(choice, tokens, tokens), min_size=1, max_size=12)


@given(choices)
def test_every_path_reads_back_and_sees_exactly_its_ancestors(made: list[SampledChoice]) -> None:
    trie = build_trie(made)
    index = np.arange(trie.size)
    visible = (index[None] <= index[:, None]) & (index[:, None] < trie.tout[None])
    for path in trie.paths:
        assert trie.depth[path].tolist() == list(range(len(path)))
        for depth, position in enumerate(path):
            assert np.flatnonzero(visible[position]).tolist() == path[: depth + 1].tolist()
    for owner, one in enumerate(made):
        mine = trie.choice == owner
        assert trie.target[mine].tolist() == one.completion.tolist()
        path = trie.paths[int(trie.leaf[mine][0])]
        assert trie.token_ids[path[: len(one.path)]].tolist() == one.path.tolist()
        first = len(one.prompt) - 1
        assert trie.query[mine].tolist() == path[first : first + len(one.completion)].tolist()


@given(choices)
def test_segments_cover_the_trie_once(made: list[SampledChoice]) -> None:
    trie = build_trie(made)
    assert [s.start for s in trie.segments[1:]] == [s.end for s in trie.segments[:-1]]
    assert (trie.segments[0].start, trie.segments[-1].end) == (0, trie.size)
    for segment in trie.segments:
        assert set(trie.tout[segment.start : segment.end].tolist()) == {segment.tout}
        assert np.all(np.diff(trie.depth[segment.start : segment.end]) == 1)


@given(choices, st.integers(1, 20))
def test_packing_keeps_every_choice_and_the_budget(made: list[SampledChoice], budget: int) -> None:
    rows = pack(made, budget=budget)
    assert sorted(index for row in rows for index in row) == list(range(len(made)))
    for row in rows:
        size = build_trie([made[index] for index in row]).size
        # Choices on one path that is longer than the budget stay together.
        assert size <= max(budget, max(len(made[index].path) for index in row))
