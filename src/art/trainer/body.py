"""What a policy computes with: a base model up to its last hidden states, with a LoRA adapter attached.

Axis legend: S tokens of a trie, E hidden size, V vocabulary.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from art.config.model import LoraConfig
from art.errors import ConfigError
from art.trainer.attention import Plan
from art.trainer.llama import LlamaBody
from art.trainer.memory import Taken
from art.trainer.quantized_model import kind_of

log = logging.getLogger(__name__)


class Body(Protocol):
    """Frozen base weights and a trainable adapter, or weights that are all trainable."""

    device: torch.device
    parameters: dict[str, torch.nn.Parameter]
    """What is trained, in float32: the adapter's matrices by PEFT's names, or all weights by transformers'."""
    layers: int
    """How many can be computed again in the backward pass; 0 where none can."""
    checkpointing: bool
    """Whether they are, so that they keep nothing but their inputs until then. May be set where there are layers."""

    @property
    def head(self) -> Tensor:
        """[V, E], frozen."""
        ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def local_attention(self) -> str | None:
        """Why a token does not see all its ancestors, or None."""
        ...

    @property
    def taken(self) -> Taken:
        """What the machine holds with this model, before any row."""
        ...

    def hidden(self, token_S: Tensor, depth_S: Tensor, blocks: Plan | None) -> Tensor:
        """[S, E]: the last hidden states, normed. `blocks` None: one sequence, by a plain attention."""
        ...

    def adapter_off(self) -> AbstractContextManager[None]: ...


def load_body(base: Path, *, lora: LoraConfig | None, dtype: torch.dtype) -> tuple[Body, str]:
    """The body for the model in `base` with a fresh adapter, and a note on why it is this one.

    Our own where it knows the model, else transformers and PEFT; where all weights are trained (`lora` None), transformers.
    ConfigError when none can load it.
    """
    if lora is None:
        from art.trainer.full_body import FullBody

        whole = FullBody.load_whole(base, dtype=dtype)
        return whole, whole.told()
    try:
        body, note = (
            LlamaBody.load(base, lora=lora, dtype=dtype),
            "the forward pass is our own (trainer/llama.py)",
        )
        packed = kind_of(base)
        return body, note if packed is None else f"{note}, on base weights packed as {packed}"
    except ConfigError as unknown:
        from art.trainer.peft_body import PeftBody

        reason = f"the forward pass is that of transformers and PEFT: {unknown.args[0]}"
        return PeftBody.load(base, lora=lora, dtype=dtype), reason
