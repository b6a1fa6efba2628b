"""Attention over a trie: each token sees its ancestors and itself.

Axis legend: H query heads, K key heads, G query heads of each, S tokens of the trie, D head size, Q and B tokens of a
block, P tokens up to the end of a block, R the G * Q rows of a block that a key head serves.

The trie comes in depth-first order, where the descendants of a key lie in one run behind it. So the keys are
taken block by block, each against the contiguous run of queries that can see any of them, and the blocks
are joined by the running softmax of FlashAttention (Dao et al. 2022, arXiv:2205.14135, algorithm 1). Nothing
of size S x S is ever held, forward or backward, and every operation is a plain batched matrix product,
which on a CPU is faster than the backward pass of the fused attention.

A trie without a fork is a chain. Its queries are taken block by block instead, each block with all keys before it
at once, so that an ordinary softmax does: a single pass over the scores where joining blocks takes several.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from art.tokens.samples import Segment, Trie

BLOCK = 256
"""Keys of a block at most: bounds the scores held at once to H * S * BLOCK numbers."""
QUERIES = 128
"""Queries of a block of a chain: of its scores those above the diagonal, about half a block per query, are
computed for nothing."""
MERGE_SCORES = 32_768
"""Scores worth computing for nothing to save one more block's dozen of kernel launches."""
NOTHING = -60.0
"""Exponents are held above this: e^-60 vanishes beside a row's largest weight of 1 in float32, but e^-90 is a
denormal number, and a CPU takes up to forty times as long to make and multiply those."""


@dataclass(frozen=True, slots=True)
class Block:
    """Keys [start, end) and the queries [start, stop) that see any of them."""

    start: int
    end: int
    stop: int
    bias: Tensor
    """[Q, B] in float32: 0 where the query sees the key, -inf elsewhere. Every query sees one key at least:
    those up to `end` see themselves, and a later one is in the run because it descends from a key."""


@dataclass(frozen=True, slots=True)
class Chain:
    """The plan of a trie without a fork: queries are cut at `bounds`, and query i sees the keys 0 ... i."""

    bounds: tuple[int, ...]
    mask: Tensor
    """[Q, Q] in float32, Q the largest block: 0 where the query sees the key, -inf elsewhere."""


Plan = tuple[Block, ...] | Chain


def plan_attention(
    trie: Trie, *, device: torch.device, block: int = BLOCK, merge: int = MERGE_SCORES, queries: int = QUERIES
) -> Plan:
    """How a trie is attended over."""
    if len(trie.paths) > 1:
        return plan_blocks(trie, device=device, block=block, merge=merge)
    bounds = (*range(0, trie.size, queries), trie.size)
    width = min(queries, trie.size)
    mask = torch.full((width, width), float("-inf"), device=device).triu_(1)
    return Chain(bounds, mask)


def plan_blocks(
    trie: Trie, *, device: torch.device, block: int = BLOCK, merge: int = MERGE_SCORES
) -> tuple[Block, ...]:
    """Key blocks that cover the trie: long segments are cut, short neighbours merged where that is cheap."""
    runs: list[tuple[int, int, int]] = []
    for start, end, stop in _pieces(trie.segments, block):
        if runs:
            first, last, furthest = runs[-1]
            joined = (end - first) * (max(furthest, stop) - first)
            apart = (last - first) * (furthest - first) + (end - start) * (stop - start)
            if end - first <= block and joined <= apart + merge:
                runs[-1] = (first, end, max(furthest, stop))
                continue
        runs.append((start, end, stop))
    tout = torch.from_numpy(trie.tout)
    return tuple(
        Block(start=start, end=end, stop=stop, bias=_bias(tout, start, end, stop).to(device))
        for start, end, stop in runs
    )


def _pieces(segments: tuple[Segment, ...], block: int) -> list[tuple[int, int, int]]:
    return [
        (start, min(start + block, segment.end), segment.tout)
        for segment in segments
        for start in range(segment.start, segment.end, block)
    ]


def _bias(tout_S: Tensor, start: int, end: int, stop: int) -> Tensor:
    """[Q, B]: query q sees key k if and only if k <= q < tout[k]."""
    queries, keys = torch.arange(start, stop)[:, None], torch.arange(start, end)[None]
    visible = (keys <= queries) & (queries < tout_S[start:end][None])
    return torch.zeros(visible.shape).masked_fill_(~visible, float("-inf"))


