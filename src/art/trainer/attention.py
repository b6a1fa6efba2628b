"""Attention over a trie: each token sees its ancestors and itself.

Axis legend: H query heads, K key heads, S tokens of the trie, D head size, Q and B tokens of a block.

The trie comes in depth-first order, where the descendants of a key lie in one run behind it. So the keys are
taken block by block, each against the contiguous run of queries that can see any of them, and the blocks
are joined by the running softmax of FlashAttention (Dao et al. 2022, arXiv:2205.14135, algorithm 1). Nothing
of size S x S is ever held, forward or backward, and every operation is a plain batched matrix product,
which on a CPU is faster than the backward pass of the fused attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from art.tokens.samples import Segment, Trie

BLOCK = 256
"""Keys of a block at most: bounds the scores held at once to H * S * BLOCK numbers."""
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


def tree_attention(
    q_HSD: Tensor, k_KSD: Tensor, v_KSD: Tensor, blocks: tuple[Block, ...], *, scale: float
) -> Tensor:
    """[H, S, D]; grouped key heads are repeated to the query heads."""
    groups = q_HSD.shape[0] // k_KSD.shape[0]
    if groups > 1:
        k_KSD, v_KSD = k_KSD.repeat_interleave(groups, dim=0), v_KSD.repeat_interleave(groups, dim=0)
    out: Tensor = TreeAttention.apply(q_HSD * scale, k_KSD, v_KSD, blocks)
    return out
