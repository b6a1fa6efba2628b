"""Which choice gets a slot, and which tokens a step computes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from art.engine.grammar import Matcher
from art.engine.protocol import SampleRequest
from art.engine.torch.attention import Segment
from art.engine.torch.kv import KVCache, Match, Slot, SlotTable, Space, common_prefix

CHUNK_TOKENS = 256
"""Prompt tokens of a step while others decode: enough to use the processor well, few enough not to stall them."""
FULL_CHUNK_TOKENS = 1024
"""Prompt tokens of a step when nobody waits for a token."""
LEAST_CHUNK = 128
"""A prompt is not cut into pieces smaller than this: they would cost nearly as much."""
WORTH_WAITING = 16
"""Prompt tokens that another request is just computing and that are worth waiting for instead of computing twice."""


@dataclass(slots=True)
class Choice:
    """A request on its way."""

    key: int
    request: SampleRequest
    context: int
    """Tokens a sequence may have."""
    matcher: Matcher | None = None
    """Where the choice stands in its grammar, if it has one."""
    tokens: list[int] = field(default_factory=list)
    """Prompt and sampled tokens; those that the slot lacks are still to be computed."""
    slot: Slot | None = None
    cached_tokens: int = 0

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prompt_token_ids)

    @property
    def space(self) -> Space:
        return self.request.version, self.request.cache_salt

    @property
    def sampled(self) -> int:
        return len(self.tokens) - len(self.request.prompt_token_ids)

    @property
    def computed(self) -> int:
        return 0 if self.slot is None else len(self.slot.tokens)

    @property
    def pending(self) -> int:
        """Tokens to compute before the next one can be sampled; 1 while decoding."""
        return len(self.tokens) - self.computed

    def finish_reason(self) -> str | None:
        """Why the choice ends with its last sampled token, or None."""
        if self.tokens[-1] in self.request.stop_token_ids:
            return "stop"
        if self.matcher is not None and self.matcher.complete:
            return "stop"
        if self.sampled >= self.request.max_tokens or len(self.tokens) >= self.context:
            return "length"
        return None


@dataclass(frozen=True, slots=True)
class Batch:
    """One forward pass: tokens of choices that use the same weights."""

    version: str
    choices: list[Choice]
    segments: list[Segment]
    """One per choice, those of one token first, by slot."""

    def tokens(self) -> list[int]:
        return [
            token
            for choice, part in zip(self.choices, self.segments, strict=True)
            for token in choice.tokens[part.start : part.end]
        ]

    def ends(self) -> list[tuple[int, Choice]]:
        """(row of the last token, choice) of every choice whose next token can be sampled."""
        found, row = [], 0
        for choice, part in zip(self.choices, self.segments, strict=True):
            row += part.count
            if part.end == len(choice.tokens):
                found.append((row - 1, choice))
        return found


class Scheduler:
    """Waiting and running choices. First come, first served, but nobody computes a prompt that is being computed."""

    def __init__(self, slots: SlotTable, cache: KVCache, *, max_batch: int, prefix_cache: bool) -> None:
        self.waiting: deque[Choice] = deque()
        self.running: dict[int, Choice] = {}
        self.cache_hits = 0
        self.cached_tokens = 0
        self._slots = slots
        self._cache = cache
        self._max_batch = max_batch
        self._prefix_cache = prefix_cache

    def busy_versions(self) -> set[str]:
        return {choice.request.version for choice in (*self.running.values(), *self.waiting)}

    def admit(self) -> None:
        """Give slots to waiting choices, with the longest prefix that any slot holds."""
        held: list[Choice] = []
        while self.waiting and len(self.running) < self._max_batch:
            choice = self.waiting.popleft()
            match = self._slots.match(choice.space, choice.tokens)
            if self._prefix_cache and self._promised(choice) >= match.length + WORTH_WAITING:
                held.append(choice)
                continue
            self._place(choice, match)
            self.running[choice.key] = choice
        self.waiting.extendleft(reversed(held))

    def _place(self, choice: Choice, match: Match) -> Slot:
        """Give the choice a slot that holds what `match` found."""
        slot = self._slots.take(choice.space, match)
        if match.slot is not None and match.slot is not slot:
            self._cache.copy_prefix(match.slot.index, slot.index, match.length)
            slot.tokens = match.slot.tokens[: match.length]
        choice.slot, choice.cached_tokens = slot, match.length
        self.cache_hits += match.length > 0
        self.cached_tokens += match.length
        return slot

    def remove(self, key: int) -> Choice | None:
        """Take a choice out, running or waiting; its slot is free at once and keeps its tokens."""
        choice = self.running.pop(key, None)
        if choice is not None and choice.slot is not None:
            self._slots.release(choice.slot)
            return choice
        for waiting in self.waiting:
            if waiting.key == key:
                self.waiting.remove(waiting)
                return waiting
        return None

    def batches(self) -> Iterator[Batch]:
        """This step's forward passes, one per version."""
        decoding = any(choice.pending == 1 for choice in self.running.values())
        budget = CHUNK_TOKENS if decoding else FULL_CHUNK_TOKENS
        parts: dict[str, list[tuple[Choice, Segment]]] = {}
        for choice in self.running.values():
            count = choice.pending
            if count > 1:
                if budget < min(count, LEAST_CHUNK):
                    continue
                count = min(count, budget)
                budget -= count
            assert choice.slot is not None
            segment = Segment(choice.slot.index, choice.computed, count)
            parts.setdefault(choice.request.version, []).append((choice, segment))
        for version, members in parts.items():
            members.sort(key=lambda member: (member[1].count > 1, member[1].slot))
            yield Batch(version, [choice for choice, _ in members], [segment for _, segment in members])

    def _promised(self, choice: Choice) -> int:
        """Tokens of its prompt that a running choice will have computed soon and has not yet."""
        wanted = choice.tokens[:-1]
        return max(
            (
                common_prefix(other.tokens, wanted)
                for other in self.running.values()
                if other.pending > 1 and other.space == choice.space
            ),
            default=0,
        )
