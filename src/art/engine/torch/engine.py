"""The embedded engine: continuous batching of Llama-like models in plain PyTorch.

Axes: T tokens of a step, B rows to sample from, E hidden features, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from tokenizers import Tokenizer
from torch import Tensor

from art.base_model.files import TensorFile
from art.base_model.memory import memory_bytes
from art.engine.grammar import Grammars, grammars_of
from art.engine.protocol import AdapterCheck, AdapterRef, EngineCapabilities, Sampled, SampleRequest
from art.engine.step import StepEvent
from art.engine.torch.adapters import AdapterStore
from art.engine.torch.architecture import Architecture, ModelShape, load_architecture
from art.engine.torch.attention import AttentionPlan, Segment
from art.engine.torch.kv import KVCache, SlotTable
from art.engine.torch.sampler import CHUNK_ROWS, Draw, sample
from art.engine.torch.scheduler import FULL_CHUNK_TOKENS, Batch, Choice, Scheduler
from art.engine.torch.weights import Placement, choose_placement
from art.errors import ConfigError, InfraError, InvalidInput, PromptTooLong, boundary

SCRATCH_SLOT = 0
"""The cache's slot for probes. First, because memory is occupied from the first slot up."""
AUTO_CONTEXT = 4096
"""Tokens; the context when none is asked for, if the model and the memory allow it."""
CACHE_SHARE = 1 / 3
"""Of the machine's memory, what keys and values may take when every slot is full."""
PLAIN_SHARE = 0.15
"""Of the machine's memory, what second copies of the weights may take (see PackedLinear)."""
LEAST_CONTEXT = 2048
"""Tokens; with less memory than that for every slot, there are fewer slots instead."""


