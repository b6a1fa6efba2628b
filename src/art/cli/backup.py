"""`art backup`: copy a server's folder while the server runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from art.cli._output import Backup, print_json
from art.cli._served import AsJson

JSON = "art.cli._output:Backup"


def command(
    target: Annotated[Path, typer.Argument(help="A folder that does not exist yet.", metavar="TARGET")],
    *,
    path: Annotated[Path, typer.Option(help="The server's folder.")] = Path(".art"),
    base_models: Annotated[
        bool,
        typer.Option(help="Copy converted base models too; without, they are made again from their source."),
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Copy everything that a server has recorded and trained: store, token files, checkpoints, admin key.

    The server may run. The copy appears whole or not at all. It holds what the store holds, text and keys' hashes
    included: keep it as you keep the server's folder.

    Examples:

      art backup /backups/art-2026-11-30 --path runs

      art backup /backups/today --no-base-models --json
    """
    from art.server.backup import back_up

    info = back_up(path, target, base_models=base_models)
    if as_json:
        print_json(Backup.model_validate(info.model_dump(exclude={"files"})))
        return
    typer.echo(
        f"{info.models} models, {info.rollouts} rollouts, {len(info.files)} files, {info.size / 1e6:.1f} MB "
        f"in {target}"
    )
    for name in info.deleted_meanwhile:
        typer.echo(f"deleted while it was copied: {name}", err=True)
