"""What a step may take of the machine's memory."""

from __future__ import annotations

import torch

from art.base_model.memory import memory_bytes
from art.config.optimizer import OptimizerConfig

MAX_ROW_TOKENS = 4096
MIN_ROW_TOKENS = 256
ROW_MEMORY_SHARE = 8
"""One row's activations may take this fraction (1/8) of the machine's memory."""


def row_tokens(activation_bytes: float, memory: float) -> int:
    """Tokens of one row on a device with `memory` bytes, when each keeps `activation_bytes` until its backward pass."""
    return max(MIN_ROW_TOKENS, min(MAX_ROW_TOKENS, int(memory / ROW_MEMORY_SHARE / activation_bytes)))


def choose_row_tokens(
    config: OptimizerConfig, *, activation_bytes: float, device: torch.device
) -> tuple[int, str]:
    """Tokens of one row, and why. Taken from the machine's whole memory and not from what is free, so that
    a resumed run cuts its batches as the uninterrupted one."""
    if config.packed_sequence_length is not None:
        return config.packed_sequence_length, f"rows of {config.packed_sequence_length} tokens: as asked"
    tokens = row_tokens(activation_bytes, memory_bytes(device))
    return tokens, f"rows of {tokens} tokens: about {activation_bytes / 1e6:.2g} MB of activations each"
