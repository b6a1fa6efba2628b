"""Attention over a trie: each token sees its ancestors and itself.

Axis legend: H query heads, K key heads, G query heads of each, S tokens of the trie, D head size, Q queries of a block,
P keys that a block sees, R the G * Q rows of a block that a key head serves, M keys that only some of a block see.

The trie comes in depth-first order. Its queries are taken block by block, and each block with all the keys that any of
its queries sees: the line of ancestors above it, a few runs of tokens, and the block itself. Few blocks hold a fork,
so that nearly all of these scores are wanted, and an ordinary softmax does: a single pass over them, where joining blocks
of keys as FlashAttention does (Dao et al. 2022, arXiv:2205.14135) takes several. Nothing of size S x S is ever held,
forward or backward, and every operation is a plain batched matrix product, which on a CPU is faster than the
backward pass of the fused attention.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from art.tokens.samples import IntArray, Segment, Trie

QUERIES = 96
"""Queries of a block at most: of its scores those above the diagonal, about half a block per query, are computed for
nothing."""
MERGE_SCORES = 8_000
"""Scores worth computing for nothing to save one more block's dozen of kernel launches."""

Run = tuple[int, int]
"""Tokens [start, end) of the trie."""


@dataclass(frozen=True, slots=True)
class Block:
    """Queries [start, end) with the keys that any of them sees."""

    start: int
    end: int
    runs: tuple[Run, ...]
    """The keys, from the root down; the last run ends with the block."""
    bias: Tensor
    """[Q, M] in float32, for the last M keys: 0 where the query sees the key, -inf elsewhere. Every query sees those
    before them."""


Plan = tuple[Block, ...]


def plan_attention(
    trie: Trie, *, device: torch.device, queries: int = QUERIES, merge: int = MERGE_SCORES
) -> Plan:
    """How a trie is attended over: long segments are cut, short neighbours merged where that is cheap."""
    bounds = [start for start, _ in _cut(trie, queries, merge)]
    return tuple(_block(trie, start, end, device) for start, end in pairwise([*bounds, trie.size]))


def _cut(trie: Trie, queries: int, merge: int) -> list[Run]:
    """The blocks' queries."""
    cut: list[Run] = []
    for segment in trie.segments:
        for start in range(segment.start, segment.end, queries):
            end = min(start + queries, segment.end)
            if cut:
                first, last = cut[-1]
                joined = _scores(trie, first, end)
                if (
                    end - first <= queries
                    and joined <= _scores(trie, first, last) + _scores(trie, start, end) + merge
                ):
                    cut[-1] = (first, end)
                    continue
            cut.append((start, end))
    return cut


def _scores(trie: Trie, start: int, end: int) -> int:
    """How many a block of these queries computes."""
    return (end - start) * (int(trie.depth[start]) + end - start)


def _block(trie: Trie, start: int, end: int, device: torch.device) -> Block:
    """The block of these queries."""
    above = [(one.start, min(one.end, start), one.tout) for one in _ancestors(trie.segments, start)]
    shared = sum(stop - first for first, stop, tout in above if tout >= end)
    runs: list[Run] = []
    for first, stop in (*((first, stop) for first, stop, _ in above), (start, end)):
        if runs and runs[-1][1] == first:
            runs[-1] = (runs[-1][0], stop)
        else:
            runs.append((first, stop))
    keys_P = np.concatenate([np.arange(first, stop) for first, stop in runs])
    bias_Q_M = _bias(np.arange(start, end), keys_P[shared:], trie.tout)
    return Block(start, end, tuple(runs), bias_Q_M.to(device))


def _bias(rows_Q: IntArray, keys_M: IntArray, tout_S: IntArray) -> Tensor:
    """[Q, M]: query q sees key k if and only if k <= q < tout[k]."""
    unseen_Q_M = (keys_M > rows_Q[:, None]) | (rows_Q[:, None] >= tout_S[keys_M])
    return torch.zeros(unseen_Q_M.shape).masked_fill_(torch.from_numpy(unseen_Q_M), float("-inf"))


def _ancestors(segments: tuple[Segment, ...], token: int) -> Iterator[Segment]:
    """The segments with tokens above `token`, from the root down: what has descendants beyond it ends first."""
    return (one for one in segments if one.start < token < one.tout)


