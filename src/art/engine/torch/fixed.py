"""The deterministic engine: what a choice samples depends on its request and the weights alone, to the last bit.

Sums of floating-point numbers depend on their order, and a matrix product's order on its shape. So every product
here has one of two shapes, and every token of a sequence always gets the same one:

- A prompt is computed in chunks of CHUNK_TOKENS that begin at multiples of CHUNK_TOKENS, one chunk a pass. A last one
  that is not full is filled up. A token's place in its chunk, and with it its last bits, follows from its position;
  what comes behind it is masked. Where a part of the chunk is in the cache, it is computed again, to the same bits.
- Sampled tokens are computed in passes of DECODE_ROWS rows; rows without a sequence stand idle. Which row a sequence
  has must not matter, and whether it does is tried when the engine starts (`rows_alike`). Where it matters there is
  one row in a pass. Every row is attended to by itself, over exactly its own tokens.
- Nobody takes over what a pass of sampled tokens has put into the cache: another request would compute the same tokens
  as a part of its prompt. A rollout's next turn computes its last answer again.
- Logits are computed for DECODE_ROWS rows, and drawn from row by row.

Axes: T tokens of a pass, R rows of a pass, E hidden features, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from art.engine.step import StepEvent
from art.engine.torch.architecture import Architecture
from art.engine.torch.attention import IDLE_SLOT, AttentionPlan, Segment
from art.engine.torch.engine import TorchEngine
from art.engine.torch.kv import KVCache, Match, Slot
from art.engine.torch.sampler import sample
from art.engine.torch.scheduler import CHUNK_TOKENS as BUSY_TOKENS
from art.engine.torch.scheduler import FULL_CHUNK_TOKENS, Choice, Scheduler
from art.errors import ConfigError

CHUNK_TOKENS = 128
"""Prompt tokens of a pass. Fewer use the processor badly; more are wasted on every prompt's last, half-full chunk."""
DECODE_ROWS = 16
"""Sequences of a pass: the rows of a matrix tile (AMX). More make a single sequence's token dearer, fewer a batch's."""
IDLE_TOKEN = 0
"""What idle rows and the places behind a prompt hold; nobody sees what becomes of it."""

T = TypeVar("T")
Ended = tuple[Choice, Tensor]
"""A choice whose next token can be sampled, and the hidden state [E] that says which."""


class FixedScheduler(Scheduler):
    """Decides what a step computes, where the shape of a pass is given."""

    def prefilling(self, members: Sequence[Choice]) -> Iterator[Choice]:
        """Those of `members` with prompt tokens to compute, each as often as this step has chunks for it."""
        decoding = any(choice.computed >= prompt_length(choice) for choice in self.running.values())
        chunks = (BUSY_TOKENS if decoding else FULL_CHUNK_TOKENS) // CHUNK_TOKENS
        for choice in members:
            while chunks and choice.computed < prompt_length(choice):
                chunks -= 1
                yield choice

    def by_version(self) -> dict[str, list[Choice]]:
        """The running choices, by the weights they use."""
        found: dict[str, list[Choice]] = {}
        for choice in self.running.values():
            found.setdefault(choice.request.version, []).append(choice)
        return found

    def _place(self, choice: Choice, match: Match) -> Slot:
        """As for any choice; one whose whole prompt was computed before has its last hidden state, too."""
        end = None if match.slot is None else match.slot.end
        length = prompt_length(choice)
        if end is not None and end[0] == length and _holds(match, choice.request.prompt_token_ids):
            slot = super()._place(choice, replace(match, length=length))
            slot.end = end
            return slot
        return super()._place(choice, match)


