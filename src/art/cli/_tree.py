"""The commands themselves as data, for the page that describes them and for the tests that hold all of them to the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import typer

from art.cli._help import parts_of

MAX_FLAGS = 12
"""Of one command, beside --help: what a person can still look through."""


@dataclass(frozen=True)
class Leaf:
    """One command that does something."""

    path: tuple[str, ...]
    """`("data", "retention", "set")`."""
    command: Any
    """typer's."""

    @property
    def name(self) -> str:
        """`data retention set`."""
        return " ".join(self.path)

    @property
    def help(self) -> str:
        """What it says of itself, without the examples."""
        return parts_of(self.command.help)[0]

    @property
    def examples(self) -> list[str]:
        """The command lines its help ends with."""
        return parts_of(self.command.help)[1]

    @property
    def arguments(self) -> list[Any]:
        """What stands without a flag, in order."""
        return [one for one in self.command.params if one.param_type_name == "argument"]

    @property
    def flags(self) -> list[Any]:
        """The options that its help shows, --help aside."""
        return [one for one in self.command.params if one.param_type_name == "option" and not one.hidden]


def leaves() -> Iterator[Leaf]:
    """All commands, by name."""
    from art.cli.main import app

    yield from _below((), typer.main.get_command(app))


def _below(path: tuple[str, ...], command: Any) -> Iterator[Leaf]:
    if not hasattr(command, "list_commands"):
        yield Leaf(path, command)
        return
    for name in sorted(command.list_commands(None)):
        yield from _below((*path, name), command.get_command(None, name))
