"""Options of `train` and of openpipe-art's `_internal_config`: applied, accepted because they change nothing, or refused by name."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from art.config.train import NEUTRAL_OPTIONS, TrainConfig, require_neutral
from art.errors import ConfigError, UnsupportedOption

_SAME_AS = {"scale_rewards": "normalize_advantages"}
"""openpipe-art's other names for an option."""
_CLIENT_ONLY = {"verbose"}
"""Options of how the call is shown; they never reach the server."""


def train_config(options: Mapping[str, Any], backend: str, base: TrainConfig | None = None) -> TrainConfig:
    """The TrainConfig that `options` amount to, on top of `base`.

    UnsupportedOption for an option that exists elsewhere and would be ignored here, ConfigError for an
    unknown one or a bad value; both name the option.
    """
    values = {} if base is None else base.model_dump(exclude_unset=True)
    given: dict[str, str] = {}
    for name, value in options.items():
        field = _SAME_AS.get(name, name)
        if field in TrainConfig.model_fields:
            if field in given and values[field] != value:
                raise ConfigError(
                    f"{given[field]} and {name} mean the same and differ",
                    cause=f"{given[field]}={values[field]!r}, {name}={value!r}",
                    hint=f"set {field} alone",
                )
            values[field] = value
            given[field] = name
        elif name in NEUTRAL_OPTIONS:
            require_neutral(name, value, backend)
        elif name not in _CLIENT_ONLY:
            raise unknown_option(name)
    try:
        return TrainConfig.model_validate(values)
    except ValidationError as error:
        raise bad_values(error, backend) from error


def unknown_option(name: str) -> ConfigError:
    """The error for an option nobody knows, with the nearest one that exists."""
    known = [*TrainConfig.model_fields, *_SAME_AS, *_CLIENT_ONLY]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"the options are: {', '.join(sorted(known))}"
    return ConfigError(f"train has no option {name!r}", hint=hint)


def bad_values(error: ValidationError, backend: str) -> ConfigError:
    """A pydantic report as one error that names each option."""
    problems = [
        f"{'.'.join(str(part) for part in problem['loc'])}={problem.get('input')!r}: {problem['msg']}"
        for problem in error.errors()
    ]
    names = {str(problem["loc"][0]) for problem in error.errors() if problem["loc"]}
    kind = UnsupportedOption if names == {"loss_fn"} else ConfigError
    return kind(f"{backend} cannot train with these options", cause="; ".join(problems))


_PEFT_FIELDS = {"r": "r", "lora_alpha": "alpha", "target_modules": "target_modules", "random_state": "seed"}


def internal_config(config: Mapping[str, Any] | None) -> dict[str, Any]:
    """Fields of TrainableModel from openpipe-art's `_internal_config`; a key not applied is refused by name."""
    settings: dict[str, Any] = {}
    refused = []
    for key, value in (config or {}).items():
        if key == "peft_args":
            refused += [f"peft_args.{name}" for name in value if name not in _PEFT_FIELDS]
            settings["lora"] = {_PEFT_FIELDS[name]: value[name] for name in value if name in _PEFT_FIELDS}
        elif key == "chat_template":
            settings["chat_template"] = value
        else:
            refused.append(key)
    if refused:
        raise UnsupportedOption(
            f"_internal_config does not support {', '.join(refused)}",
            cause="the embedded engine and trainer have no such setting, so it would be ignored",
            hint=f"supported are chat_template and peft_args with {', '.join(_PEFT_FIELDS)}",
        )
    return settings


def require_json(config: object) -> None:
    """ConfigError when a model's own config (plain data or a pydantic model) is no JSON."""
    data = config.model_dump() if isinstance(config, BaseModel) else config
    try:
        json.dumps(data)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            "the model's config cannot be stored",
            cause=f"it is no JSON: {error}",
            hint="use plain values or a pydantic model of them",
        ) from error
