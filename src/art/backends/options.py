"""Options of `train`: applied, accepted because they change nothing, or refused by name."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from art.config.train import NEUTRAL_OPTIONS, TrainConfig
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
            _refuse_unless_neutral(name, value, backend)
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


def _refuse_unless_neutral(name: str, value: object, backend: str) -> None:
    if value in NEUTRAL_OPTIONS[name]:
        return
    neutral = " or ".join(repr(value) for value in NEUTRAL_OPTIONS[name])
    raise UnsupportedOption(
        f"{backend} does not support {name}={value!r}",
        cause="the option would be ignored; no backend of this version applies it",
        hint=f"leave {name} out, or set it to {neutral}",
    )


def bad_values(error: ValidationError, backend: str) -> ConfigError:
    """A pydantic report as one error that names each option."""
    problems = [
        f"{'.'.join(str(part) for part in problem['loc'])}={problem.get('input')!r}: {problem['msg']}"
        for problem in error.errors()
    ]
    names = {str(problem["loc"][0]) for problem in error.errors() if problem["loc"]}
    kind = UnsupportedOption if names == {"loss_fn"} else ConfigError
    return kind(f"{backend} cannot train with these options", cause="; ".join(problems))
