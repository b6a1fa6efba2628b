"""Attention of one step over the slots: decoding rows together, prompt chunks one by one.

Axes: T tokens of the step, Q query heads, H key/value heads, G = Q / H, D features of a head, S slots of a run,
L tokens looked at, n tokens of a chunk.

Query heads that share a key/value head are folded into the query's length, so that keys and values are read once
and no copy of them is made: a decoding row is G queries long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from art.engine.torch.kv import KVCache

CALL_COST = 1200
"""What one more attention call costs, in tokens of a row read: 40 microseconds against 33 nanoseconds a token
(SmolLM2-135M, one core)."""


IDLE_SLOT = 0
"""Where rows of no sequence put their keys and values: the slot of the probes, which no sequence has."""


@dataclass(frozen=True, slots=True)
class Segment:
    """`count` new tokens of a slot whose first `start` tokens are in the cache."""

    slot: int
    start: int
    count: int

    @property
    def end(self) -> int:
        return self.start + self.count


@dataclass(frozen=True, slots=True)
class _Run:
    """Segments of one token each, in slots `first` ... `first + S - 1`."""

    rows: slice
    first: int
    last: int
    length: int
    mask_S_1_1_L: Tensor | None


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A segment of several tokens."""

    rows: slice
    slot: int
    count: int
    length: int
    mask_1_1_Gn_L: Tensor


