"""A body all of whose weights are trained: transformers' model in float32, without an adapter.

Axis legend: S tokens of a trie, E hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AutoModelForCausalLM

from art.base_model.files import TensorFile
from art.base_model.memory import memory_bytes
from art.errors import ConfigError, boundary
from art.trainer.attention import Plan
from art.trainer.memory import Taken, require_memory
from art.trainer.peft_body import TREE, PeftBody, Switch, tree_interface

DISK_BYTES = 12
"""Of a step's files a weight takes at most: itself and two moments, in float32."""


class FullBody(PeftBody):
    """A Body (see trainer/body.py). Its weights are float32; in bfloat16 they are rounded for each product."""

    def __init__(self, model: Any, folder: Path, dtype: torch.dtype) -> None:
        self._model = model
        self._folder = folder
        self._dtype = dtype
        self.device = next(model.parameters()).device
        self.parameters = dict(model.named_parameters())
        self.layers = 0
        self._switch = Switch()

    @classmethod
    def load_whole(cls, base: Path, *, dtype: torch.dtype) -> FullBody:
        """ConfigError when transformers cannot load it, or training it does not fit into the machine's memory."""
        AttentionInterface.register(TREE, tree_interface)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        with TensorFile.of_model(base) as file:
            require_memory(base.name, numbers=file.elements(), memory=memory_bytes(device))
        with boundary(f"loading {base}", ConfigError):
            model = AutoModelForCausalLM.from_pretrained(
                base,
                dtype=torch.float32,
                attn_implementation=TREE,
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=False,
            )
        model.to(device)
        model.eval()
        return cls(model, base, dtype)

    @property
    def _causal_lm(self) -> Any:
        return self._model

    @property
    def taken(self) -> Taken:
        """What the machine holds with this model, before any row; the engine serves a whole copy of each step."""
        numbers = sum(parameter.numel() for parameter in self.parameters.values())
        return Taken.of(weights=4 * numbers, layers=4 * numbers, merged=False, trainable=numbers)

    def hidden(self, token_S: Tensor, depth_S: Tensor, blocks: Plan | None) -> Tensor:
        """[S, E]."""
        rounded = self._dtype == torch.bfloat16
        with torch.autocast(self.device.type, dtype=torch.bfloat16) if rounded else nullcontext():
            return super().hidden(token_S, depth_S, blocks).float()

    @contextmanager
    def adapter_off(self) -> Iterator[None]:
        """The base model itself, read from its files again. Nothing computed before may still want a gradient."""
        trained = {name: parameter.detach().clone() for name, parameter in self.parameters.items()}
        with TensorFile.of_model(self._folder) as file:
            self._fill({name: file.read(name) for name in self.parameters})
        try:
            yield
        finally:
            self._fill(trained)

    @torch.no_grad()
    def _fill(self, values: Mapping[str, Tensor]) -> None:
        for name, parameter in self.parameters.items():
            parameter.copy_(values[name])

    def told(self) -> str:
        """For people: what this is, and what a step of it takes."""
        size = sum(parameter.numel() for parameter in self.parameters.values())
        return (
            "all weights are trained, by the forward pass of transformers; "
            f"each step takes up to {DISK_BYTES * size / 1e6:.3g} MB on disk"
        )