class TreeAttention(torch.autograd.Function):
    """out = softmax(scale * q k^T + tree mask) v, [H, S, D], for [H, S, D] and twice [K, S, D].

    The G query heads of a key head are one matrix product. The weights are computed anew in the backward pass: they are
    the only thing as large as queries times keys, and held for a block at a time.
    """

    @staticmethod
    def forward(ctx: Any, q_HSD: Tensor, k_KSD: Tensor, v_KSD: Tensor, plan: Plan, scale: float) -> Tensor:
        ctx.save_for_backward(q_HSD, k_KSD, v_KSD)
        ctx.plan, ctx.scale = plan, scale
        out_SHD = torch.empty_like(q_HSD.transpose(0, 1), memory_format=torch.contiguous_format)
        scaled_KSD = k_KSD * scale  # fewer numbers than there are queries or scores, and once for all blocks
        for block in plan:
            weights_KRP = _weights(_grouped(q_HSD, len(k_KSD), block), _taken(scaled_KSD, block), block)
            mixed_KRD = torch.bmm(weights_KRP.to(v_KSD.dtype), _taken(v_KSD, block))
            _ungroup(mixed_KRD, out_SHD[block.start : block.end])
        return out_SHD.transpose(0, 1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q_HSD, k_KSD, v_KSD = ctx.saved_tensors
        grad_q_SHD = torch.empty_like(q_HSD.transpose(0, 1), memory_format=torch.contiguous_format)
        grad_k_KSD = torch.zeros(k_KSD.shape, dtype=torch.float32, device=k_KSD.device)
        grad_v_KSD = torch.zeros_like(grad_k_KSD)
        scaled_KSD = k_KSD * ctx.scale
        for block in ctx.plan:
            keys_KPD, values_KPD = _taken(scaled_KSD, block), _taken(v_KSD, block)
            q_KRD = _grouped(q_HSD, len(k_KSD), block)
            grad_KRD = _grouped(grads[0], len(k_KSD), block)
            weights_KRP = _weights(q_KRD, keys_KPD, block)
            _give(grad_v_KSD, torch.bmm(weights_KRP.to(v_KSD.dtype).transpose(1, 2), grad_KRD), block)
            grad_weights = torch.bmm(grad_KRD, values_KPD.transpose(1, 2)).float()
            grad_scores = torch._softmax_backward_data(grad_weights, weights_KRP, -1, torch.float32)
            grad_scores = grad_scores.to(q_HSD.dtype)
            _ungroup(torch.bmm(grad_scores, keys_KPD), grad_q_SHD[block.start : block.end])
            _give(grad_k_KSD, torch.bmm(grad_scores.transpose(1, 2), q_KRD), block)
        grad_k_KSD *= ctx.scale
        return grad_q_SHD.transpose(0, 1), grad_k_KSD.to(k_KSD.dtype), grad_v_KSD.to(v_KSD.dtype), None, None


def _taken(x_KSD: Tensor, block: Block) -> Tensor:
    """[K, P, D]: the block's keys, or their values."""
    first, *others = (x_KSD[:, start:end] for start, end in block.runs)
    return torch.cat([first, *others], dim=1) if others else first


def _give(grad_KSD: Tensor, part_KPD: Tensor, block: Block) -> None:
    """Add the block's gradient to the keys that `_taken` took."""
    at = 0
    for start, end in block.runs:
        grad_KSD[:, start:end] += part_KPD[:, at : at + end - start]
        at += end - start


def _grouped(x_HSD: Tensor, key_heads: int, block: Block) -> Tensor:
    """[K, R, D]: the block's rows of all query heads of a key head below each other."""
    rows = x_HSD.unflatten(0, (key_heads, -1))[:, :, block.start : block.end]
    return rows.reshape(key_heads, -1, x_HSD.shape[-1])


def _ungroup(x_KRD: Tensor, out_QHD: Tensor) -> None:
    """Write [K, R, D] where `_grouped` took it from."""
    key_heads, size = len(x_KRD), len(out_QHD)
    out_QHD.unflatten(1, (key_heads, -1)).copy_(x_KRD.unflatten(1, (-1, size)).permute(2, 0, 1, 3))


def _weights(q_KRD: Tensor, keys_KPD: Tensor, block: Block) -> Tensor:
    """[K, R, P] in float32: the softmax over the keys that each query sees; keys are scaled."""
    scores_KRP = torch.bmm(q_KRD, keys_KPD.transpose(1, 2)).float()
    size, some = block.bias.shape
    scores_KRP.unflatten(1, (-1, size))[..., -some:] += block.bias
    return torch.softmax(scores_KRP, dim=-1)


def tree_attention(q_HSD: Tensor, k_KSD: Tensor, v_KSD: Tensor, plan: Plan, *, scale: float) -> Tensor:
    """[H, S, D]; each key head serves its group of query heads."""
    found: Tensor = TreeAttention.apply(q_HSD, k_KSD, v_KSD, plan, scale)
    return found
