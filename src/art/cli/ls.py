"""`art ls`: runs, and what is in them."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from art.cli import _lists
from art.cli._complete import model_names
from art.cli._output import print_json
from art.cli._served import AsJson, Key, ReadPath, Url
from art.cli._text import table
from art.cli._units import count_option
from art.cli._usage import WrongUsage
from art.cli._views import Views, read, run_path
from art.types.wire import CheckpointList
from art.types.wire_views import GroupList, RolloutList, RunList, ScenarioList, StepList

JSON = (
    "art.types.wire_views:RunList",
    "art.types.wire_views:StepList",
    "art.types.wire_views:GroupList",
    "art.types.wire_views:RolloutList",
    "art.types.wire_views:ScenarioList",
    "art.types.wire:CheckpointList",
)


class Kind(StrEnum):
    """What can be listed."""

    RUNS = "runs"
    STEPS = "steps"
    GROUPS = "groups"
    ROLLOUTS = "rollouts"
    SCENARIOS = "scenarios"
    CHECKPOINTS = "checkpoints"


TAKES: dict[Kind, frozenset[str]] = {
    Kind.RUNS: frozenset(),
    Kind.STEPS: frozenset(),
    Kind.GROUPS: frozenset({"step", "scenario"}),
    Kind.ROLLOUTS: frozenset({"where", "search", "sort", "step", "scenario"}),
    Kind.SCENARIOS: frozenset({"sort"}),
    Kind.CHECKPOINTS: frozenset(),
}
"""The options that each list knows; another one would be ignored, and is refused."""
SORTS: dict[Kind, tuple[str, ...]] = {
    Kind.ROLLOUTS: ("created_at", "reward", "sampled_tokens", "tool_errors", "seconds"),
    Kind.SCENARIOS: ("change", "reward_last", "rollouts"),
}
_WHERE = 'Only rollouts for which this holds: reward < 0 and tool_errors > 0, scenario_id ~ "paris".'
_SORT = "rollouts: created_at, reward, sampled_tokens, tool_errors or seconds, with :asc for the lowest first. scenarios: change, reward_last or rollouts."


def command(
    kind: Annotated[Kind, typer.Argument(help="What to list.")] = Kind.RUNS,
    model: Annotated[
        str | None,
        typer.Argument(
            help="project/name; default: the only one. For runs: a project.",
            metavar="MODEL",
            autocompletion=model_names,
        ),
    ] = None,
    *,
    where: Annotated[str | None, typer.Option(help=_WHERE)] = None,
    search: Annotated[str | None, typer.Option(help="Only rollouts in whose text these words are.")] = None,
    step: Annotated[int | None, typer.Option(min=0, help="Only of this step: groups, rollouts.")] = None,
    scenario: Annotated[str | None, typer.Option(help="Only of this scenario: groups, rollouts.")] = None,
    sort: Annotated[str | None, typer.Option(help=_SORT)] = None,
    limit: Annotated[int, count_option("Entries at most.", at_least=1)] = 50,
    url: Url = None,
    key: Key = None,
    path: ReadPath = None,
    as_json: AsJson = False,
) -> None:
    """List runs; or the steps, groups, rollouts, scenarios or checkpoints of one.

    Newest first. Read from a server (--url, ART_URL), or from a folder, whether a server runs on it or not.

    Examples:

      art ls

      art ls rollouts shop/agent --where "reward < 0 and tool_errors > 0" --sort reward:asc --limit 1k
    """
    given = {"where": where, "search": search, "step": step, "scenario": scenario, "sort": sort}
    _refuse_ignored(kind, given)
    found = read(lambda views: fetch(views, kind, model, given, limit), url, key, path)
    if as_json:
        print_json(found)
        return
    columns, rows = _lists.of(found)
    for line in table(columns, rows):
        typer.echo(line)
    _say_more(found, len(rows))


def _refuse_ignored(kind: Kind, given: dict[str, Any]) -> None:
    for name, value in given.items():
        if value is not None and name not in TAKES[kind]:
            takers = ", ".join(one for one in Kind if name in TAKES[one])
            raise WrongUsage(
                f"--{name} would be ignored",
                cause=f"art ls {kind} has no use for it",
                hint=f"it is for {takers}",
            )


def sorting(kind: Kind, text: str | None) -> dict[str, str]:
    """`--sort reward:asc` as the parameters of a list. WrongUsage for what it cannot be sorted by."""
    if text is None:
        return {}
    name, colon, order = text.partition(":")
    if name not in SORTS[kind]:
        raise WrongUsage(f"{kind} cannot be sorted by {name!r}", hint=f"one of {', '.join(SORTS[kind])}")
    if not colon:
        return {"sort": name} if kind is Kind.SCENARIOS else {"sort": name, "order": "desc"}
    if kind is Kind.SCENARIOS or order not in ("asc", "desc"):
        raise WrongUsage(
            f"--sort is {text!r}", hint="rollouts take :asc or :desc behind the name; scenarios neither"
        )
    return {"sort": name, "order": order}


async def fetch(views: Views, kind: Kind, model: str | None, given: dict[str, Any], limit: int) -> Any:
    """The list, as many pages of it as `limit` needs."""
    if kind is Kind.RUNS:
        return await _all(views, RunList, "/runs", limit, project=model)
    run = await views.run(model)
    if kind is Kind.CHECKPOINTS:
        found = await views.get(
            CheckpointList, f"/api/v1/models{run_path(run).removeprefix('/runs')}/checkpoints"
        )
        return CheckpointList(checkpoints=found.checkpoints[::-1][:limit])
    types: dict[Kind, Any] = {
        Kind.STEPS: StepList,
        Kind.GROUPS: GroupList,
        Kind.ROLLOUTS: RolloutList,
        Kind.SCENARIOS: ScenarioList,
    }
    asked = {name: given[name] for name in TAKES[kind] - {"where", "sort"}}
    if kind is Kind.ROLLOUTS:
        asked["filter"] = given["where"]
    return await _all(
        views, types[kind], run_path(run, kind.value), limit, **asked, **sorting(kind, given["sort"])
    )


async def _all(views: Views, kind: Any, path: str, limit: int, **params: Any) -> Any:
    """Several pages as one."""
    whole: Any = None
    async for page in views.pages(kind, path, limit=limit, **params):
        if whole is None:
            whole = page
        else:
            _lists.entries(whole).extend(_lists.entries(page))
            whole.next = page.next
    return whole


def _say_more(found: Any, shown: int) -> None:
    """That there is more, on stderr."""
    if isinstance(found, RolloutList) and found.total > shown:
        more = "more than " if found.more else ""
        typer.echo(f"{shown:,} of {more}{found.total:,}; --limit 1k shows more", err=True)
    elif getattr(found, "next", None) is not None:
        typer.echo(f"the first {shown:,}; --limit 1k shows more", err=True)
    elif not shown:
        typer.echo("nothing yet", err=True)
