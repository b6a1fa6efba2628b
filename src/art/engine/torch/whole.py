"""Versions that are whole models: all weights were trained, so nothing is merged."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from art.base_model.files import Read, TensorFile
from art.engine.protocol import AdapterRef
from art.engine.torch.architecture import Architecture
from art.engine.torch.weights import Placement
from art.errors import InvalidInput


def is_whole(folder: Path) -> bool:
    """Whether a checkpoint holds a model and not an adapter."""
    return (folder / "model.safetensors").is_file() and not (folder / "adapter_config.json").is_file()


@dataclass(slots=True)
class WholeModel:
    """A version's weights, placed."""

    weights: Any
    matched: int
    unmatched: list[str] = field(default_factory=list)

    @classmethod
    def load(
        cls, ref: AdapterRef, architecture: Architecture, base: Read, placement: Placement
    ) -> WholeModel:
        """Place the weights of `ref`. InvalidInput when they are not those of a model like `base`."""
        used: set[str] = set()
        with TensorFile.of_model(Path(ref.path)) as file:

            def read(name: str) -> Tensor:
                stored = architecture.aliases.get(name, name)
                # Cloned: the file may be deleted by retention while its mapped pages are still wanted.
                tensor = file.read(stored).clone()
                if tensor.shape != (wanted := base(name).shape):
                    raise InvalidInput(
                        f"the model in {ref.path} is not a version of the base model",
                        cause=f"{stored} is {tuple(tensor.shape)}, the base model's {tuple(wanted)}",
                        hint="it was trained on another base model",
                    )
                used.add(stored)
                return tensor

            try:
                weights = architecture.build(read, placement)
            except KeyError as error:
                raise InvalidInput(
                    f"the model in {ref.path} is not a version of the base model",
                    cause=f"it has no tensor {error.args[0]}",
                    hint="it was trained on another base model",
                ) from error
            return cls(weights, len(used), sorted(set(file.names()) - used))
