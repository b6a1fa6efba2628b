"""A base model's tensors and settings on disk."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from art.errors import InvalidInput, NotFound

Read = Callable[[str], Tensor]
"""A parameter by its name in the checkpoint. KeyError when there is none."""


class TensorFile:
    """Named tensors in one or several safetensors files, memory-mapped: reading costs page cache, not memory."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._files: dict[str, Any] = {}
        self._open: list[Any] = []
        for path in paths:
            try:
                file = safe_open(str(path), framework="pt")
            except (SafetensorError, OSError) as error:
                raise InvalidInput(
                    f"{path} cannot be read", cause=str(error), hint="copy the file again"
                ) from error
            self._open.append(file)
            self._files.update(dict.fromkeys(file.keys(), file))

    @classmethod
    def of_model(cls, folder: Path) -> TensorFile:
        """The weights of a model folder: model.safetensors, or the files its index names."""
        index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
        if index.is_file():
            names = sorted(set(read_json(index)["weight_map"].values()))
            return cls(folder / name for name in names)
        if single.is_file():
            return cls([single])
        raise NotFound(
            f"{folder} has no model.safetensors",
            hint="give a folder with safetensors weights, not .bin or .gguf",
        )

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.clear()
        self._open.clear()

    def names(self) -> list[str]:
        return list(self._files)

    def shape(self, name: str) -> list[int]:
        """A tensor's shape, without reading it."""
        return list(self._files[name].get_slice(name).get_shape())

    def elements(self) -> int:
        """Numbers in all tensors."""
        return sum(prod(self.shape(name)) for name in self.names())

    def read(self, name: str) -> Tensor:
        """A tensor in the file's own dtype. KeyError when there is none, InvalidInput when the file is damaged."""
        try:
            return self._files[name].get_tensor(name)
        except SafetensorError as error:
            raise InvalidInput(f"tensor {name} cannot be read", cause=str(error)) from error


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. NotFound or InvalidInput say what is wrong with the file."""
    try:
        value = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise NotFound(f"{path} does not exist") from error
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path} cannot be read", cause=str(error)) from error
    if not isinstance(value, dict):
        raise InvalidInput(f"{path} is not a JSON object")
    return value
