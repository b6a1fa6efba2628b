"""`art export`: what a server has recorded of a run, as one file."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from art.cli._served import Key, Path_, Url
from art.cli._views import Views, read
from art.types.policy import RolloutStatus
from art.types.wire_export import WrittenExport

if TYPE_CHECKING:
    from art.utils.exports import Format

JSON = "art.types.wire_export:WrittenExport"


class _Format(StrEnum):
    JSONL = "jsonl"
    PARQUET = "parquet"


def command(
    run: Annotated[
        str | None,
        typer.Argument(help="project/name; may be left out when there is only one.", metavar="RUN"),
    ] = None,
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="The file; its ending says the format.")],
    format: Annotated[_Format | None, typer.Option(help="In place of the ending.")] = None,
    step: Annotated[
        int | None, typer.Option(help="Only what this step served, or was logged at.", min=0)
    ] = None,
    split: Annotated[str | None, typer.Option(help="Only of this split: train, val, ...")] = None,
    status: Annotated[
        RolloutStatus | None, typer.Option(help="Only rollouts that ended so.", show_choices=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    url: Url = None,
    key: Key = None,
    path: Path_ = None,
) -> None:
    """Write a run's rollouts and logged trajectories to a file: messages, tokens, log-probabilities, branches, rewards.

    Nothing is rounded and nothing left out but what the server keeps encrypted (docs/export.md). The file appears whole
    or not at all; memory does not grow with the run. Parquet needs the extra `parquet`.

    Examples:

      art export shop/agent --out agent.parquet --path runs

      art export shop/agent --out failed.jsonl --status agent_error --url http://gpu:7999
    """
    from art.utils.exports import format_of

    kind: Format = format_of(out) if format is None else ("jsonl" if format is _Format.JSONL else "parquet")
    wanted = {"step": step, "split": split, "status": None if status is None else status.value}
    name, records = read(lambda views: _export(views, run, out, kind, wanted), url, key, path)
    size = out.stat().st_size
    if as_json:
        written = WrittenExport(file=str(out), run=name, format=kind, records=records, bytes=size)
        typer.echo(written.model_dump_json(indent=2))
        return
    typer.echo(f"{records} records of {name} in {out}, {size / 1e6:.1f} MB")


async def _export(
    views: Views, run: str | None, out: Path, kind: Format, wanted: Mapping[str, object]
) -> tuple[str, int]:
    from art.utils.exports import export_run

    project, name = await views.run(run)
    records = await export_run(
        views.connection,
        project,
        name,
        out,
        format=kind,
        **wanted,  # type: ignore[arg-type]
    )
    return f"{project}/{name}", records
