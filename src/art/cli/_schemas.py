"""The JSON of every command as a JSON Schema, made of the types it is printed from.

A command's module says `JSON = "module:Type"`; a tuple of them where it is one of several; in a group, a mapping from
the command's name (`"retention set"`) to either. A module that says `JSON_LINES` prints one such document a line.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Union

Names = str | tuple[str, ...]


@dataclass(frozen=True)
class Printed:
    """What one command prints under --json."""

    command: str
    """`ls`, `data retention set`."""
    types: tuple[str, ...]
    lines: bool
    """One document a line, instead of one in all."""

    @property
    def names(self) -> str:
        """The types' names."""
        return " | ".join(name.partition(":")[2] for name in self.types)

    def schema(self) -> dict[str, Any]:
        """Its JSON Schema (draft 2020-12)."""
        from pydantic import TypeAdapter

        kinds: Any = Union[tuple(_load(name) for name in self.types)]  # noqa: UP007  made here, of several
        found = TypeAdapter(kinds).json_schema(mode="serialization")
        what = "one line of" if self.lines else "what"
        title = f"{what} `art {self.command} --json`" + ("" if self.lines else " prints")
        return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found, "title": title}


def every() -> Iterator[Printed]:
    """All commands', by name."""
    import art.cli

    for module in sorted(module.name for module in pkgutil.iter_modules(art.cli.__path__)):
        if module != "main" and not module.startswith("_"):
            yield from of_module(module)


def of_module(name: str) -> Iterator[Printed]:
    """Those of one file."""
    module = importlib.import_module(f"art.cli.{name}")
    for attribute, lines in (("JSON", False), ("JSON_LINES", True)):
        said: Names | Mapping[str, Names] = getattr(module, attribute, ())
        if isinstance(said, Mapping):
            for command, types in sorted(said.items()):
                yield Printed(f"{name} {command}", _several(types), lines)
        elif said:
            yield Printed(name, _several(said), lines)


def _several(names: Names) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names


def _load(name: str) -> Any:
    module, _, kind = name.partition(":")
    return getattr(importlib.import_module(module), kind)