class FixedEngine(TorchEngine):
    """A TorchEngine that keeps to the shapes above. A worker runs it with `--deterministic`."""

    scheduler_class = FixedScheduler
    chunk = CHUNK_TOKENS
    _scheduler: FixedScheduler
    rows: int = DECODE_ROWS
    """Rows of a pass of sampled tokens."""

    @classmethod
    def load(cls, base_model: str, **options: Any) -> Self:
        """As TorchEngine.load. ConfigError on a machine with a GPU, where the shapes alone do not settle the bits."""
        if torch.cuda.is_available():
            raise ConfigError(
                "a deterministic engine runs on the CPU",
                cause="this machine has a GPU, whose kernels were not shown to repeat themselves bit by bit",
                hint="hide it (CUDA_VISIBLE_DEVICES=), or leave --deterministic out",
            )
        engine = super().load(base_model, **options)
        notes = [*engine.capabilities.notes, engine._settle()]
        engine.capabilities = replace(engine.capabilities, deterministic=True, notes=notes)
        return engine

    def _refresh_stats(self) -> None:
        super()._refresh_stats()
        self.stats = {**self.stats, "rows": self.rows}

    @torch.inference_mode()
    def _settle(self) -> str:
        """Find out how many rows a pass may have, before the first request; what was found, for a person."""
        alike = rows_alike(self._architecture, self._adapters.weights(""), self._cache, rows=DECODE_ROWS)
        self.rows = DECODE_ROWS if alike else 1
        threads = torch.get_num_threads()
        if alike:
            return f"deterministic: fixed shapes ({DECODE_ROWS} rows, {threads} threads)"
        return (
            f"deterministic: one sequence at a time ({threads} threads), because the last bits of this machine's"
            " products depend on a row's place"
        )

    def _compute(self) -> list[StepEvent]:
        """One pass for every DECODE_ROWS running choices, and as many chunks of prompts as a step has."""
        events: list[StepEvent] = []
        for version, members in self._scheduler.by_version().items():
            weights = self._adapters.weights(version)
            decoding = [choice for choice in members if choice.computed >= prompt_length(choice)]
            ended = [found for choice in decoding if (found := _known_end(choice)) is not None]
            known = {choice.key for choice, _ in ended}
            for group in parts([choice for choice in decoding if choice.key not in known], self.rows):
                ended += self._decode(weights, group)
            for choice in self._scheduler.prefilling(members):
                ended += self._prefill(weights, choice)
            for some in parts(ended, self.rows):
                events += self._draw(weights, some)
        return events

    def _prefill(self, weights: Any, choice: Choice) -> list[Ended]:
        """Compute the next chunk of a prompt."""
        slot, prompt = choice.slot, choice.request.prompt_token_ids
        assert slot is not None
        start = choice.computed // CHUNK_TOKENS * CHUNK_TOKENS
        tokens = prompt[start : start + CHUNK_TOKENS]
        hidden_T_E = chunk_pass(
            self._architecture, weights, self._cache, slot=slot.index, start=start, tokens=tokens
        )
        self._tokens_computed += CHUNK_TOKENS
        end = start + len(tokens)
        slot.tokens += prompt[len(slot.tokens) : end]
        if end < len(prompt):
            return []
        slot.end = end, hidden_T_E[len(tokens) - 1].clone()
        return [(choice, slot.end[1])]

    def _decode(self, weights: Any, group: Sequence[Choice]) -> list[Ended]:
        """Compute the last sampled token of every choice of a group."""
        segments: list[Segment] = []
        for choice in group:
            assert choice.slot is not None
            choice.slot.firm = prompt_length(choice)
            segments.append(Segment(choice.slot.index, len(choice.slot.tokens), 1))
        tokens = [choice.tokens[-1] for choice in group]
        hidden_R_E = rows_pass(
            self._architecture, weights, self._cache, segments=segments, tokens=tokens, rows=self.rows
        )
        self._tokens_computed += self.rows
        for choice, token in zip(group, tokens, strict=True):
            assert choice.slot is not None
            choice.slot.tokens.append(token)
        return [(choice, hidden_R_E[row]) for row, choice in enumerate(group)]

    def _draw(self, weights: Any, ended: Sequence[Ended]) -> list[StepEvent]:
        """Sample a token for every choice of `ended`."""
        hidden_R_E = torch.stack([hidden_E for _, hidden_E in ended])
        logits_R_V = logits_of(self._architecture, weights, hidden_R_E, rows=self.rows)
        events: list[StepEvent] = []
        for row, (choice, _) in enumerate(ended):
            # A copy begins at the same alignment whatever the row, and one row is always computed alike.
            (draw,) = sample(
                logits_R_V[row : row + 1].clone(), [choice.request], [choice.sampled], [choice.matcher]
            )
            events.append(self._extend(choice, draw))
        self._tokens_sampled += len(ended)
        return events


