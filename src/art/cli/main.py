"""The `art` command. One file per command beside this one; a command's module is imported when it is used.

A command module has a function `command` with typer's annotations, whose docstring is its help; or `group`, a Typer
with commands of its own. `CONTEXT`, where it has one, are click's context settings. Modules whose name begins with "_" are what several commands share.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from art.errors import ArtError

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


class LazyCommands(TyperGroup):
    """The modules of `art.cli` as commands."""

    def list_commands(self, ctx: Any) -> list[str]:
        import art.cli

        names = (module.name for module in pkgutil.iter_modules(art.cli.__path__))
        return sorted(name for name in names if name != "main" and not name.startswith("_"))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(f"art.cli.{cmd_name}")
        if (group := getattr(module, "group", None)) is not None:
            return typer.main.get_group(group)
        single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        single.command(cmd_name, context_settings=getattr(module, "CONTEXT", None))(module.command)
        return typer.main.get_command(single)


app = typer.Typer(
    cls=LazyCommands,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # a traceback with locals would show keys
    help="Make an LLM agent better at its own task, from its own runs.",
)


def _version(value: bool) -> None:
    if value:
        from art.version import package_version

        typer.echo(f"art {package_version()}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Make an LLM agent better at its own task, from its own runs."""


def report(error: ArtError) -> None:
    """An error as the command line shows it, on stderr."""
    typer.echo(f"error: {error.message}", err=True)
    if error.cause:
        typer.echo(f"cause: {error.cause}", err=True)
    if error.hint:
        typer.echo(f"hint: {error.hint}", err=True)


def main() -> None:
    """Entry point. Exit status 0, 1 for an error, 2 for a wrong command line, 130 when interrupted."""
    try:
        app()
    except ArtError as error:
        from art.cli._usage import WrongUsage

        report(error)
        sys.exit(EXIT_USAGE if isinstance(error, WrongUsage) else EXIT_ERROR)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
