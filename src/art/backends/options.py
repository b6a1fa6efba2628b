"""Options of `train` and of openpipe-art's `_internal_config`: applied, accepted because they change nothing, or refused by name."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from art.config.model import LoraConfig, ModelConfig
from art.config.train import (
    NEUTRAL_OPTIONS,
    TrainConfig,
    loss_of_ppo,
    nearest,
    require_loss,
    require_neutral,
)
from art.errors import ConfigError, UnsupportedOption

M = TypeVar("M", bound=BaseModel)

_SAME_AS = {"scale_rewards": "normalize_advantages"}
"""openpipe-art's other names for an option."""
_CLIENT_ONLY = {"verbose"}
"""Options of how the call is shown; they never reach the server."""


def train_config(options: Mapping[str, Any], backend: str, base: TrainConfig | None = None) -> TrainConfig:
    """The TrainConfig that `options` amount to, on top of `base`.

    `options["_config"]` may hold a mapping of more options, as programs for openpipe-art pass them.
    UnsupportedOption for an option that exists elsewhere and would be ignored here, ConfigError for an
    unknown one or a bad value; both name the option.
    """
    if base is not None and not isinstance(base, TrainConfig):
        raise ConfigError(
            f"config is a {type(base).__name__}, not an art.TrainConfig",
            hint="art.TrainConfig(learning_rate=...), or options by keyword: train(groups, learning_rate=...)",
        )
    values = {} if base is None else base.model_dump(exclude_unset=True)
    given: dict[str, str] = {}
    for name, value in _spread(options):
        field = _SAME_AS.get(name, name)
        if name == "ppo":
            field, value = "loss_fn", loss_of_ppo(value)
        if field in TrainConfig.model_fields:
            if field in given and values[field] != value:
                twice = f"{name} is given twice, and differs"
                raise ConfigError(
                    twice if given[field] == name else f"{given[field]} and {name} mean the same and differ",
                    cause=f"{given[field]}={values[field]!r}, {name}={value!r}",
                    hint=f"set {field} alone",
                )
            if field == "loss_fn":
                require_loss(value, backend)
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
    known = [*TrainConfig.model_fields, *_SAME_AS, "ppo", *_CLIENT_ONLY]
    return ConfigError(f"train has no option {name!r}", hint=nearest(name, known))


def _spread(options: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The options by keyword, then those of `_config`."""
    yield from ((name, value) for name, value in options.items() if name != "_config")
    more = options.get("_config")
    if more is not None and not isinstance(more, Mapping):
        raise ConfigError(
            f"_config is a {type(more).__name__}, not a mapping of options",
            hint='train(groups, _config={"learning_rate": 1e-5}), or config=art.TrainConfig(...)',
        )
    yield from (more or {}).items()


def bad_values(error: ValidationError, backend: str) -> ConfigError:
    """A pydantic report as one error that names each option."""
    problems = [
        f"{'.'.join(str(part) for part in problem['loc'])}={problem.get('input')!r}: {problem['msg']}"
        for problem in error.errors()
    ]
    return ConfigError(f"{backend} cannot train with these options", cause="; ".join(problems))


_PEFT_FIELDS = {
    "r": "r",
    "lora_alpha": "alpha",
    "target_modules": "target_modules",
    "random_state": "seed",
    "use_rslora": "rslora",
    "use_dora": "dora",
}
_PEFT_NEUTRAL: dict[str, object] = {"lora_dropout": 0, "bias": "none"}
"""Fields of peft_args with the value that changes nothing."""
_INIT_ARGS = {"load_in_4bit": "nf4", "load_in_8bit": "int8"}
"""Fields of init_args that are applied: quantizations."""
_OPTION_OF = {
    "learning_rate": "learning_rate",
    "lr_scheduler_type": "learning_rate_schedule",
    "warmup_steps": "warmup_updates",
    "optim": "optimizer",
    "adam_beta1": "adam_beta1",
    "adam_beta2": "adam_beta2",
    "adam_epsilon": "adam_epsilon",
    "weight_decay": "weight_decay",
    "max_grad_norm": "max_grad_norm",
}
"""Fields of trainer_args, which fixes them for a model, and the option of a train call that does the same."""


def internal_config(config: Mapping[str, Any] | None) -> dict[str, Any]:
    """Fields of TrainableModel from openpipe-art's `_internal_config`; a key not applied is refused by name."""
    settings: dict[str, Any] = {}
    refused: list[str] = []
    options: list[str] = []
    for key, value in (config or {}).items():
        if key == "peft_args":
            peft = {
                name: given
                for name, given in value.items()
                if name not in _PEFT_NEUTRAL or given != _PEFT_NEUTRAL[name]
            }
            refused += [f"peft_args.{name}" for name in peft if name not in _PEFT_FIELDS]
            fields = {_PEFT_FIELDS[name]: peft[name] for name in peft if name in _PEFT_FIELDS}
            settings["lora"] = _checked(LoraConfig, fields, "peft_args cannot be used")
        elif key == "init_args":
            for name, given in (value or {}).items():
                if name not in _INIT_ARGS:
                    refused.append(f"init_args.{name}")
                elif given:
                    settings["quantization"] = _INIT_ARGS[name]
        elif key == "trainer_args":
            refused += [f"trainer_args.{name}" for name in value or ()]
            options = [_OPTION_OF[name] for name in value or () if name in _OPTION_OF]
        elif key == "chat_template":
            settings["chat_template"] = value
        else:
            refused.append(key)
    if refused:
        as_options = f"; give {', '.join(options)} to each train call" if options else ""
        raise UnsupportedOption(
            f"_internal_config does not support {', '.join(refused)}",
            cause="the embedded engine and trainer have no such setting, so it would be ignored",
            hint=f"supported are chat_template, init_args with {', '.join(_INIT_ARGS)}, and peft_args with "
            f"{', '.join(_PEFT_FIELDS)}{as_options}",
        )
    return settings


def model_config(name: str, values: Mapping[str, Any]) -> ModelConfig:
    """What the server fixes at registration of the model `name`; ConfigError names each impossible value."""
    return _checked(ModelConfig, values, f"{name} cannot be registered")


def _checked(kind: type[M], values: Mapping[str, Any], problem: str) -> M:
    try:
        return kind.model_validate(dict(values))
    except ValidationError as error:
        problems = "; ".join(f"{fault['loc'][0]}: {fault['msg']}" for fault in error.errors())
        raise ConfigError(problem, cause=problems) from error


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


def one_name(name: str | None, run_name: str | None) -> str:
    """A TrainableModel's name, given under one of two words. ConfigError for none and for both."""
    if (name is None) == (run_name is None):
        raise ConfigError(
            "a TrainableModel needs one name",
            cause="name and run_name are two words for the same" if name else "none was given",
            hint='TrainableModel(name="my-agent", project="my-project", base_model=...)',
        )
    return name or run_name or ""


def refuse_server_options(options: Mapping[str, Any] | None) -> None:
    """UnsupportedOption for openpipe-art's `_openai_client_config`."""
    if options:
        raise UnsupportedOption(
            "register does not support _openai_client_config",
            cause=f"its keys would be ignored: {', '.join(options)}",
            hint="engine and server are set by arguments of `art serve`",
        )
