"""`art key`: make, list, rotate and revoke a server's keys."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import quote

import typer

from art.cli._served import Key, Path_, Url, backend_of, run_to_the_end
from art.cli._time import seconds_of

if TYPE_CHECKING:
    from art.types.wire import KeyInfo

group = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Make, list, rotate and revoke a server's keys. Needs an admin key.",
)
KEYS = "/api/v1/keys"
RoleName = Literal["infer", "rollout", "train", "admin"]

KeyId = Annotated[str, typer.Argument(help="The id that `art key list` shows.", metavar="KEY_ID")]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON.")]
Expires = Annotated[
    str | None, typer.Option("--expires", help="How long it works: 90s, 30m, 12h or 30d. Default: for ever.")
]


@group.command()
def create(
    *,
    role: Annotated[
        RoleName,
        typer.Option(
            help="infer: call models. rollout: also open and reward rollouts. train: also train. admin: all."
        ),
    ],
    project: Annotated[str | None, typer.Option(help="The only project it sees. Default: all.")] = None,
    expires: Expires = None,
    label: Annotated[str, typer.Option(help="What it is for; shown in lists.")] = "",
    url: Url = None,
    key: Key = None,
    path: Path_ = None,
    as_json: AsJson = False,
) -> None:
    """Make a key. It is printed this once: the server keeps only its hash.

    Examples:

      art key create --role rollout --project shop --label "ci" --expires 30d

      art key create --role train --url http://gpu:7999 > train.key
    """
    from art.types.wire import CreateKey

    seconds = None if expires is None else seconds_of(expires, "--expires")
    body = CreateKey(role=role, project=project, label=label, expires_in_seconds=seconds)
    with backend_of(url, key, path) as backend:
        _made(run_to_the_end(backend.connection.request("POST", KEYS, body=body)), as_json)


@group.command("list")
def list_keys(*, url: Url = None, key: Key = None, path: Path_ = None, as_json: AsJson = False) -> None:
    """All keys with their rights, oldest first; the keys of single rollouts are left out. No secret is shown.

    Examples:

      art key list

      art key list --url http://gpu:7999 --json
    """
    from art.types.wire import KeyList

    with backend_of(url, key, path) as backend:
        answer = run_to_the_end(backend.connection.request("GET", KEYS))
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
        return
    for info in KeyList.model_validate(answer).keys:
        typer.echo(line(info, now=time.time()))


@group.command()
def rotate(
    key_id: KeyId,
    *,
    grace: Annotated[
        str, typer.Option(help="How long the old key goes on working: 90s, 30m, 12h or 7d.")
    ] = "0s",
    url: Url = None,
    key: Key = None,
    path: Path_ = None,
    as_json: AsJson = False,
) -> None:
    """Replace a key by a new one with the same rights. The new one is printed this once.

    Examples:

      art key rotate 5d41402abc4b --grace 1h

      art key rotate 5d41402abc4b --url http://gpu:7999 > train.key
    """
    from art.types.wire import RotateKey

    body = RotateKey(grace_seconds=seconds_of(grace, "--grace"))
    route = f"{KEYS}/{quote(key_id, safe='')}/rotate"
    with backend_of(url, key, path) as backend:
        _made(run_to_the_end(backend.connection.request("POST", route, body=body)), as_json)


@group.command()
def revoke(
    key_id: KeyId,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: Url = None,
    key: Key = None,
    path: Path_ = None,
    as_json: AsJson = False,
) -> None:
    """End a key at once. What uses it gets 401 from then on; a revoked key does not come back.

    Examples:

      art key revoke 5d41402abc4b

      art key revoke 5d41402abc4b --yes --url http://gpu:7999
    """
    from art.types.wire import KeyInfo

    if not yes:
        typer.confirm(f"Revoke the key {key_id}? What uses it stops working", abort=True, err=True)
    with backend_of(url, key, path) as backend:
        answer = run_to_the_end(backend.connection.request("DELETE", f"{KEYS}/{quote(key_id, safe='')}"))
    typer.echo(
        json.dumps(answer, indent=2) if as_json else line(KeyInfo.model_validate(answer), now=time.time())
    )


def line(info: KeyInfo, *, now: float) -> str:
    """A key for a person: id, role, project, state, label."""
    if info.revoked_at is not None:
        state = "revoked"
    elif info.expires_at is None:
        state = "works"
    elif info.expires_at <= now:
        state = "expired"
    else:
        state = f"works until {time.strftime('%Y-%m-%d %H:%M', time.localtime(info.expires_at))}"
    label = f"  {info.label}" if info.label else ""
    return f"{info.key_id}  {info.role:<7}  {info.project or 'all projects'}  {state}{label}"


def _made(answer: Any, as_json: bool) -> None:
    """The secret on stdout, alone, so that it can go into a file; what it is on stderr."""
    from art.types.wire import CreatedKey

    if as_json:
        typer.echo(json.dumps(answer, indent=2))
        return
    made = CreatedKey.model_validate(answer)
    typer.echo(f"{line(made.info, now=time.time())}\nkeep it: it is not shown again", err=True)
    typer.echo(made.key)