def _scores(scaled_HQD: Tensor, k_HBD: Tensor, bias_QB: Tensor) -> Tensor:
    """[H, Q, B] in float32."""
    keys = k_HBD.transpose(1, 2)
    if scaled_HQD.dtype == torch.float32:
        return torch.baddbmm(bias_QB[None].expand(len(keys), -1, -1), scaled_HQD, keys)
    return torch.bmm(scaled_HQD, keys).float().add_(bias_QB)


class TreeAttention(torch.autograd.Function):
    """out = softmax(q k^T + tree mask) v, for [H, S, D] tensors: q scaled, keys repeated per query head."""

    @staticmethod
    def forward(ctx: Any, q_HSD: Tensor, k_HSD: Tensor, v_HSD: Tensor, blocks: tuple[Block, ...]) -> Tensor:
        heads, size, width = q_HSD.shape
        out = torch.zeros(heads, size, width, dtype=torch.float32, device=q_HSD.device)
        top = torch.full((heads, size, 1), float("-inf"), dtype=torch.float32, device=q_HSD.device)
        total = torch.zeros(heads, size, 1, dtype=torch.float32, device=q_HSD.device)
        for block in blocks:
            rows, keys = slice(block.start, block.stop), slice(block.start, block.end)
            scores = _scores(q_HSD[:, rows], k_HSD[:, keys], block.bias)
            old = top[:, rows]
            new = torch.maximum(old, scores.amax(dim=-1, keepdim=True))
            shrink = (old - new).clamp_(min=NOTHING).exp_()
            weights = scores.sub_(new).clamp_(min=NOTHING).exp_()
            total[:, rows] = total[:, rows].mul(shrink).add_(weights.sum(dim=-1, keepdim=True))
            out[:, rows] = out[:, rows].mul(shrink).add_(torch.bmm(weights.to(v_HSD.dtype), v_HSD[:, keys]))
            top[:, rows] = new
        out /= total
        ctx.save_for_backward(q_HSD, k_HSD, v_HSD, out, top + total.log())
        ctx.blocks = blocks
        return out.to(q_HSD.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q_HSD, k_HSD, v_HSD, out, lse = ctx.saved_tensors
        grad_HSD = grads[0]
        # Row sums of P * dP, which the softmax's derivative subtracts (FlashAttention, appendix B.2).
        delta = (grad_HSD.float() * out).sum(dim=-1, keepdim=True)
        grad_q = torch.zeros_like(out)
        grad_k = torch.empty_like(k_HSD)
        grad_v = torch.empty_like(v_HSD)
        for block in ctx.blocks:
            rows, keys = slice(block.start, block.stop), slice(block.start, block.end)
            scores = _scores(q_HSD[:, rows], k_HSD[:, keys], block.bias)
            weights = scores.sub_(lse[:, rows]).clamp_(min=NOTHING).exp_()
            grad_rows = grad_HSD[:, rows]
            grad_v[:, keys] = torch.bmm(weights.to(v_HSD.dtype).transpose(1, 2), grad_rows)
            grad_weights = torch.bmm(grad_rows, v_HSD[:, keys].transpose(1, 2)).float()
            grad_scores = grad_weights.sub_(delta[:, rows]).mul_(weights).to(q_HSD.dtype)
            grad_q[:, rows] += torch.bmm(grad_scores, k_HSD[:, keys])
            grad_k[:, keys] = torch.bmm(grad_scores.transpose(1, 2), q_HSD[:, rows])
        return grad_q.to(q_HSD.dtype), grad_k, grad_v, None


class ChainAttention(torch.autograd.Function):
    """out = softmax(scale * q k^T + causal mask) v, [H, S, D], for [H, S, D] and twice [K, S, D].

    The G query heads of a key head are one matrix product. The weights are computed anew in the backward pass: they are
    the only thing of size S x S, and held for a block at a time.
    """

    @staticmethod
    def forward(ctx: Any, q_HSD: Tensor, k_KSD: Tensor, v_KSD: Tensor, plan: Chain, scale: float) -> Tensor:
        ctx.save_for_backward(q_HSD, k_KSD, v_KSD)
        ctx.plan, ctx.scale = plan, scale
        out_SHD = torch.empty_like(q_HSD.transpose(0, 1), memory_format=torch.contiguous_format)
        for start, end in pairwise(plan.bounds):
            q_KRD = _grouped(q_HSD, len(k_KSD), start, end) * scale
            weights_KRP = _causal_weights(q_KRD, k_KSD[:, :end], plan.mask, start)
            _ungroup(torch.bmm(weights_KRP.to(v_KSD.dtype), v_KSD[:, :end]), out_SHD[start:end])
        return out_SHD.transpose(0, 1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q_HSD, k_KSD, v_KSD = ctx.saved_tensors
        grad_q_SHD = torch.empty_like(q_HSD.transpose(0, 1), memory_format=torch.contiguous_format)
        grad_k = torch.zeros(k_KSD.shape, dtype=torch.float32, device=k_KSD.device)
        grad_v = torch.zeros_like(grad_k)
        for start, end in pairwise(ctx.plan.bounds):
            keys_KPD, values_KPD = k_KSD[:, :end], v_KSD[:, :end]
            q_KRD = _grouped(q_HSD, len(k_KSD), start, end) * ctx.scale
            grad_KRD = _grouped(grads[0], len(k_KSD), start, end)
            weights_KRP = _causal_weights(q_KRD, keys_KPD, ctx.plan.mask, start)
            grad_v[:, :end] += torch.bmm(weights_KRP.to(v_KSD.dtype).transpose(1, 2), grad_KRD)
            grad_weights = torch.bmm(grad_KRD, values_KPD.transpose(1, 2)).float()
            grad_scores = torch._softmax_backward_data(grad_weights, weights_KRP, -1, torch.float32)
            grad_scores = grad_scores.to(q_HSD.dtype)
            _ungroup(torch.bmm(grad_scores, keys_KPD).mul_(ctx.scale), grad_q_SHD[start:end])
            grad_k[:, :end] += torch.bmm(grad_scores.transpose(1, 2), q_KRD)
        return grad_q_SHD.transpose(0, 1), grad_k.to(k_KSD.dtype), grad_v.to(v_KSD.dtype), None, None


def _grouped(x_HSD: Tensor, key_heads: int, start: int, end: int) -> Tensor:
    """[K, R, D]: the block's rows of all query heads of a key head below each other."""
    return x_HSD.unflatten(0, (key_heads, -1))[:, :, start:end].reshape(key_heads, -1, x_HSD.shape[-1])


def _ungroup(x_KRD: Tensor, out_QHD: Tensor) -> None:
    """Write [K, R, D] where `_grouped` took it from."""
    key_heads, size = len(x_KRD), len(out_QHD)
    out_QHD.unflatten(1, (key_heads, -1)).copy_(x_KRD.unflatten(1, (-1, size)).permute(2, 0, 1, 3))


def _causal_weights(q_KRD: Tensor, k_KPD: Tensor, mask: Tensor, start: int) -> Tensor:
    """[K, R, P] in float32: the softmax over the keys that each query sees; queries are scaled."""
    size = k_KPD.shape[1] - start
    scores_KRP = torch.bmm(q_KRD, k_KPD.transpose(1, 2)).float()
    scores_KRP.unflatten(1, (-1, size))[..., start:] += mask[:size, :size]
    return torch.softmax(scores_KRP, dim=-1)


def tree_attention(q_HSD: Tensor, k_KSD: Tensor, v_KSD: Tensor, plan: Plan, *, scale: float) -> Tensor:
    """[H, S, D]; each key head serves its group of query heads."""
    if isinstance(plan, Chain):
        found: Tensor = ChainAttention.apply(q_HSD, k_KSD, v_KSD, plan, scale)
        return found
    groups = q_HSD.shape[0] // k_KSD.shape[0]
    if groups > 1:
        k_KSD, v_KSD = k_KSD.repeat_interleave(groups, dim=0), v_KSD.repeat_interleave(groups, dim=0)
    out: Tensor = TreeAttention.apply(q_HSD * scale, k_KSD, v_KSD, plan)
    return out
