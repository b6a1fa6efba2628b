"""`art key`: make, list, limit, rotate and revoke a server's keys."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar
from urllib.parse import quote

import typer

from art.cli._output import print_json
from art.cli._served import AsJson, Key, Path_, Url, Yes, backend_of, run_to_the_end
from art.cli._units import count, count_option, seconds_of
from art.cli._usage import WrongUsage

if TYPE_CHECKING:
    from pydantic import BaseModel

    from art.types.wire_keys import KeyInfo

M = TypeVar("M", bound="BaseModel")

group = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Make, list, limit, rotate and revoke a server's keys. Needs an admin key.",
)
KEYS = "/api/v1/keys"
JSON = {
    "create": "art.types.wire_keys:CreatedKey",
    "list": "art.types.wire_keys:KeyList",
    "quota": "art.types.wire_keys:KeyInfo",
    "rotate": "art.types.wire_keys:CreatedKey",
    "revoke": "art.types.wire_keys:KeyInfo",
}
RoleName = Literal["infer", "rollout", "train", "admin"]

KeyId = Annotated[str, typer.Argument(help="The id that `art key list` shows.", metavar="KEY_ID")]
Expires = Annotated[
    str | None, typer.Option("--expires", help="How long it works: 90s, 30m, 12h or 30d. Default: for ever.")
]
_CALLS = "Requests to a model begun within any minute."
_TOKENS = "Prompt and completion tokens of a day (UTC)."
_AT_ONCE = "Requests to a model answered at once."


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
    calls_per_minute: Annotated[int | None, count_option(_CALLS, at_least=1)] = None,
    tokens_per_day: Annotated[int | None, count_option(_TOKENS, at_least=1)] = None,
    max_concurrent: Annotated[int | None, count_option(_AT_ONCE, at_least=1)] = None,
    url: Url = None,
    key: Key = None,
    path: Path_ = None,
    as_json: AsJson = False,
) -> None:
    """Make a key. It is printed this once: the server keeps only its hash.

    Examples:

      art key create --role rollout --project shop --label "ci" --expires 30d --tokens-per-day 1000000

      art key create --role train --url http://gpu:7999 > train.key
    """
    from art.types.wire_keys import CreateKey

    quotas = {
        "calls_per_minute": calls_per_minute,
        "tokens_per_day": tokens_per_day,
        "max_concurrent": max_concurrent,
    }
    seconds = None if expires is None else seconds_of(expires, "--expires")
    body = {
        "role": role,
        "project": project,
        "label": label,
        "expires_in_seconds": seconds,
        "quotas": quotas,
    }
    request = _request(CreateKey, body)
    with backend_of(url, key, path) as backend:
        _made(run_to_the_end(backend.connection.request("POST", KEYS, body=request)), as_json)


@group.command("list")
def list_keys(*, url: Url = None, key: Key = None, path: Path_ = None, as_json: AsJson = False) -> None:
    """All keys with their rights and quotas, oldest first; those of single rollouts are left out. No secret is shown.

    Examples:

      art key list

      art key list --url http://gpu:7999 --json
    """
    from art.types.wire_keys import KeyList

    with backend_of(url, key, path) as backend:
        answer = run_to_the_end(backend.connection.request("GET", KEYS))
    found = KeyList.model_validate(answer)
    if as_json:
        print_json(found)
        return
    for info in found.keys:
        typer.echo(line(info, now=time.time()))


@group.command("quota")
def change_quotas(
    key_id: KeyId,
    *,
    calls_per_minute: Annotated[str | None, typer.Option(metavar="COUNT|none", help=_CALLS)] = None,
    tokens_per_day: Annotated[str | None, typer.Option(metavar="COUNT|none", help=_TOKENS)] = None,
    max_concurrent: Annotated[str | None, typer.Option(metavar="COUNT|none", help=_AT_ONCE)] = None,
    url: Url = None,
    key: Key = None,
    path: Path_ = None,
    as_json: AsJson = False,
) -> None:
    """Change what a key may use of the models, from now on. What is not named stays; `none` lifts a quota.

    Examples:

      art key quota 5d41402abc4b --tokens-per-day 2000000 --calls-per-minute none

      art key quota 5d41402abc4b --max-concurrent 8 --url http://gpu:7999
    """
    from art.types.wire_keys import ChangeKey

    given = {
        "calls_per_minute": calls_per_minute,
        "tokens_per_day": tokens_per_day,
        "max_concurrent": max_concurrent,
    }
    changes = {name: _bound(name, text) for name, text in given.items() if text is not None}
    if not changes:
        raise WrongUsage(
            "no quota is named", hint="such as --tokens-per-day 1000000, or --tokens-per-day none"
        )
    body = _request(ChangeKey, {"quotas": changes})
    with backend_of(url, key, path) as backend:
        _told(run_to_the_end(backend.connection.request("PATCH", _route(key_id), body=body)), as_json)


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
    """Replace a key by a new one with the same rights. The new one is printed this once; open rollouts go on.

    Examples:

      art key rotate 5d41402abc4b --grace 1h

      art key rotate 5d41402abc4b --url http://gpu:7999 > train.key
    """
    from art.types.wire_keys import RotateKey

    body = _request(RotateKey, {"grace_seconds": seconds_of(grace, "--grace")})
    with backend_of(url, key, path) as backend:
        route = f"{_route(key_id)}/rotate"
        _made(run_to_the_end(backend.connection.request("POST", route, body=body)), as_json)


@group.command()
def revoke(
    key_id: KeyId,
    *,
    yes: Yes = False,
    url: Url = None,
    key: Key = None,
    path: Path_ = None,
    as_json: AsJson = False,
) -> None:
    """End a key at once, and the keys of rollouts that it opened. What uses it gets 401 from then on; it does not come back.

    Examples:

      art key revoke 5d41402abc4b

      art key revoke 5d41402abc4b --yes --url http://gpu:7999
    """
    if not yes:
        typer.confirm(f"Revoke the key {key_id}? What uses it stops working", abort=True, err=True)
    with backend_of(url, key, path) as backend:
        _told(run_to_the_end(backend.connection.request("DELETE", _route(key_id))), as_json)


def line(info: KeyInfo, *, now: float) -> str:
    """A key for a person: id, role, project, state, quotas, label."""
    if info.revoked_at is not None:
        state = "revoked"
    elif info.expires_at is None:
        state = "works"
    elif info.expires_at <= now:
        state = "expired"
    else:
        state = f"works until {time.strftime('%Y-%m-%d %H:%M', time.localtime(info.expires_at))}"
    parts = [f"{info.key_id}  {info.role:<7}  {info.project or 'all projects'}  {state}", *quotas_of(info)]
    if info.label:  # whoever made the key chose it: it moves no cursor here
        parts.append(info.label if info.label.isprintable() else ascii(info.label))
    return "  ".join(parts)


def quotas_of(info: KeyInfo) -> list[str]:
    """The quotas for a person; of tokens also what was used today."""
    quotas, out = info.quotas, []
    if quotas.calls_per_minute is not None:
        out.append(f"{quotas.calls_per_minute:,} calls a minute")
    if quotas.tokens_per_day is not None:
        out.append(f"{info.tokens_today:,} of {quotas.tokens_per_day:,} tokens today")
    if quotas.max_concurrent is not None:
        out.append(f"{quotas.max_concurrent:,} at once")
    return out


def _route(key_id: str) -> str:
    return f"{KEYS}/{quote(key_id, safe='')}"


def _bound(name: str, text: str) -> int | None:
    """A quota as it was typed."""
    if text == "none":
        return None
    try:
        return count(at_least=1)(text)
    except ValueError as error:
        option = f"--{name.replace('_', '-')}"
        raise WrongUsage(f"{option} is {text!r}", hint="a whole number above 0 (500, 2M), or none") from error


def _request(kind: type[M], values: dict[str, Any]) -> M:
    """The request. WrongUsage for values that it cannot have."""
    from pydantic import ValidationError

    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise WrongUsage(f"{first['loc'][-1]} cannot be {first['input']!r}", cause=first["msg"]) from error


def _told(answer: Any, as_json: bool) -> None:
    """What a key is now."""
    from art.types.wire_keys import KeyInfo

    told = KeyInfo.model_validate(answer)
    if as_json:
        print_json(told)
    else:
        typer.echo(line(told, now=time.time()))


def _made(answer: Any, as_json: bool) -> None:
    """The secret on stdout, alone, so that it can go into a file; what it is on stderr."""
    from art.types.wire_keys import CreatedKey

    made = CreatedKey.model_validate(answer)
    if as_json:
        print_json(made)
        return
    typer.echo(f"{line(made.info, now=time.time())}\nkeep it: it is not shown again", err=True)
    typer.echo(made.key)
