"""Settings from four places: flag over environment over file over default. Unknown names are refused.

The file is TOML with one table per section; the environment has `ART_<SECTION>__<FIELD>`:

    [server]                      ART_SERVER__PORT=8000
    port = 8000
    [engine]                      ART_ENGINE__MAX_BATCH=32
    max_batch = 32
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from art.config.engine import EngineConfig, TrainerConfig
from art.config.server import ServerConfig
from art.config.train import TrainConfig
from art.errors import ConfigError

PREFIX = "ART_"
SEPARATOR = "__"
SECTIONS: dict[str, type[BaseModel]] = {
    "server": ServerConfig,
    "engine": EngineConfig,
    "trainer": TrainerConfig,
    "train": TrainConfig,
}
_NESTED = ("engine", "trainer")  # sections of their own that ServerConfig holds
_UNSHOWN = ("upstreams",)  # settings that a person may have written a key into by mistake


@dataclass(frozen=True, slots=True)
class Loaded:
    """Resolved settings, and who set what."""

    server: ServerConfig
    train: TrainConfig
    origins: dict[str, str] = field(default_factory=dict)
    """`server.port` -> "flag", "ART_SERVER__PORT", the file's path; a default has no entry."""


def load_config(
    *,
    flags: Mapping[str, Mapping[str, Any]] | None = None,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Loaded:
    """The settings. `flags` is section -> field -> value, None meaning "not given".

    ConfigError for an unknown section or field (with the nearest known one), an impossible value (with
    where it came from), and a file that cannot be read.
    """
    values: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    origins: dict[str, str] = {}

    def put(section: str, name: str, value: Any, origin: str) -> None:
        check_known(section, name, origin)
        values[section][name] = value
        origins[f"{section}.{name}"] = origin

    if file is not None:
        for section, table in _read_file(file).items():
            for name, value in table.items():
                put(section, name, value, str(file))
    for variable, text in sorted((os.environ if environment is None else environment).items()):
        place = _place(variable)
        if place is not None:
            put(*place, text, variable)
    for section, given in (flags or {}).items():
        for name, value in given.items():
            if value is not None:
                put(section, name, value, "flag")
    nested = {section: _build(section, values[section], origins) for section in _NESTED}
    server = _build("server", {**values["server"], **nested}, origins)
    train = _build("train", values["train"], origins)
    assert isinstance(server, ServerConfig)
    assert isinstance(train, TrainConfig)
    return Loaded(server, train, origins)


def _read_file(file: Path) -> dict[str, dict[str, Any]]:
    try:
        data = tomllib.loads(file.read_text())
    except OSError as error:
        raise ConfigError(f"the configuration file {file} cannot be read", cause=str(error)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"the configuration file {file} is no TOML", cause=str(error)) from error
    for section, table in data.items():
        if section not in SECTIONS:
            raise _unknown(f"section [{section}] in {file}", section, SECTIONS)
        if not isinstance(table, dict):
            raise ConfigError(
                f"{section} in {file} is no table", hint=f"write [{section}] above its settings"
            )
    return data


def _place(variable: str) -> tuple[str, str] | None:
    """(section, field) of a variable of ours; None for any other."""
    if not variable.startswith(PREFIX) or SEPARATOR not in variable:
        return None
    section, _, name = variable[len(PREFIX) :].lower().partition(SEPARATOR)
    if section not in SECTIONS:
        raise _unknown(f"section in {variable}", section, SECTIONS)
    return section, name


def check_known(section: str, name: str, origin: str) -> None:
    """ConfigError with the nearest name unless `section` has the setting `name`."""
    known = [
        field for field in SECTIONS[section].model_fields if not (section == "server" and field in _NESTED)
    ]
    if name not in known:
        raise _unknown(f"setting {section}.{name} ({origin})", name, known)


def _unknown(what: str, name: str, known: Any) -> ConfigError:
    near = difflib.get_close_matches(name, list(known), n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(known))}"
    return ConfigError(f"unknown {what}", hint=hint)


def _build(section: str, values: dict[str, Any], origins: Mapping[str, str]) -> BaseModel:
    try:
        return SECTIONS[section].model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0]) if first["loc"] else ""
        origin = origins.get(f"{section}.{name}", "default")
        if name in _UNSHOWN:
            where = ".".join([section, *(str(part) for part in first["loc"])])
            raise ConfigError(
                f"the setting {where} is not possible", cause=f"{first['msg']} ({origin})"
            ) from None
        raise ConfigError(
            f"the setting {section}.{name} cannot be {first['input']!r}", cause=f"{first['msg']} ({origin})"
        ) from error
