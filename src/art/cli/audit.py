"""`art audit`: who changed what on a server, when, and from where."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from art.cli._output import print_json
from art.cli._served import AsJson, Key, Path_, Url, backend_of, run_to_the_end
from art.cli._units import count_option
from art.types.wire_audit import AuditEntry, AuditList

JSON = "art.types.wire_audit:AuditList"


def command(
    *,
    limit: Annotated[int, count_option("Entries at most.", at_least=1, at_most=1000)] = 50,
    before: Annotated[int | None, typer.Option(min=1, help="Only entries older than this id.")] = None,
    url: Url = None,
    key: Key = None,
    path: Path_ = None,
    as_json: AsJson = False,
) -> None:
    """Every change on a server, newest first: id, time, key, address, what was done to what. Needs an admin key.

    Examples:

      art audit --limit 20

      art audit --before 1200 --json --url http://gpu:7999
    """
    query = f"?limit={limit}" + (f"&before={before}" if before is not None else "")
    with backend_of(url, key, path) as backend:
        answer = run_to_the_end(backend.connection.request("GET", f"/api/v1/audit{query}"))
    found = AuditList.model_validate(answer)
    if as_json:
        print_json(found)
        return
    for entry in found.entries:
        typer.echo(line(entry))


def line(entry: AuditEntry) -> str:
    """An entry for a person."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.time))
    where = entry.detail.get("from") or "-"
    return f"{entry.id}  {when}  {entry.key_id or 'server'}  {where}  {entry.action}  {entry.target}".rstrip()
