"""Keys and values of all sequences in preallocated slots, and the prefix cache that finished slots are.

Axes: S slots, H key/value heads, C capacity in tokens, D features of a head, T tokens of a step.
"""

from __future__ import annotations

import math
import mmap
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

Space = tuple[str, str]
"""(adapter version, cache salt): only sequences of the same space share keys and values."""

CAPACITY_STEP = 256
"""Tokens a slot can hold at first, and by which every slot grows when a sequence needs more: memory follows use.
Growing copies everything, about a second for 100,000 tokens, and happens once for each step."""

CONTINUATION_SLACK = 16
"""A request that repeats all but this many tokens of a free slot is its continuation and takes it over."""


@dataclass(slots=True)
class Slot:
    """One sequence's place. `tokens` are those whose keys and values the cache holds."""

    index: int
    space: Space | None = None
    tokens: list[int] = field(default_factory=list)
    busy: bool = False
    last_used: int = 0
    firm: int | None = None
    """How many of the first tokens others may take over; None is all. The rest was computed in another shape than a
    prompt is, and has other last bits (see fixed.py)."""
    end: tuple[int, Tensor] | None = None
    """Where known: (number of tokens, hidden state [E] of the last one of them)."""

    def clear(self) -> None:
        self.space, self.tokens, self.last_used = None, [], 0
        self.firm, self.end = None, None


class KVCache:
    """The tensors: per layer one of shape [2, S, H, C, D], index 0 keys and 1 values."""

    def __init__(
        self,
        *,
        layers: int,
        slots: int,
        heads: int,
        head_dim: int,
        context: int,
        dtype: torch.dtype,
        device: torch.device,
        whole: bool = False,
    ) -> None:
        """`whole`: every slot has the whole context from the start, so that no stride ever changes."""
        self.slots = slots
        self.heads = heads
        self.head_dim = head_dim
        self.context = context
        self.capacity = context if whole else min(CAPACITY_STEP, context)
        self._dtype = dtype
        self._device = device
        self._used = 1
        """Slots from the first up to the last ever written; the others hold nothing worth copying."""
        self._layers = [self._zeros(self.capacity) for _ in range(layers)]

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer, each [S, H, C, D]."""
        return self._layers[index][0], self._layers[index][1]

    def sequence(self, layer: int, slot: int) -> Tensor:
        """Keys and values of one slot in a layer, [2, H, C, D]."""
        return self._layers[layer][:, slot]

    def reserve(self, tokens: int) -> None:
        """Make every slot hold at least `tokens`, at most the context."""
        if tokens <= self.capacity:
            return
        capacity = min(-(-tokens // CAPACITY_STEP) * CAPACITY_STEP, self.context)
        for index, old in enumerate(self._layers):
            # One layer at a time: the old and the new tensor of only one layer exist together.
            self._layers[index] = self._zeros(capacity)
            self._layers[index][:, : self._used, :, : self.capacity] = old[:, : self._used]
        self.capacity = capacity

    def copy_prefix(self, source: int, target: int, tokens: int) -> None:
        """Copy the first `tokens` tokens of a slot to another."""
        self._used = max(self._used, target + 1)
        for layer in self._layers:
            layer[:, target, :, :tokens] = layer[:, source, :, :tokens]

    def wipe(self, slot: int) -> None:
        """Make a slot zeros again: what overflowed must not reach its next owner through masked positions."""
        for layer in self._layers:
            layer[:, slot] = 0

    def rows(self, slots: Sequence[int], positions: Sequence[int]) -> Tensor:
        """Where T tokens lie: rows [T * 2H] of a layer seen as [2 * S * H * C, D]; per token keys, then values."""
        self._used = max(self._used, max(slots) + 1)
        slot_T = torch.tensor(slots, device=self._device)
        position_T = torch.tensor(positions, device=self._device)
        head_H = torch.arange(self.heads, device=self._device)
        key_T_H = (slot_T[:, None] * self.heads + head_H) * self.capacity + position_T[:, None]
        return torch.cat([key_T_H, key_T_H + self.slots * self.heads * self.capacity], dim=1).flatten()

    def write(self, layer: int, rows: Tensor, kv_T_2H_D: Tensor) -> None:
        """Store keys and values (heads stacked: keys, then values) at `rows`."""
        self._layers[layer].view(-1, self.head_dim).index_copy_(0, rows, kv_T_2H_D.reshape(-1, self.head_dim))

    def _zeros(self, capacity: int) -> Tensor:
        """Zeros, not garbage: a masked position gets a weight of 0, and 0 * NaN is NaN."""
        shape = (2, self.slots, self.heads, capacity, self.head_dim)
        if self._device.type != "cpu":
            return torch.zeros(shape, dtype=self._dtype, device=self._device)
        # Straight from the kernel: zero without being written, so that a slot costs nothing before it is used, and
        # given back when the cache grows. malloc would recycle, and so write, all of it.
        memory = mmap.mmap(
            -1, math.prod(shape) * self._dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        )
        if sys.platform == "linux":
            memory.madvise(mmap.MADV_HUGEPAGE)
        return torch.frombuffer(memory, dtype=self._dtype).view(shape)


@dataclass(frozen=True, slots=True)
class Match:
    """The slot that holds the longest common prefix with a prompt."""

    slot: Slot | None
    length: int


class SlotTable:
    """Who sits where, and which slot serves a new prompt best."""

    def __init__(self, count: int, *, first: int = 0, prefix_cache: bool) -> None:
        self.slots = [Slot(index) for index in range(first, first + count)]
        self._prefix_cache = prefix_cache
        self._clock = 0

    @property
    def free(self) -> int:
        return sum(not slot.busy for slot in self.slots)

    def match(self, space: Space, prompt: Sequence[int]) -> Match:
        """The best prefix held now. The last prompt token never counts: its logits must be computed."""
        best = Match(None, 0)
        if not self._prefix_cache:
            return best
        wanted = list(prompt[:-1])
        for slot in self.slots:
            if slot.space == space and slot.tokens:
                length = common_prefix(slot.tokens, wanted)
                length = length if slot.firm is None else min(length, slot.firm)
                if length > best.length:
                    best = Match(slot, length)
        return best

    def take(self, space: Space, match: Match) -> Slot:
        """Give a free slot to a request; the caller copies the prefix if the slot is not `match.slot`.

        A continued sequence keeps its slot. Otherwise the least recently used one goes: taking over a slot that
        merely shares the prompt would throw away what another rollout is about to continue.
        """
        held = match.slot
        if held is not None and not held.busy and len(held.tokens) - match.length <= CONTINUATION_SLACK:
            slot = held
        else:
            slot = min(
                (slot for slot in self.slots if not slot.busy), key=lambda slot: (slot.last_used, slot.index)
            )
        if slot is held:
            slot.tokens = slot.tokens[: match.length]
        else:
            slot.tokens = []
        slot.firm, slot.end = None, None
        slot.space, slot.busy = space, True
        return slot

    def release(self, slot: Slot) -> None:
        """The request has ended; its tokens stay as cache."""
        self._clock += 1
        slot.busy, slot.last_used = False, self._clock
        slot.tokens = slot.tokens[: slot.firm]
        if not self._prefix_cache:
            slot.clear()

    def forget(self, version: str) -> None:
        """Drop what was computed under an adapter that is gone."""
        for slot in self.slots:
            if not slot.busy and slot.space is not None and slot.space[0] == version:
                slot.clear()


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix of two lists, by bisection: comparing slices runs at C speed."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
