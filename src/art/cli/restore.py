"""`art restore`: make a server's folder of a backup."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from art.cli._output import Backup, print_json
from art.cli._served import AsJson

JSON = "art.cli._output:Backup"


def command(
    backup: Annotated[Path, typer.Argument(help="What `art backup` wrote.", metavar="BACKUP")],
    *,
    path: Annotated[Path, typer.Option(help="The server's folder to be made; must not exist, or be empty.")],
    as_json: AsJson = False,
) -> None:
    """Make a server's folder of a backup. Every file is verified; nothing that exists is overwritten.

    Rollouts that ran when the backup was made are `infra_error` in the restored server, and training jobs that were
    open are run again.

    Examples:

      art restore /backups/art-2026-11-30 --path runs

      art restore /backups/art-2026-11-30 --path /srv/art --json
    """
    from art.server.backup import restore

    info = restore(backup, path)
    if as_json:
        print_json(Backup.model_validate(info.model_dump(exclude={"files"})))
        return
    typer.echo(
        f"{info.models} models, {info.rollouts} rollouts, {info.size / 1e6:.1f} MB in {path}; "
        f"start it: art serve --path {path}"
    )
