"""Settings from four places: flag over environment over file over default. Unknown names are refused.

The file is TOML with one table per section; the environment has `ART_<SECTION>__<FIELD>`:

    [server]                      ART_SERVER__PORT=8000
    port = 8000
    [model.lora]                  ART_MODEL__LORA__R=16
    r = 16

A path in the file is relative to the file's folder. Counts and spans of time may have units: `8k`, `30s` (config/units).
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ValidationError

from art.config.engine import EngineConfig, TrainerConfig
from art.config.lines import line_of
from art.config.run import (
    IMPORT_PATH,
    EvaluationSection,
    ModelSection,
    PipelineSection,
    RunSection,
    SftSection,
)
from art.config.server import ServerConfig
from art.config.train import OTHER_WORDS, TrainConfig
from art.config.units import kinds, with_units
from art.errors import ConfigError
from art.types.policy import Limits

PREFIX = "ART_"
SEPARATOR = "__"
SECTIONS: dict[str, type[BaseModel]] = {
    "model": ModelSection,
    "run": RunSection,
    "evaluation": EvaluationSection,
    "limits": Limits,
    "sft": SftSection,
    "pipeline": PipelineSection,
    "train": TrainConfig,
    "server": ServerConfig,
    "engine": EngineConfig,
    "trainer": TrainerConfig,
}
NESTED = ("engine", "trainer")
"""Sections of their own that ServerConfig holds."""
FLAG = "flag"
_UNSHOWN = ("upstreams",)  # settings that a person may have written a key into by mistake
_PLACES = {
    "model.base_model",
    "model.initial_adapter",
    "engine.script",
    "engine.token_log",
    "train.kl_ref_adapter_path",
}
"""Texts that may name a file: relative to the settings' file where they begin with `./` or `../`."""
_FILES = {"run.scenarios", "evaluation.scenarios"}
"""Texts that name a file, unless they are an import path."""