class AttentionPlan:
    """What one forward pass attends to: made once, used by every layer.

    The step's tokens are the segments' tokens, one segment after the other; those of one token come first, by slot.
    """

    def __init__(
        self,
        segments: Sequence[Segment],
        cache: KVCache,
        *,
        query_heads: int,
        apart: bool = False,
        idle: int = 0,
    ) -> None:
        """`apart`: no two segments are attended in one call, so that what a row gets depends on its own slot alone.

        `idle` rows of no sequence follow the segments: they give a step its shape and attend to nothing.
        """
        self._heads = cache.heads
        self._fold = query_heads // cache.heads
        self._cache = cache
        device = cache.layer(0)[0].device
        self._dtype = cache.layer(0)[0].dtype
        singles = sum(segment.count == 1 for segment in segments)
        assert not idle or singles == len(segments), "idle rows stand beside decoding ones"
        assert all(segment.count == 1 for segment in segments[:singles])
        slots = [segment.slot for segment in segments for _ in range(segment.count)]
        positions = [p for segment in segments for p in range(segment.start, segment.end)]
        slots += [IDLE_SLOT] * idle
        positions += range(idle)
        self.alone = segments[0] if len(positions) == 1 else None
        """The step's segment, when it is a single token."""
        self.position_T = torch.tensor(positions, device=device)
        self._rows = cache.rows(slots, positions)
        alone = [slice(row, row + 1) for row in range(singles)]
        self._runs = [
            self._run(segments, rows) for rows in (alone if apart else split_runs(segments[:singles]))
        ]
        self._idle = idle
        self._chunks: list[_Chunk] = []
        row = singles
        for segment in segments[singles:]:
            self._chunks.append(self._chunk(segment, row))
            row += segment.count

    def attend(self, layer: int, q_T_Q_D: Tensor, kv_T_2H_D: Tensor) -> Tensor:
        """Store the step's keys and values, then softmax(q k / sqrt(D)) v: [T, Q * D]."""
        self._cache.write(layer, self._rows, kv_T_2H_D)
        keys, values = self._cache.layer(layer)
        parts = [self._attend_run(run, q_T_Q_D, keys, values) for run in self._runs]
        parts += [self._attend_chunk(chunk, q_T_Q_D, keys, values) for chunk in self._chunks]
        if self._idle:
            parts.append(q_T_Q_D.new_zeros(self._idle, q_T_Q_D.shape[1] * q_T_Q_D.shape[2]))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def attend_alone(self, layer: int, q_Q_D: Tensor, kv_2H_D: Tensor) -> Tensor:
        """`attend` for a step of a single token, with fewer and smaller calls: [Q * D]."""
        assert self.alone is not None
        dim = q_Q_D.shape[-1]
        keys_values = self._cache.sequence(layer, self.alone.slot)
        keys_values[:, :, self.alone.start] = kv_2H_D.view(2, self._heads, dim)
        keys_H_L_D, values_H_L_D = keys_values[:, :, : self.alone.end]
        scores_H_G_L = torch.bmm(q_Q_D.view(self._heads, self._fold, dim), keys_H_L_D.mT)
        return torch.bmm(scores_H_G_L.mul_(dim**-0.5).softmax(-1), values_H_L_D).view(-1)

    def _attend_run(self, run: _Run, q_T_Q_D: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        count, dim = run.last - run.first, q_T_Q_D.shape[-1]
        out = functional.scaled_dot_product_attention(
            q_T_Q_D[run.rows].view(count, self._heads, self._fold, dim),
            keys[run.first : run.last, :, : run.length],
            values[run.first : run.last, :, : run.length],
            attn_mask=run.mask_S_1_1_L,
        )
        return out.reshape(count, -1)

    def _attend_chunk(self, chunk: _Chunk, q_T_Q_D: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        n, dim = chunk.count, q_T_Q_D.shape[-1]
        q_H_G_n_D = q_T_Q_D[chunk.rows].view(n, self._heads, self._fold, dim).permute(1, 2, 0, 3)
        out = functional.scaled_dot_product_attention(
            q_H_G_n_D.reshape(1, self._heads, self._fold * n, dim),
            keys[chunk.slot : chunk.slot + 1, :, : chunk.length],
            values[chunk.slot : chunk.slot + 1, :, : chunk.length],
            attn_mask=chunk.mask_1_1_Gn_L,
        )
        return out.view(self._heads, self._fold, n, dim).permute(2, 0, 1, 3).reshape(n, -1)

    def _run(self, segments: Sequence[Segment], rows: slice) -> _Run:
        members = segments[rows]
        length = max(segment.end for segment in members)
        mask = None
        if any(segment.end != length for segment in members):
            end_S = torch.tensor([segment.end for segment in members], device=self.position_T.device)
            mask = self._mask(torch.arange(length, device=end_S.device) < end_S[:, None])[:, None, None]
        return _Run(rows, members[0].slot, members[-1].slot + 1, length, mask)

    def _chunk(self, segment: Segment, row: int) -> _Chunk:
        device = self.position_T.device
        query_n = torch.arange(segment.start, segment.end, device=device)
        visible_n_L = torch.arange(segment.end, device=device) <= query_n[:, None]
        mask_n_L = self._mask(visible_n_L)
        mask = mask_n_L.repeat(self._fold, 1)[None, None]
        return _Chunk(slice(row, row + segment.count), segment.slot, segment.count, segment.end, mask)

    def _mask(self, visible: Tensor) -> Tensor:
        # Added to the scores. Converting a boolean mask here spares every layer from doing it.
        return torch.zeros(visible.shape, dtype=self._dtype, device=visible.device).masked_fill_(
            ~visible, -torch.inf
        )


def split_runs(segments: Sequence[Segment]) -> list[slice]:
    """Cut decoding rows, ordered by slot, into runs of neighbouring slots, each attended in one call.

    A run reads as many tokens of every slot as its longest has; a further call costs CALL_COST tokens. The cut with
    the least sum is found by dynamic programming over the last run's start.
    """
    best: list[tuple[int, int]] = [(0, 0)]
    for end in range(1, len(segments) + 1):
        longest, candidates = 0, []
        for start in range(end - 1, -1, -1):
            if start < end - 1 and segments[start].slot + 1 != segments[start + 1].slot:
                break
            longest = max(longest, segments[start].end)
            candidates.append((best[start][0] + CALL_COST + longest * (end - start), start))
        best.append(min(candidates))
    runs: list[slice] = []
    end = len(segments)
    while end:
        start = best[end][1]
        runs.append(slice(start, end))
        end = start
    return runs[::-1]
