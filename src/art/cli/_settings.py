"""What commands that read a run.toml share: which file is meant, `--set`, and the flags that set something by name."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from pydantic import BaseModel, ValidationError

from art.cli._usage import WrongUsage
from art.config.load import SECTIONS, Loaded, load_config

DEFAULT_FILE = "run.toml"
M = TypeVar("M", bound=BaseModel)

File = Annotated[
    Path | None,
    typer.Argument(
        help="The settings, or the folder of a run.toml.", metavar="RUN.TOML", show_default="run.toml"
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="SECTION.NAME=VALUE", help="Any setting, over file and environment; repeatable."
    ),
]


def settings_of(
    file: Path | None, sets: list[str] | None, named: dict[str, dict[str, Any]] | None = None
) -> Loaded:
    """The settings that a command line means. `named`: what flags of their own set; `--set` may not say otherwise."""
    return load_config(flags=merged(parsed(sets or []), named or {}), file=file_of(file))


def file_of(given: Path | None) -> Path | None:
    """The file that is read; None where none was named and there is none here. WrongUsage where one is named in vain."""
    if given is None:
        here = Path(DEFAULT_FILE)
        return here if here.is_file() else None
    found = given / DEFAULT_FILE if given.is_dir() else given
    if not found.is_file():
        raise WrongUsage(
            f"there is no file {found}",
            hint="art init NAME writes a project with one; art run looks for run.toml in the current folder",
        )
    return found


def parsed(sets: list[str]) -> dict[str, dict[str, Any]]:
    """`train.learning_rate=1e-4` as tables. WrongUsage for what is no such assignment."""
    tables: dict[str, dict[str, Any]] = {}
    for text in sets:
        name, equals, value = text.partition("=")
        section, *names = (part.strip() for part in name.split("."))
        if not equals or not names or not all(names):
            raise WrongUsage(
                f"--set {text} sets nothing", hint="SECTION.NAME=VALUE, such as train.learning_rate=1e-4"
            )
        table = tables.setdefault(section, {})
        for inner in names[:-1]:
            table = table.setdefault(inner, {})
            if not isinstance(table, dict):
                raise WrongUsage(f"--set {text}: {inner} is set as a whole before")
        table[names[-1]] = value.strip()
    return tables


def merged(sets: dict[str, dict[str, Any]], named: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """`--set` and flags of their own together. WrongUsage for a setting that both give."""
    for section, table in named.items():
        assert section in SECTIONS
        for name, value in table.items():
            if value is None:
                continue
            if name in sets.get(section, {}):
                raise WrongUsage(f"{section}.{name} is set twice", hint="by --set, or by the flag of its own")
            sets.setdefault(section, {})[name] = value
    return sets


def checked(kind: type[M], section: str, values: Mapping[str, Any]) -> M:
    """`--set` of a section that is one command's own. WrongUsage names what there is none of, or what one cannot be."""
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


def only(tables: dict[str, dict[str, Any]], sections: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The same tables. WrongUsage for a section that a command has no use for: it would be ignored."""
    for section in tables:
        if section not in sections:
            near = difflib.get_close_matches(section, sections, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"here it is one of {', '.join(sections)}"
            raise WrongUsage(f"--set {section}. would be ignored", hint=hint)
    return tables