SectionT = TypeVar("SectionT", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Loaded:
    """Resolved settings, and who set what."""

    sections: Mapping[str, BaseModel]
    """By name; `engine` and `trainer` are also in `server`."""
    origins: dict[str, str] = field(default_factory=dict)
    """`model.lora.r` -> "flag", "ART_MODEL__LORA__R", the file's path; a default has no entry."""
    file: Path | None = None

    def section(self, name: str, kind: type[SectionT]) -> SectionT:
        """One section as what it is."""
        found = self.sections[name]
        assert isinstance(found, kind)
        return found

    @property
    def server(self) -> ServerConfig:
        """`[server]`, `[engine]` and `[trainer]`."""
        return self.section("server", ServerConfig)

    @property
    def train(self) -> TrainConfig:
        """`[train]`."""
        return self.section("train", TrainConfig)

    @property
    def model(self) -> ModelSection:
        """`[model]`."""
        return self.section("model", ModelSection)

    @property
    def run(self) -> RunSection:
        """`[run]`."""
        return self.section("run", RunSection)

    @property
    def evaluation(self) -> EvaluationSection:
        """`[evaluation]`."""
        return self.section("evaluation", EvaluationSection)

    @property
    def limits(self) -> Limits:
        """`[limits]`, of each rollout."""
        return self.section("limits", Limits)

    @property
    def sft(self) -> SftSection:
        """`[sft]`."""
        return self.section("sft", SftSection)

    @property
    def pipeline(self) -> PipelineSection:
        """`[pipeline]`."""
        return self.section("pipeline", PipelineSection)


def load_config(
    *,
    flags: Mapping[str, Mapping[str, Any]] | None = None,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Loaded:
    """The settings. `flags` is section -> field -> value, None meaning "not given".

    ConfigError for an unknown section or field (with the nearest known one and the file's line), an impossible value
    (with where it came from), and a file that cannot be read.
    """
    given = _Given(file)
    if file is not None:
        given.text, tables = _read_file(file)
        for section, table in tables.items():
            given.put_table(section, table, str(file))
    for variable, value in sorted((os.environ if environment is None else environment).items()):
        place = _place(variable)
        if place is not None:
            given.put(*place, value=value, origin=variable)
    for section, named in (flags or {}).items():
        if section not in SECTIONS:
            raise _unknown(f"section {section} (flag)", section, SECTIONS)
        given.put_table(section, named, FLAG)
    built = {section: _build(section, given) for section in SECTIONS if section != "server"}
    given.values["server"].update({section: built[section] for section in NESTED})
    sections = {**built, "server": _build("server", given)}
    return Loaded({name: sections[name] for name in SECTIONS}, given.origins, file)


class _Given:
    """What was given so far, later places over earlier ones."""

    def __init__(self, file: Path | None) -> None:
        self.values: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
        self.origins: dict[str, str] = {}
        self.text = ""
        self._file = file

    def where(self, origin: str, *path: str) -> str:
        """An origin as a message shows it: of the file, with the line."""
        line = line_of(self.text, *path) if self._file is not None and origin == str(self._file) else None
        return origin if line is None else f"{origin}, line {line}"

    def put_table(self, section: str, table: Mapping[str, Any], origin: str) -> None:
        for name, value in table.items():
            if value is not None:
                self.put(section, name, value=value, origin=origin)

    def put(self, section: str, *names: str, value: Any, origin: str) -> None:
        """Set one setting, or all that a table of them holds."""
        model, into = SECTIONS[section], self.values[section]
        for depth, name in enumerate(names):
            known = _fields(section, model)
            if name not in known:
                raise self._unknown_setting(section, names[: depth + 1], known, origin)
            annotation = model.model_fields[name].annotation
            inner = _nested(annotation)
            rest = names[depth + 1 :]
            if inner is None:
                self._put_value(model, into, (section, *names[: depth + 1]), rest, value, origin)
                return
            if not isinstance(into.get(name), dict):
                into[name] = {}
            model, into = inner, into[name]
        if not isinstance(value, Mapping):
            dotted = ".".join((section, *names))
            raise ConfigError(f"{dotted} is a table of settings", hint=f"set them one by one: {dotted}.NAME")
        for name, one in value.items():
            self.put(section, *names, name, value=one, origin=origin)

    def _put_value(
        self,
        model: type[BaseModel],
        into: dict[str, Any],
        path: tuple[str, ...],
        rest: tuple[str, ...],
        value: Any,
        origin: str,
    ) -> None:
        name = path[-1]
        if rest:  # ART_RUN__TRACKER__WANDB__PROJECT: into a table with names of its own
            if dict not in kinds(model.model_fields[name].annotation):
                raise ConfigError(
                    f"{'.'.join(path)} is one value ({origin})", hint=f"leave {'.'.join(rest)} out"
                )
            inside = into.setdefault(name, {})
            for part in rest[:-1]:
                inside = inside.setdefault(part, {})
            inside[rest[-1]] = value
        else:
            into[name] = self._readable(model, path, value, origin)
        self.origins[".".join((*path, *rest))] = origin

    def _readable(self, model: type[BaseModel], path: tuple[str, ...], value: Any, origin: str) -> Any:
        """The value with its unit taken off, its path made absolute, and a list out of a text."""
        info = model.model_fields[path[-1]]
        value = with_units(path[-1], info.annotation, value)
        known = kinds(info.annotation)
        from_file = self._file is not None and origin == str(self._file)
        if not isinstance(value, str):
            return value
        if not from_file and tuple in known and not _has_validator(info.metadata):
            return _listed(value)
        if from_file and (Path in known or _names_a_file(".".join(path), value)):
            assert self._file is not None
            return str((self._file.absolute().parent / Path(value).expanduser()).resolve())
        if _names_a_file(
            ".".join(path), value
        ):  # so that it means the same where the settings are read again
            return str(Path(value).expanduser().absolute())
        return value

    def _unknown_setting(
        self, section: str, names: tuple[str, ...], known: list[str], origin: str
    ) -> ConfigError:
        name = names[-1]
        what = f"setting {'.'.join((section, *names))} ({self.where(origin, section, *names)})"
        if len(names) == 1 and name not in OTHER_WORDS and not _near(name, known):
            others = [other for other, model in SECTIONS.items() if name in _fields(other, model)]
            if others:
                return ConfigError(f"unknown {what}", hint=f"it belongs into [{others[0]}]")
        return _unknown(what, name, known)


def _read_file(file: Path) -> tuple[str, dict[str, dict[str, Any]]]:
    try:
        text = file.read_text(encoding="utf-8")
        data = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"the configuration file {file} cannot be read", cause=str(error)) from error
    except (ValueError, RecursionError) as error:  # ValueError: also no UTF-8, and a number of 5,000 digits
        raise ConfigError(f"the configuration file {file} is no TOML", cause=str(error)) from error
    for section, table in data.items():
        if section not in SECTIONS:
            line = line_of(text, section)
            place = f"{file}" if line is None else f"{file}, line {line}"
            raise _unknown(f"section [{section}] in {place}", section, SECTIONS)
        if not isinstance(table, dict):
            raise ConfigError(
                f"{section} in {file} is no table", hint=f"write [{section}] above its settings"
            )
    return text, data


def _place(variable: str) -> tuple[str, ...] | None:
    """(section, field) of a variable of ours, with the fields inside a field; None for any other."""
    if not variable.startswith(PREFIX) or SEPARATOR not in variable:
        return None
    section, *names = variable[len(PREFIX) :].lower().split(SEPARATOR)
    if section not in SECTIONS:
        raise _unknown(f"section in {variable}", section, SECTIONS)
    return (section, *names)


def _fields(section: str, model: type[BaseModel]) -> list[str]:
    whole = model is ServerConfig and section == "server"
    return [name for name in model.model_fields if not (whole and name in NESTED)]


def _nested(annotation: Any) -> type[BaseModel] | None:
    """The settings that a setting is made of, as `model.lora` is."""
    found = [kind for kind in kinds(annotation) if isinstance(kind, type) and issubclass(kind, BaseModel)]
    return found[0] if found else None


def _names_a_file(setting: str, value: str) -> bool:
    if setting in _FILES:
        return bool(value) and IMPORT_PATH.fullmatch(value) is None
    return setting in _PLACES and value.startswith(("./", "../"))


def _has_validator(metadata: Iterable[Any]) -> bool:
    return any(isinstance(item, BeforeValidator) for item in metadata)


def _listed(text: str) -> Any:
    """`["a", "b"]` and `a,b`, as a variable or `--set` gives a list."""
    if text.lstrip().startswith("["):
        try:
            return tomllib.loads(f"list = {text}")["list"]
        except tomllib.TOMLDecodeError:
            return text
    return [part.strip() for part in text.split(",") if part.strip()]


def _near(name: str, known: Iterable[str]) -> str | None:
    names = list(known)
    meant = OTHER_WORDS.get(name)
    return meant if meant in names else next(iter(difflib.get_close_matches(name, names, n=1)), None)


def _unknown(what: str, name: str, known: Iterable[str]) -> ConfigError:
    near = _near(name, known)
    hint = f"did you mean {near!r}?" if near else f"known: {', '.join(sorted(known))}"
    return ConfigError(f"unknown {what}", hint=hint)


def _build(section: str, given: _Given) -> BaseModel:
    try:
        return SECTIONS[section].model_validate(given.values[section])
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = tuple(str(part) for part in first["loc"])
        name = path[0] if path else ""
        origin = given.where(_origin_of(section, path, given.origins), section, *_settings(path, section))
        if name in _UNSHOWN:
            raise ConfigError(
                f"the setting {'.'.join((section, *path))} is not possible",
                cause=f"{first['msg']} ({origin})",
            ) from None
        if not path:
            raise ConfigError(
                f"the settings of [{section}] contradict each other", cause=first["msg"]
            ) from None
        shown = ".".join((section, *_settings(path, section)))
        raise ConfigError(
            f"the setting {shown} cannot be {first['input']!r}", cause=f"{first['msg']} ({origin})"
        ) from error


def _settings(path: tuple[str, ...], section: str) -> tuple[str, ...]:
    """The part of an error's place that names settings: behind it come places in a value."""
    model: type[BaseModel] | None = SECTIONS[section]
    named: list[str] = []
    for part in path:
        if model is None or part not in model.model_fields:
            break
        named.append(part)
        model = _nested(model.model_fields[part].annotation)
    return tuple(named or path[:1])


def _origin_of(section: str, path: tuple[str, ...], origins: Mapping[str, str]) -> str:
    named = ".".join((section, *_settings(path, section)))
    found: Iterator[str] = (origin for name, origin in origins.items() if f"{name}.".startswith(f"{named}."))
    return next(found, "default")