class TorchEngine:
    """A StepEngine. Everything runs on the thread that calls it."""

    scheduler_class: ClassVar[type[Scheduler]] = Scheduler
    chunk: ClassVar[int | None] = None
    """Tokens of which the cache holds a multiple, all of it from the start; None lets the cache grow with its use."""

    def __init__(
        self,
        architecture: Architecture,
        adapters: AdapterStore,
        cache: KVCache,
        capabilities: EngineCapabilities,
        *,
        slots: int,
        prefix_cache: bool,
        grammars: Grammars | None = None,
    ) -> None:
        self.capabilities = capabilities
        self.stats: dict[str, Any] = {}
        self._architecture = architecture
        self._adapters = adapters
        self._cache = cache
        self._slots = SlotTable(slots, first=SCRATCH_SLOT + 1, prefix_cache=prefix_cache)
        self._scheduler = self.scheduler_class(
            self._slots, cache, max_batch=capabilities.max_batch, prefix_cache=prefix_cache
        )
        self._grammars = grammars
        self._ended: list[StepEvent] = []
        """Requests that were cancelled between two steps; the next one says so."""
        self._tokens_sampled = 0
        self._tokens_computed = 0
        self._refresh_stats()

    @classmethod
    def load(
        cls,
        base_model: str,
        *,
        max_batch: int = 64,
        context: int = 0,
        dtype: str = "auto",
        threads: int = 0,
        prefix_cache: bool = True,
        max_adapters: int = 4,
    ) -> Self:
        """The engine of a model folder. `context` 0 chooses; ArtError says what is wrong with folder or option."""
        if threads:
            torch.set_num_threads(threads)
        folder = Path(base_model)
        architecture = load_architecture(folder)
        placement, notes = choose_placement(dtype)
        context, max_batch, fitted = fit_memory(
            architecture.shape, placement, max_batch=max_batch, context=context
        )
        file = TensorFile.of_model(folder)
        placement = keep_plain(placement, elements=file.elements(), versions=1 + max_adapters)
        aliases = architecture.aliases
        with torch.inference_mode():
            adapters = AdapterStore(
                architecture,
                lambda name: file.read(aliases.get(name, name)),
                placement,
                max_adapters=max_adapters,
            )
            slots = slot_count(max_batch)
            cache = make_cache(
                architecture.shape, placement, slots=slots + 1, context=context, chunk=cls.chunk
            )
        grammars, remarks = read_grammars(folder, vocab_size=architecture.shape.vocab_size)
        capabilities = EngineCapabilities(
            kind="torch",
            base_model=base_model,
            vocab_size=architecture.shape.vocab_size,
            context_length=context,
            max_batch=max_batch,
            dtype="bf16" if placement.dtype == torch.bfloat16 else "fp32",
            max_adapters=max_adapters,
            device=placement.device.type,
            grammar=grammars is not None,
            notes=[*notes, *fitted, *remarks],
        )
        return cls(
            architecture,
            adapters,
            cache,
            capabilities,
            slots=slots,
            prefix_cache=prefix_cache,
            grammars=grammars,
        )

    def submit(self, key: int, request: SampleRequest) -> None:
        self._adapters.weights(request.version)
        matcher = self._grammars.matcher(request) if self._grammars and request.grammar else None
        self._scheduler.waiting.append(Choice(key, request, self.capabilities.context_length, matcher))

    def cancel(self, key: int) -> None:
        # At once, not with the next step: its slot is free, and its adapter may be unloaded now.
        if self._scheduler.remove(key) is not None:
            self._ended.append((key, Sampled([], [], finish_reason="cancelled")))

    @torch.inference_mode()
    def step(self) -> list[StepEvent] | None:
        events, self._ended = self._ended, []
        self._scheduler.admit()
        events += self._compute()
        self._refresh_stats()
        active = self._scheduler.running or self._scheduler.waiting
        return events if active or events else None

    @torch.inference_mode()
    def load_adapter(self, ref: AdapterRef) -> AdapterCheck:
        check, evicted = self._adapters.load(ref, busy=self._scheduler.busy_versions(), probe=self._logprobs)
        if evicted is not None:
            self._slots.forget(evicted)
        self._refresh_stats()
        return check

    def unload_adapter(self, version: str) -> None:
        self._adapters.unload(version, busy=self._scheduler.busy_versions())
        self._slots.forget(version)
        self._refresh_stats()

    @torch.inference_mode()
    def probe(self, version: str, token_ids: list[int]) -> list[float]:
        return self._logprobs(self._adapters.weights(version), token_ids)

    def _compute(self) -> list[StepEvent]:
        """One step of every running choice."""
        return [event for batch in self._scheduler.batches() for event in self._advance(batch)]

    def _advance(self, batch: Batch) -> list[StepEvent]:
        """One forward pass, and a token for every choice whose prompt is complete."""
        weights = self._adapters.weights(batch.version)
        hidden_T_E = self._forward(weights, batch.tokens(), batch.segments)
        for choice, segment in zip(batch.choices, batch.segments, strict=True):
            assert choice.slot is not None
            choice.slot.tokens += choice.tokens[segment.start : segment.end]
        self._tokens_computed += len(hidden_T_E)
        ends = batch.ends()
        if not ends:
            return []
        rows = torch.tensor([row for row, _ in ends], device=hidden_T_E.device)
        logits_B_V = self._architecture.logits(weights, hidden_T_E[rows])
        choices = [choice for _, choice in ends]
        draws = sample(
            logits_B_V,
            [choice.request for choice in choices],
            [choice.sampled for choice in choices],
            [choice.matcher for choice in choices],
        )
        self._tokens_sampled += len(draws)
        return [self._extend(choice, draw) for choice, draw in zip(choices, draws, strict=True)]

    def _extend(self, choice: Choice, draw: Draw) -> StepEvent:
        if not math.isfinite(draw.logprob):
            return self._overflowed(choice)
        failure = choice.matcher.error() if choice.matcher is not None else None
        if failure is not None:
            self._scheduler.remove(choice.key)
            return choice.key, failure
        first = choice.sampled == 0
        choice.tokens.append(draw.token)
        reason = choice.finish_reason()
        if reason is not None:
            self._scheduler.remove(choice.key)
        event = Sampled(
            [draw.token],
            [draw.logprob],
            top_logprobs=[draw.top] if choice.request.top_logprobs else [],
            forced=[True] if draw.forced else [],
            finish_reason=reason,
            cached_tokens=choice.cached_tokens if first else 0,
        )
        return choice.key, event

    def _overflowed(self, choice: Choice) -> StepEvent:
        self._scheduler.remove(choice.key)
        if choice.slot is not None:
            self._cache.wipe(choice.slot.index)
            choice.slot.clear()
        version = choice.request.version or "the base model"
        error = InfraError(
            "the model computed no probabilities",
            cause=f"its logits are not finite after {len(choice.tokens)} tokens under {version}",
            hint="the weights hold NaN or overflow: train with a lower learning rate, or serve an earlier step",
        )
        return choice.key, error

    def _forward(self, weights: Any, tokens: list[int], segments: list[Segment]) -> Tensor:
        self._cache.reserve(max(segment.end for segment in segments))
        plan = AttentionPlan(segments, self._cache, query_heads=self._architecture.shape.query_heads)
        return self._architecture.forward(weights, torch.tensor(tokens, device=plan.position_T.device), plan)

    def _logprobs(self, weights: Any, token_ids: list[int]) -> list[float]:
        """log p(token_ids[i] | token_ids[:i]) for i >= 1, at temperature 1."""
        if len(token_ids) > self.capabilities.context_length:
            raise PromptTooLong(
                f"the probe has {len(token_ids)} tokens",
                cause=f"the context holds {self.capabilities.context_length}",
            )
        found: list[float] = []
        for start in range(0, len(token_ids) - 1, FULL_CHUNK_TOKENS):
            part = token_ids[start : start + FULL_CHUNK_TOKENS]
            hidden_T_E = self._forward(weights, part, [Segment(SCRATCH_SLOT, start, len(part))])
            targets = token_ids[start + 1 : start + 1 + len(part)]
            for row in range(0, len(targets), CHUNK_ROWS):
                target_B = torch.tensor(targets[row : row + CHUNK_ROWS], device=hidden_T_E.device)
                logits_B_V = self._architecture.logits(weights, hidden_T_E[row : row + len(target_B)]).float()
                found += logits_B_V.log_softmax(-1).gather(1, target_B[:, None]).squeeze(1).tolist()
        if not all(math.isfinite(logprob) for logprob in found):
            self._cache.wipe(SCRATCH_SLOT)
            raise InvalidInput(
                "the weights give no probabilities",
                cause="the probe's logits are not finite",
                hint="the training run diverged",
            )
        return found

    def _refresh_stats(self) -> None:
        scheduler = self._scheduler
        self.stats = {
            "running": len(scheduler.running),
            "waiting": len(scheduler.waiting),
            "tokens_sampled": self._tokens_sampled,
            "tokens_computed": self._tokens_computed,
            "cache_hits": scheduler.cache_hits,
            "cached_tokens": scheduler.cached_tokens,
            "versions": self._adapters.versions(),
        }


