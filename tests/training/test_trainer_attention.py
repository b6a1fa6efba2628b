"""Attention over random tries, against a plain masked softmax in float64, gradients included."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_trainer_forward import choice

from art.tokens.samples import SampledChoice, Trie, build_trie
from art.trainer.attention import plan_attention, tree_attention

pytestmark = pytest.mark.usefixtures("one_thread")

HEADS, KEY_HEADS, WIDTH, SCALE = 4, 2, 3, 0.7


@st.composite
def rollouts(draw: st.DrawFn) -> list[SampledChoice]:
    """Sequences over two tokens, so that they share beginnings and fork everywhere."""
    sequence = st.lists(st.integers(0, 1), min_size=1, max_size=12)
    return [choice([7, *draw(sequence)], draw(sequence)) for _ in range(draw(st.integers(1, 8)))]


def dense(q_HSD: torch.Tensor, k_KSD: torch.Tensor, v_KSD: torch.Tensor, trie: Trie) -> torch.Tensor:
    """[H, S, D]: every score computed, the unseen ones masked."""
    index = np.arange(trie.size)
    seen = torch.from_numpy((index[None] <= index[:, None]) & (index[:, None] < trie.tout[None]))
    k, v = (x.repeat_interleave(HEADS // KEY_HEADS, dim=0) for x in (k_KSD, v_KSD))
    scores = (SCALE * q_HSD @ k.transpose(1, 2)).masked_fill(~seen, float("-inf"))
    return torch.softmax(scores, dim=-1) @ v


@settings(max_examples=60, deadline=None)
@given(rollouts(), st.integers(1, 20), st.sampled_from((0, 30, 10**6)), st.integers(0, 2**31))
def test_it_is_a_masked_softmax(choices: list[SampledChoice], queries: int, merge: int, seed: int) -> None:
    trie = build_trie(choices)
    plan = plan_attention(trie, device=torch.device("cpu"), queries=queries, merge=merge)
    assert [block.start for block in plan] == [0, *(block.end for block in plan[:-1])]
    assert plan[-1].end == trie.size
    generator = torch.Generator().manual_seed(seed)
    inputs = [
        torch.randn(heads, trie.size, WIDTH, generator=generator, requires_grad=True)
        for heads in (HEADS, KEY_HEADS, KEY_HEADS)
    ]
    exact = [x.detach().double().requires_grad_() for x in inputs]
    found, expected = tree_attention(*inputs, plan, scale=SCALE), dense(*exact, trie)
    torch.testing.assert_close(found.double(), expected, atol=2e-6, rtol=0)
    slope = torch.randn(found.shape, generator=generator)
    ours = torch.autograd.grad(found, inputs, slope)
    theirs = torch.autograd.grad(expected, exact, slope.double())
    for mine, wanted in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.double(), wanted, atol=5e-6, rtol=0)


def test_a_block_reads_its_ancestors_and_itself() -> None:
    """Two completions of 300 (the last token of each is never read) behind a prompt of 500: nobody's scores against the other one are computed."""
    trie = build_trie([choice([1] * 500, [token] * 300) for token in (2, 3)])
    plan = plan_attention(trie, device=torch.device("cpu"))
    computed = sum(block.bias.shape[0] * sum(end - start for start, end in block.runs) for block in plan)
    wanted = sum(trie.depth + 1)
    assert computed < 1.2 * wanted
    last = plan[-1]
    assert last.end == trie.size
    assert last.runs[0] == (0, 500)
    assert all(start >= 799 for start, _ in last.runs[1:])