def chunk_pass(
    architecture: Architecture, weights: Any, cache: KVCache, *, slot: int, start: int, tokens: Sequence[int]
) -> Tensor:
    """Hidden states [CHUNK_TOKENS, E] of a slot's tokens from `start` on; those behind `tokens` mean nothing."""
    short = CHUNK_TOKENS - len(tokens)
    plan = AttentionPlan(
        [Segment(slot, start, CHUNK_TOKENS)], cache, query_heads=architecture.shape.query_heads
    )
    token_T = torch.tensor([*tokens, *[IDLE_TOKEN] * short], device=plan.position_T.device)
    return architecture.forward(weights, token_T, plan)


def rows_pass(
    architecture: Architecture,
    weights: Any,
    cache: KVCache,
    *,
    segments: Sequence[Segment],
    tokens: Sequence[int],
    rows: int,
) -> Tensor:
    """Hidden states [rows, E] of one token for each of `segments`; the other rows stand idle."""
    idle = rows - len(segments)
    plan = AttentionPlan(segments, cache, query_heads=architecture.shape.query_heads, apart=True, idle=idle)
    token_R = torch.tensor([*tokens, *[IDLE_TOKEN] * idle], device=plan.position_T.device)
    return architecture.forward(weights, token_R, plan)


def logits_of(architecture: Architecture, weights: Any, hidden_R_E: Tensor, *, rows: int) -> Tensor:
    """Logits [R, V], computed for `rows` rows."""
    padded_R_E = hidden_R_E.new_zeros(rows, hidden_R_E.shape[1])
    padded_R_E[: len(hidden_R_E)] = hidden_R_E
    return architecture.logits(weights, padded_R_E)[: len(hidden_R_E)]


def rows_alike(architecture: Architecture, weights: Any, cache: KVCache, *, rows: int) -> bool:
    """Whether a sequence's token comes out the same, to the last bit, in every row and beside any others.

    Tried with the model's own weights: a kernel that treats rows differently rounds differently, and of thousands of
    hidden features and logits some would show it.
    """
    vocab = architecture.shape.vocab_size
    context = [(7 * place + 3) % vocab for place in range(min(CHUNK_TOKENS, cache.context - rows - 1))]
    chunk_pass(architecture, weights, cache, slot=IDLE_SLOT, start=0, tokens=context)

    def computed(own: Sequence[bool]) -> tuple[Tensor, Tensor]:
        """Hidden states and logits of the token behind the context, which stands in every row where `own` is true."""
        tokens = [5 % vocab if mine else (11 * row + 1) % vocab for row, mine in enumerate(own)]
        # The other rows' tokens lie further back, where no other row looks.
        segments = [
            Segment(IDLE_SLOT, len(context) + (0 if mine else 1 + row), 1) for row, mine in enumerate(own)
        ]
        hidden_R_E = rows_pass(architecture, weights, cache, segments=segments, tokens=tokens, rows=rows)
        kept = [row for row, mine in enumerate(own) if mine]
        return hidden_R_E[kept], logits_of(architecture, weights, hidden_R_E, rows=rows)[kept]

    hidden_R_E, logits_R_V = computed([True] * rows)
    alike = all(torch.equal(part, part[:1].expand_as(part)) for part in (hidden_R_E, logits_R_V))
    for place in {0, rows // 3, rows - 1}:
        hidden_1_E, logits_1_V = computed([row == place for row in range(rows)])
        alike = alike and torch.equal(hidden_1_E, hidden_R_E[:1]) and torch.equal(logits_1_V, logits_R_V[:1])
    return alike


def prompt_length(choice: Choice) -> int:
    """Tokens of a choice's prompt."""
    return len(choice.request.prompt_token_ids)


def parts(items: Sequence[T], size: int) -> list[Sequence[T]]:
    """`items` in order, cut into parts of at most `size`."""
    return [items[start : start + size] for start in range(0, len(items), size)]


def _holds(match: Match, prompt: Sequence[int]) -> bool:
    """Whether the match, which never counts a prompt's last token, has it nevertheless."""
    slot, last = match.slot, len(prompt) - 1
    if slot is None or match.length != last or (slot.firm is not None and slot.firm <= last):
        return False
    return slot.tokens[last : last + 1] == list(prompt[last:])


def _known_end(choice: Choice) -> Ended | None:
    """The choice, where its whole prompt was found computed and nothing was sampled yet."""
    end = None if choice.slot is None else choice.slot.end
    if choice.sampled or end is None or choice.computed > prompt_length(choice):
        return None
    return choice, end[1]
