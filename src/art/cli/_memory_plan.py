"""What serving and training a base model takes of the machine's memory, before any of it is loaded."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from art.base_model.files import read_json
from art.base_model.llama import LlamaConfig
from art.base_model.memory import memory_bytes
from art.config.model import LoraConfig, ModelConfig
from art.config.train import TrainConfig
from art.engine.torch.architecture import load_architecture
from art.engine.torch.engine import fit_memory, slot_count
from art.engine.torch.weights import Placement, choose_placement
from art.trainer.llama import estimated_footprint, layer_numbers, merges
from art.trainer.memory import (
    MIN_ROW_TOKENS,
    PROGRAMS,
    STATE_BYTES,
    Footprint,
    Taken,
    gigabytes,
    require_memory,
    row_share,
    row_tokens,
)
from art.trainer.quantized import PACKED_BYTES
from art.types.doctor import Check
from art.types.jobs import ResolvedBaseModel

MAX_BATCH, MAX_ADAPTERS = 64, 4
"""The engine's defaults."""
GB = 1e9


@dataclass(frozen=True)
class Rows:
    """What the trainer chooses where its options leave it the choice (trainer/memory.py)."""

    tokens: int
    """Of a row at most."""
    share: float
    """Bytes that a row may keep."""
    plain_up_to: int
    """Longest sequence, in tokens, of a job that computes its layers once; a longer one is checkpointed."""
    checkpointed_tokens: int
    """Of a row at most, with gradient checkpointing; 0 where the layers cannot be computed again."""
    context: int
    """Longest sequence that the model is made for."""

    @classmethod
    def of(cls, footprint: Footprint, share: float, *, context: int) -> Rows:
        """For a model whose tokens keep so much."""
        return cls(
            tokens=row_tokens(footprint.plain, share),
            share=share,
            plain_up_to=int(share / footprint.plain),
            checkpointed_tokens=0
            if footprint.checkpointed is None
            else row_tokens(footprint.checkpointed, share),
            context=context,
        )

    def told(self) -> str:
        """For people."""
        said = f"the trainer computes rows of {self.tokens} tokens, which may keep {gigabytes(self.share)}"
        if self.plain_up_to >= self.context:
            return f"{said}; no sequence needs gradient checkpointing"
        if not self.checkpointed_tokens:
            return f"{said}; a longer sequence than {self.plain_up_to} tokens may run out of memory"
        return (
            f"{said}; where a sequence is longer than {self.plain_up_to} tokens, gradient checkpointing and rows of "
            f"{self.checkpointed_tokens}"
        )


@dataclass(frozen=True)
class Plan:
    """Bytes, by what they are for. `least` must fit; `most` is taken when everything is full."""

    memory: float
    least: dict[str, float]
    more: dict[str, float]
    """Beyond `least`, as far as use makes it grow."""
    rows: Rows | None = None
    """How the trainer will cut its batches."""

    def check(self) -> Check:
        """Whether it fits, with the numbers."""
        least, most = sum(self.least.values()), sum(self.least.values()) + sum(self.more.values())
        parts = ", ".join(f"{name} {size / GB:.2g}" for name, size in {**self.least, **self.more}.items())
        detail = (
            f"at least {least / GB:.2g} and at most {most / GB:.2g} of {self.memory / GB:.3g} GB ({parts})"
        )
        figures: dict[str, Any] = {"memory": self.memory, "least": self.least, "more": self.more}
        if self.rows is not None:
            detail += f"; {self.rows.told()}"
            figures["rows"] = asdict(self.rows)
        if least > self.memory:
            hint = "take a smaller base model or a machine with more memory"
            return Check(
                name="memory", status="failed", detail=f"does not fit: {detail}", hint=hint, figures=figures
            )
        if most > self.memory:
            hint = "bound it with ART_ENGINE__MAX_BATCH, ART_ENGINE__CONTEXT or ART_ENGINE__MAX_ADAPTERS"
            return Check(
                name="memory",
                status="note",
                detail=f"fits until all of it is used: {detail}",
                hint=hint,
                figures=figures,
            )
        return Check(name="memory", status="ok", detail=f"fits: {detail}", figures=figures)


