"""`art schema`: what --json prints, as JSON Schema."""

from __future__ import annotations

import difflib
import json
from typing import Annotated

import typer

from art.cli import _schemas
from art.cli._served import AsJson
from art.cli._text import Column, table
from art.cli._usage import WrongUsage

JSON = "art.cli.schema:Schemas"
Schemas = dict[str, object]
"""A JSON Schema by command; with a command's name, that one alone."""
ERROR = _schemas.Printed("error", ("art.cli._output:CommandError",), lines=True)
"""What an error looks like on stderr, whatever the command."""


def command(
    name: Annotated[
        list[str] | None, typer.Argument(help="A command, such as ls or data purge; error is that of errors.")
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """The JSON Schema of what a command prints under --json; without a name, which command prints what.

    Fields may be added by a later release; none is renamed or removed without a word in the changelog.

    Examples:

      art schema ls

      art schema --json > art-schemas.json
    """
    printed = {one.command: one for one in (*_schemas.every(), ERROR)}
    if name:
        wanted = " ".join(name)
        if wanted not in printed:
            near = difflib.get_close_matches(wanted, printed, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(printed)}"
            raise WrongUsage(f"no command {wanted!r} prints JSON", hint=hint)
        typer.echo(json.dumps(printed[wanted].schema(), indent=2))
        return
    if as_json:
        typer.echo(json.dumps({name: one.schema() for name, one in printed.items()}, indent=2))
        return
    rows = [(one.command, "lines" if one.lines else "document", one.names) for one in printed.values()]
    for line in table([Column("command"), Column("as"), Column("type")], rows):
        typer.echo(line)
