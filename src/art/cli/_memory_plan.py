"""What serving and training a base model takes of the machine's memory, before any of it is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from art.base_model.files import read_json
from art.base_model.llama import LlamaConfig
from art.base_model.memory import memory_bytes
from art.config.model import LoraConfig
from art.config.train import TrainConfig
from art.engine.torch.architecture import load_architecture
from art.engine.torch.engine import fit_memory, slot_count
from art.engine.torch.weights import choose_placement
from art.trainer.llama import activation_numbers, layer_numbers, merges
from art.trainer.memory import MIN_ROW_TOKENS, row_tokens
from art.types.doctor import Check
from art.types.jobs import ResolvedBaseModel

MAX_BATCH, MAX_ADAPTERS = 64, 4
"""The engine's defaults."""
PROGRAMS = 1.5e9
"""Bytes that the three processes take with nothing loaded: torch's libraries, twice, and the gateway."""
GB = 1e9


@dataclass(frozen=True)
class Plan:
    """Bytes, by what they are for. `least` must fit; `most` is taken when everything is full."""

    memory: float
    least: dict[str, float]
    more: dict[str, float]
    """Beyond `least`, as far as use makes it grow."""

    def check(self) -> Check:
        """Whether it fits, with the numbers."""
        least, most = sum(self.least.values()), sum(self.least.values()) + sum(self.more.values())
        parts = ", ".join(f"{name} {size / GB:.2g}" for name, size in {**self.least, **self.more}.items())
        detail = (
            f"at least {least / GB:.2g} and at most {most / GB:.2g} of {self.memory / GB:.3g} GB ({parts})"
        )
        figures = {"memory": self.memory, "least": self.least, "more": self.more}
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


def plan_memory(base: ResolvedBaseModel, lora: LoraConfig) -> Plan:
    """ConfigError for a model that the engine cannot serve."""
    folder = Path(base.path)
    shape = load_architecture(folder).shape
    placement, _ = choose_placement("auto")
    config = LlamaConfig.read(read_json(folder / "config.json"))
    memory, size = memory_bytes(placement.device), placement.dtype.itemsize
    context, batch, _ = fit_memory(shape, placement, max_batch=MAX_BATCH, context=0)
    slots = 2 * shape.layers * shape.kv_heads * shape.head_dim * size * context * (slot_count(batch) + 1)
    layers = layer_numbers(config) * size
    # Weights, gradient and Adam's two moments, in float32.
    adapter = 4 * 4 * adapter_numbers(config, lora)
    activations = activation_numbers(config) * (4 if placement.dtype == torch.float32 else 6)
    row = row_tokens(activations, memory)
    chunk = 2 * 4 * config.vocab_size * TrainConfig().logprob_calculation_chunk_size
    twice = layers if merges(config, placement.dtype, placement.device) else 0
    return Plan(
        memory=memory,
        least={
            "programs": PROGRAMS,
            "engine weights": base.parameters * size,
            "one adapter served": layers,
            "trainer weights": base.parameters * size + twice,
            "adapter and optimizer": adapter,
            "a short row": MIN_ROW_TOKENS * activations + chunk,
        },
        more={
            f"{MAX_ADAPTERS - 1} more adapters served": (MAX_ADAPTERS - 1) * layers,
            f"keys and values of {slot_count(batch)} sequences of {context} tokens": slots,
            f"a row of {row} tokens": (row - MIN_ROW_TOKENS) * activations,
        },
    )


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
