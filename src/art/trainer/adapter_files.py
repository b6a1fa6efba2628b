"""Adapters that others wrote: PEFT's files, read and compared with the shape that the model has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from art.config.model import LoraConfig
from art.errors import ConfigError, InvalidInput, NotFound
from art.trainer.checkpoint import ADAPTER, ADAPTER_CONFIG

UNLIKE_OURS: dict[str, Any] = {
    "peft_type": "LORA",
    "bias": "none",
    "rank_pattern": {},
    "alpha_pattern": {},
    "fan_in_fan_out": False,
    "lora_bias": False,
    "modules_to_save": None,
    "layers_to_transform": None,
    "layer_replication": None,
    "trainable_token_indices": None,
    "target_parameters": None,
}
"""Settings of adapter_config.json that change what an adapter computes, with the only value that is trained here."""


def read_adapter(folder: Path, lora: LoraConfig, *, option: str) -> dict[str, Tensor]:
    """The tensors of an existing PEFT adapter, whose shape must be `lora`'s. `option` is what named the folder.

    NotFound, InvalidInput or ConfigError where it is missing, damaged, or of another kind or shape.
    """
    try:
        config = json.loads((folder / ADAPTER_CONFIG).read_text())
        tensors = dict(load_file(folder / ADAPTER))
        found = LoraConfig(
            r=config["r"],
            alpha=config["lora_alpha"],
            target_modules=_names(config["target_modules"]),
            seed=lora.seed,
            rslora=bool(config.get("use_rslora")),
            dora=bool(config.get("use_dora")),
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
    _require_plain(folder, config)
    wanted = lora.model_copy(update={"target_modules": tuple(sorted(lora.target_modules))})
    differing = [name for name in LoraConfig.model_fields if getattr(found, name) != getattr(wanted, name)]
    if differing:
        raise ConfigError(
            f"The adapter in {folder} has another shape than the model's LoraConfig",
            cause="; ".join(
                f"{name} is {getattr(found, name)!r} there and {getattr(wanted, name)!r} here"
                for name in differing
            ),
            hint="register the model with the adapter's values",
        )
    return tensors


def _names(modules: str | list[str]) -> tuple[str, ...]:
    """Sorted; a regular expression, which PEFT takes too, by itself."""
    return (modules,) if isinstance(modules, str) else tuple(sorted(modules))


def _require_plain(folder: Path, config: dict[str, Any]) -> None:
    """ConfigError naming a setting that would be lost."""
    for name, ours in UNLIKE_OURS.items():
        value = config.get(name, ours)
        if value != ours and (value or ours):  # None, {} and [] all say that there is none
            raise ConfigError(
                f"The adapter in {folder} cannot be trained",
                cause=f"its {name} is {value!r}, which would be lost",
                hint="an adapter made with r, lora_alpha, target_modules, use_rslora and use_dora alone can be",
            )
