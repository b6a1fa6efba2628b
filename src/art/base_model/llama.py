"""Llama and its near relatives: what their config.json says.

Axes: D features of a head.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from art.errors import ConfigError

NAMES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
"""Architectures that differ in biases and head norms alone."""
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
LINEARS = (
    *(f"self_attn.{part}_proj" for part in "qkvo"),
    *(f"mlp.{part}_proj" for part in ("gate", "up", "down")),
)
"""The matrices of a layer, in the order of the model's modules."""

DEFAULT_CONTEXT = 2048
"""transformers' own default of max_position_embeddings."""


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """Sizes and constants."""

    vocab_size: int
    hidden_size: int
    mlp_size: int
    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    context_length: int
    eps: float
    tied: bool
    """The head is the embedding."""
    frequency_D2: Tensor
    """[D / 2], radians per position."""

    @classmethod
    def read(cls, config: dict[str, Any]) -> LlamaConfig:
        """From config.json. ConfigError when it asks for what is not implemented."""
        _refuse(config)
        heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
        head_dim = int(config.get("head_dim") or hidden // heads)
        return cls(
            vocab_size=int(config["vocab_size"]),
            hidden_size=hidden,
            mlp_size=int(config["intermediate_size"]),
            layers=int(config["num_hidden_layers"]),
            query_heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=head_dim,
            context_length=int(config.get("max_position_embeddings") or DEFAULT_CONTEXT),
            eps=float(config.get("rms_norm_eps", 1e-6)),
            tied=bool(config.get("tie_word_embeddings", False)),
            frequency_D2=rotary_frequencies(config, head_dim),
        )

    def linears(self) -> Iterator[str]:
        """Names of all layers' matrices, without `.weight`."""
        for layer in range(self.layers):
            for name in LINEARS:
                yield f"model.layers.{layer}.{name}"


def rotary_frequencies(config: dict[str, Any], head_dim: int) -> Tensor:
    """Radians per position, [D / 2] (RoFormer, arXiv:2104.09864), with the config's scaling.

    `linear` divides by the factor (arXiv:2306.15595); `llama3` leaves short waves, divides long ones, and
    interpolates between (transformers `modeling_rope_utils`). ConfigError for other kinds.
    """
    rope = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    theta = float(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    frequency = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim)
    if kind == "default":
        return frequency
    if kind == "linear":
        return frequency / float(rope["factor"])
    if kind != "llama3":
        raise ConfigError(
            f"rotary scaling {kind!r} is not implemented", hint="supported: default, linear, llama3"
        )
    factor, original = float(rope["factor"]), float(rope["original_max_position_embeddings"])
    low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
    wavelength = 2 * math.pi / frequency
    smooth = (original / wavelength - low) / (high - low)
    between = (1 - smooth) * frequency / factor + smooth * frequency
    scaled = torch.where(wavelength > original / low, frequency / factor, frequency)
    medium = (wavelength <= original / low) & (wavelength >= original / high)
    return torch.where(medium, between, scaled)


def _refuse(config: dict[str, Any]) -> None:
    """ConfigError for settings that this code would silently ignore."""
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise ConfigError(f"activation {activation!r} is not implemented", hint="supported: silu")
    window = config.get("sliding_window")
    used = config.get("use_sliding_window", config.get("model_type") == "mistral")
    if window and used and window < int(config.get("max_position_embeddings") or DEFAULT_CONTEXT):
        raise ConfigError("sliding-window attention is not implemented", cause=f"sliding_window is {window}")
    if config.get("quantization_config"):
        raise ConfigError("quantised weights are not supported", hint="give the model in bf16, fp16 or fp32")