def plan_memory(base: ResolvedBaseModel, config: ModelConfig) -> Plan:
    """ConfigError for a model that the engine cannot serve, or whose weights cannot all be trained in this memory."""
    folder = Path(base.path)
    shape = load_architecture(folder).shape
    placement, _ = choose_placement("auto")
    model = LlamaConfig.read(read_json(folder / "config.json"))
    memory, size = memory_bytes(placement.device), placement.dtype.itemsize
    context, batch, _ = fit_memory(shape, placement, max_batch=MAX_BATCH, context=0)
    slots = 2 * shape.layers * shape.kv_heads * shape.head_dim * size * context * (slot_count(batch) + 1)
    load = Load.of(base, model, config, placement)
    rows = Rows.of(load.footprint, row_share(memory, load.taken), context=base.context_length)
    short = MIN_ROW_TOKENS * load.footprint.each(checkpointing=rows.plain_up_to < MIN_ROW_TOKENS)
    chunk = 2 * 4 * model.vocab_size * TrainConfig().logprob_calculation_chunk_size
    served = "adapter" if config.adapter is not None else "step"
    return Plan(
        memory=memory,
        least={
            "programs": PROGRAMS,
            "engine weights": base.parameters * size,
            f"one {served} served": load.version,
            "trainer weights": load.trainer,
            load.state_name: STATE_BYTES * load.trainable,
            "a short row": short + chunk,
        },
        more={
            f"{MAX_ADAPTERS - 1} more {served}s served": (MAX_ADAPTERS - 1) * load.version,
            f"keys and values of {slot_count(batch)} sequences of {context} tokens": slots,
            f"a row of {rows.tokens} tokens": max(0.0, rows.tokens * load.footprint.plain - short),
        },
        rows=rows,
    )


@dataclass(frozen=True)
class Load:
    """What depends on how a model is trained."""

    version: float
    """Bytes of a served step in the engine."""
    trainer: float
    """Bytes of the trainer's weights."""
    trainable: int
    """How many numbers are trained."""
    state_name: str
    taken: Taken
    footprint: Footprint

    @classmethod
    def of(
        cls, base: ResolvedBaseModel, model: LlamaConfig, config: ModelConfig, placement: Placement
    ) -> Load:
        """For a base model that is resolved with the config's quantization. ConfigError as plan_memory."""
        dtype, device = placement.dtype, placement.device
        weights, layers = base.parameters * dtype.itemsize, layer_numbers(model) * dtype.itemsize
        if config.adapter is None:
            numbers = base.parameters
            require_memory(base.name, numbers=numbers, memory=memory_bytes(device))
            taken = Taken.of(weights=4 * numbers, layers=4 * numbers, merged=False, trainable=numbers)
            plain = estimated_footprint(model, torch.float32, merged=False).plain
            state = "all weights and optimizer"
            return cls(
                weights, 4 * numbers, numbers, state, taken, Footprint.of(plain=plain, between=0, layers=0)
            )
        trainable = adapter_numbers(model, config.adapter)
        packed = layer_numbers(model) * PACKED_BYTES[config.quantization] if config.quantization else None
        merged = packed is None and merges(model, dtype, device)
        taken = Taken.of(weights=weights, layers=layers, merged=merged, trainable=trainable, packed=packed)
        held = weights + (layers if merged else 0) if packed is None else weights - layers + packed
        footprint = estimated_footprint(model, dtype, merged=merged, dora=config.adapter.dora)
        return cls(layers, held, trainable, "adapter and optimizer", taken, footprint)


def adapter_numbers(config: LlamaConfig, lora: LoraConfig) -> int:
    """Trainable numbers of an adapter: r * (inputs + outputs) for every matrix it is on, and its outputs with DoRA."""
    hidden, mlp = config.hidden_size, config.mlp_size
    query, key = config.query_heads * config.head_dim, config.kv_heads * config.head_dim
    sides = {  # (inputs, outputs)
        "q_proj": (hidden, query),
        "k_proj": (hidden, key),
        "v_proj": (hidden, key),
        "o_proj": (query, hidden),
        "gate_proj": (hidden, mlp),
        "up_proj": (hidden, mlp),
        "down_proj": (mlp, hidden),
    }
    on = [sides[name] for name in lora.target_modules if name in sides]
    numbers = lora.r * sum(map(sum, on)) + (sum(outputs for _, outputs in on) if lora.dora else 0)
    return config.layers * numbers