def read_grammars(folder: Path, *, vocab_size: int) -> tuple[Grammars | None, list[str]]:
    """(the model's grammars, notes); None where it has no tokenizer, or one that cannot be used."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        return None, ["no tokenizer.json: response_format and forced tool calls are refused"]
    with boundary(f"reading {path}", ConfigError):
        tokenizer = Tokenizer.from_file(str(path))
    return grammars_of(tokenizer, vocab_size=vocab_size)


def make_cache(
    shape: ModelShape, placement: Placement, *, slots: int, context: int, chunk: int | None = None
) -> KVCache:
    """An empty cache for `slots` sequences of up to `context` tokens; with `chunk` all of it, in whole chunks."""
    return KVCache(
        layers=shape.layers,
        slots=slots,
        heads=shape.kv_heads,
        head_dim=shape.head_dim,
        context=context if chunk is None else -(-context // chunk) * chunk,
        dtype=placement.dtype,
        device=placement.device,
        whole=chunk is not None,
    )


def keep_plain(placement: Placement, *, elements: int, versions: int) -> Placement:
    """Have single rows use a second, plain copy of the weights where all versions' copies fit into PLAIN_SHARE."""
    fits = versions * elements * placement.dtype.itemsize <= PLAIN_SHARE * memory_bytes(placement.device)
    return replace(placement, keep_plain=placement.pack != "none" and fits)


def slot_count(max_batch: int) -> int:
    """A quarter more slots than choices: a rollout whose tool runs keeps its place in the prefix cache."""
    return max_batch + max(2, max_batch // 4)


def fit_memory(
    shape: ModelShape, placement: Placement, *, max_batch: int, context: int
) -> tuple[int, int, list[str]]:
    """(context, max_batch, notes) whose keys and values fit into CACHE_SHARE of the memory when all slots are full.

    A context that is asked for is kept, and the batch made smaller; otherwise first the context shrinks, then the
    batch. A context beyond the model's is cut to it.
    """
    per_token = 2 * shape.layers * shape.kv_heads * shape.head_dim * placement.dtype.itemsize
    tokens = int(CACHE_SHARE * memory_bytes(placement.device)) // per_token
    wanted = min(context or AUTO_CONTEXT, shape.context_length)
    notes: list[str] = []
    if context > shape.context_length:
        notes.append(f"context {wanted} instead of {context}: the model was made for no more")
    chosen = wanted
    while not context and chosen // 2 >= LEAST_CONTEXT and chosen * slot_count(max_batch) > tokens:
        chosen //= 2
    if chosen < wanted:
        notes.append(
            f"context {chosen} of {wanted}: keys and values take {per_token} bytes a token in every slot"
        )
    batch = max_batch
    while batch > 1 and chosen * slot_count(batch) > tokens:
        batch -= 1
    if batch < max_batch:
        notes.append(
            f"max_batch {batch} of {max_batch}: {chosen} tokens of {per_token} bytes in every slot fill memory"
        )
    return chosen, batch, notes
