"""Attention over a trie: each token sees its ancestors and itself.

Axis legend: H query heads, K key heads, S tokens of the trie, D head size, Q and B tokens of a block.

The trie comes in depth-first order, where the descendants of a key block [a, b) are the queries [a, tout). So the
keys are taken block by block, each against one contiguous run of queries, and the blocks are joined by the
running softmax of FlashAttention (Dao et al. 2022, arXiv:2205.14135, algorithm 1). Nothing of size S x S is
ever held, forward or backward, and every operation is a plain batched matrix product, which on a CPU is faster
than the backward pass of the fused attention.

It is registered with transformers as the attention implementation `art_tree`, so every architecture
that uses its attention interface can be trained on tries; the plan travels as the keyword `art_plan`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from art.tokens.samples import Segment

NAME = "art_tree"
BLOCK = 256
"""Keys of a block at most: bounds the scores held at once to H * S * BLOCK numbers."""


@dataclass(frozen=True, slots=True)
class Block:
    """Keys [start, end), seen whole by the queries [end, tout) and causally by their own."""

    start: int
    end: int
    tout: int


def plan_blocks(segments: Sequence[Segment], *, block: int = BLOCK) -> tuple[Block, ...]:
    """Cut segments into key blocks: a long segment is a chain of shorter ones."""
    return tuple(
        Block(start=start, end=min(start + block, segment.end), tout=segment.tout)
        for segment in segments
        for start in range(segment.start, segment.end, block)
    )


def _scores(q_HQD: Tensor, k_HBD: Tensor, scale: float) -> Tensor:
    """[H, Q, B] in float32; the block's own queries come first and see no later key."""
    scores = torch.matmul(q_HQD, k_HBD.transpose(1, 2)).float().mul_(scale)
    size = k_HBD.shape[1]
    future = torch.ones(size, size, dtype=torch.bool, device=scores.device).triu_(1)
    scores[:, :size].masked_fill_(future, float("-inf"))
    return scores


class TreeAttention(torch.autograd.Function):
    """out = softmax(q k^T * scale + tree mask) v, for [H, S, D] tensors with keys repeated per query head."""

    @staticmethod
    def forward(
        ctx: Any, q_HSD: Tensor, k_HSD: Tensor, v_HSD: Tensor, blocks: tuple[Block, ...], scale: float
    ) -> Tensor:
        heads, size, width = q_HSD.shape
        out = torch.zeros(heads, size, width, dtype=torch.float32, device=q_HSD.device)
        top = torch.full((heads, size, 1), float("-inf"), dtype=torch.float32, device=q_HSD.device)
        total = torch.zeros(heads, size, 1, dtype=torch.float32, device=q_HSD.device)
        for block in blocks:
            rows, keys = slice(block.start, block.tout), slice(block.start, block.end)
            scores = _scores(q_HSD[:, rows], k_HSD[:, keys], scale)
            old = top[:, rows]
            new = torch.maximum(old, scores.amax(dim=-1, keepdim=True))
            shrink = torch.exp(old - new)
            weights = scores.sub_(new).exp_()
            total[:, rows] = total[:, rows] * shrink + weights.sum(dim=-1, keepdim=True)
            product = torch.matmul(weights.to(v_HSD.dtype), v_HSD[:, keys])
            out[:, rows] = out[:, rows] * shrink + product
            top[:, rows] = new
        out /= total
        ctx.save_for_backward(q_HSD, k_HSD, v_HSD, out, top + total.log())
        ctx.blocks, ctx.scale = blocks, scale
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
            rows, keys = slice(block.start, block.tout), slice(block.start, block.end)
            weights = _scores(q_HSD[:, rows], k_HSD[:, keys], ctx.scale).sub_(lse[:, rows]).exp_()
            grad_rows = grad_HSD[:, rows]
            grad_v[:, keys] = torch.matmul(weights.to(v_HSD.dtype).transpose(1, 2), grad_rows)
            grad_weights = torch.matmul(grad_rows, v_HSD[:, keys].transpose(1, 2)).float()
            grad_scores = grad_weights.sub_(delta[:, rows]).mul_(weights).mul_(ctx.scale).to(q_HSD.dtype)
            grad_q[:, rows] += torch.matmul(grad_scores, k_HSD[:, keys])
            grad_k[:, keys] = torch.matmul(grad_scores.transpose(1, 2), q_HSD[:, rows])
        return grad_q.to(q_HSD.dtype), grad_k, grad_v, None, None


def tree_attention(
    q_HSD: Tensor, k_KSD: Tensor, v_KSD: Tensor, blocks: tuple[Block, ...], *, scale: float
) -> Tensor:
    """[H, S, D]; grouped key heads are repeated to the query heads."""
    groups = q_HSD.shape[0] // k_KSD.shape[0]
    if groups > 1:
        k_KSD, v_KSD = k_KSD.repeat_interleave(groups, dim=0), v_KSD.repeat_interleave(groups, dim=0)
    out: Tensor = TreeAttention.apply(q_HSD, k_KSD, v_KSD, blocks, scale)
    return out


def _interface(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    art_plan: tuple[Block, ...],
    **unused: Any,
) -> tuple[Tensor, None]:
    """What transformers calls: [1, H, S, D] in, [1, S, H, D] out."""
    out = tree_attention(query[0], key[0], value[0], art_plan, scale=scaling)
    return out.transpose(0, 1).unsqueeze(0), None


def register() -> None:
    """Make `art_tree` known to transformers."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, _interface)
