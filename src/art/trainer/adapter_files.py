"""Adapters that others wrote: PEFT's files, read and compared with the shape that the model has."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from art.config.model import LoraConfig
from art.errors import ConfigError, InvalidInput, NotFound
from art.trainer.checkpoint import ADAPTER, ADAPTER_CONFIG


def read_adapter(folder: Path, lora: LoraConfig, *, option: str) -> dict[str, Tensor]:
    """The tensors of an existing PEFT adapter, whose shape must be `lora`'s. `option` is what named the folder."""
    try:
        config = json.loads((folder / ADAPTER_CONFIG).read_text())
        tensors = dict(load_file(folder / ADAPTER))
        found = LoraConfig(
            r=config["r"],
            alpha=config["lora_alpha"],
            target_modules=tuple(sorted(config["target_modules"])),
            seed=lora.seed,
        )
    except FileNotFoundError as error:
        raise NotFound(
            f"There is no PEFT adapter in {folder}",
            cause=f"{error.filename} does not exist",
            hint=f"an adapter is {ADAPTER_CONFIG} and {ADAPTER}; pickled weights are not read",
        ) from error
    except OSError as error:  # a name that is too long, a folder that may not be read
        raise NotFound(
            "The PEFT adapter cannot be read",
            cause=str(error),
            hint=f"check the folder given as {option}",
        ) from error
    except (ValueError, KeyError, TypeError, SafetensorError) as error:
        raise InvalidInput(
            f"The adapter in {folder} is damaged",
            cause=f"{type(error).__name__}: {error}",
            hint="save it again with save_pretrained(folder)",
        ) from error
    if found != lora.model_copy(update={"target_modules": tuple(sorted(lora.target_modules))}):
        raise ConfigError(
            f"The adapter in {folder} has another shape than the model's LoraConfig",
            cause=f"r, alpha and target_modules are {found.r}, {found.alpha:g}, {list(found.target_modules)} there "
            f"and {lora.r}, {lora.alpha:g}, {sorted(lora.target_modules)} here",
            hint="register the model with the adapter's values",
        )
    return tensors
