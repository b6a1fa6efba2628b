"""`--set section.name=value`: any setting of the configuration file, from the command line."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar, get_origin

import typer
from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from art.cli._usage import WrongUsage
from art.utils.units import parse_count, parse_seconds

M = TypeVar("M", bound=BaseModel)
Seconds = Annotated[float, BeforeValidator(parse_seconds), Field(gt=0)]
"""`30s`, `5m`, or a number."""
Count = Annotated[int, BeforeValidator(parse_count)]
"""`8k`, or a number."""

Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.NAME=VALUE",
        help="Any setting of the configuration file, such as server.stop_seconds=60; repeatable.",
    ),
]


def settings_of(given: Sequence[str] | None, sections: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Section -> name -> value. A value is read as TOML where it is any, else as text; a list may be joined by commas.

    WrongUsage for what is no setting of these sections, and for one that is given twice.
    """
    found: dict[str, dict[str, Any]] = {section: {} for section in sections}
    for text in given or ():
        _merge(found, _one(text, sections), text)
    return found


def combine(
    flags: Mapping[str, Mapping[str, Any]], more: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Flags of their own and `--set` together. WrongUsage for a setting that both give."""
    found = {section: dict(values) for section, values in flags.items()}
    for section, values in more.items():
        for name, value in values.items():
            if found.setdefault(section, {}).get(name) is not None:
                raise WrongUsage(f"{section}.{name} is set twice", hint="by its flag, or by --set")
            found[section][name] = value
    return found


def _one(text: str, sections: Sequence[str]) -> dict[str, Any]:
    place, equals, value = text.partition("=")
    section, dot, name = place.strip().partition(".")
    if not equals or not dot or not name:
        raise WrongUsage(f"--set {text!r} is no setting", hint=f"--set {sections[0]}.NAME=VALUE")
    if section not in sections:
        near = difflib.get_close_matches(section, sections, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"one of {', '.join(sections)}"
        raise WrongUsage(f"--set {place.strip()}: there is no section {section!r}", hint=hint)
    try:
        read = tomllib.loads(f"{place} = {_value(value)}")
    except tomllib.TOMLDecodeError as error:
        raise WrongUsage(
            f"--set {text!r} is no setting", cause=str(error), hint="names with other characters need quotes"
        ) from error
    return {section: {key: _listed(section, key, inner) for key, inner in read[section].items()}}


def _value(text: str) -> str:
    """As TOML; what is none is a text."""
    try:
        tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return json.dumps(text)
    return text


def _listed(section: str, name: str, value: Any) -> Any:
    """`a,b` where the setting is a list."""
    from art.config.load import SECTIONS

    field = SECTIONS[section].model_fields.get(name) if section in SECTIONS else None
    if isinstance(value, str) and field is not None and get_origin(field.annotation) in (tuple, list):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


def _merge(into: dict[str, Any], new: Mapping[str, Any], text: str) -> None:
    for name, value in new.items():
        if isinstance(value, dict) and isinstance(into.get(name, {}), dict):
            _merge(into.setdefault(name, {}), value, text)
        elif name in into:
            raise WrongUsage(f"--set {text!r} is given twice", hint="once is enough")
        else:
            into[name] = value


def checked(kind: type[M], section: str, values: Mapping[str, Any]) -> M:
    """The settings of one section. WrongUsage names what there is none of, or what a setting cannot be."""
    for name in values:
        if name not in kind.model_fields:
            near = difflib.get_close_matches(name, kind.model_fields, n=1)
            hint = f"did you mean {section}.{near[0]}?" if near else f"known: {', '.join(kind.model_fields)}"
            raise WrongUsage(f"there is no setting {section}.{name}", hint=hint)
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join([section, *map(str, first["loc"])])
        raise WrongUsage(f"{place} cannot be {first['input']!r}", cause=first["msg"]) from error
