"""`art data`: what a server has recorded, as a whole."""

from __future__ import annotations

from typing import Annotated

import typer

from art.cli._served import AsJson, Key, Path_, Url, Yes, backend_of, run_to_the_end
from art.cli._units import seconds_of
from art.cli._usage import WrongUsage
from art.types.wire_purge import Purged, PurgeData
from art.types.wire_retention import RetentionList, RetentionSet, SetRetention

group = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="What a server has recorded, as a whole.",
)
ROUTE = "/api/v1/data/purge"
DAY = 24 * 3600
JSON = {
    "purge": "art.types.wire_purge:Purged",
    "retention set": "art.types.wire_retention:RetentionSet",
    "retention clear": "art.types.wire_retention:RetentionSet",
    "retention list": "art.types.wire_retention:RetentionList",
}


@group.callback()
def root() -> None:
    """What a server has recorded, as a whole."""


@group.command()
def purge(
    *,
    project: Annotated[str | None, typer.Option(help="Only of this project.")] = None,
    older_than: Annotated[
        str | None, typer.Option(help="Only what ended at least so long ago: 90s, 30m, 12h or 90d.")
    ] = None,
    rollout: Annotated[list[str] | None, typer.Option(help="Only this rollout; may be given again.")] = None,
    yes: Yes = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Tell what would be deleted.")] = False,
    url: Url = None,
    key: Key = None,
    path: Path_ = None,
    as_json: AsJson = False,
) -> None:
    """Delete rollouts with their calls, texts and token files for good. Models and checkpoints stay.

    Rollouts that run, and those that a training job is about to read, are kept. Backups are not touched.

    Examples:

      art data purge --project shop --older-than 90d

      art data purge --rollout ro-5d41402abc4b2a76b9719d911017c592 --yes
    """
    if project is None and older_than is None and not rollout:
        raise WrongUsage(
            "nothing says what to delete", hint="--project NAME, --older-than 90d, --rollout ID, or several"
        )
    age = None if older_than is None else seconds_of(older_than, "--older-than")
    wanted = PurgeData(project=project, older_than_seconds=age, rollout_ids=rollout or None, dry_run=True)
    with backend_of(url, key, path) as backend:
        found = run_to_the_end(backend.connection.request("POST", ROUTE, body=wanted))
        if not dry_run:
            if not yes:
                typer.confirm(f"Delete {line(Purged.model_validate(found))}?", abort=True, err=True)
            wanted = wanted.model_copy(update={"dry_run": False})
            found = run_to_the_end(backend.connection.request("POST", ROUTE, body=wanted))
    told = Purged.model_validate(found)
    typer.echo(
        told.model_dump_json(indent=2)
        if as_json
        else f"{'would delete' if dry_run else 'deleted'} {line(told)}"
    )


def line(told: Purged) -> str:
    """For a person."""
    parts = [
        f"{told.rollouts} rollouts",
        f"{told.calls} calls",
        f"{told.upstream_calls} calls to other models",
        f"{told.logged_trajectories} logged trajectories",
        f"{told.token_files} token files",
    ]
    kept = [
        f"{count} {why}"
        for count, why in (
            (told.kept_running, "that run"),
            (told.kept_in_jobs, "that a job is about to read"),
        )
        if count
    ]
    return ", ".join(parts) + (f"; kept: {', '.join(kept)}" if kept else "")


RETENTION = "/api/v1/data/retention"
retention = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="How long a project's data is kept.",
)
group.add_typer(retention, name="retention")
Project = Annotated[str, typer.Option("--project", help="Whose data.")]


@retention.callback()
def retention_root() -> None:
    """How long a project's data is kept."""


@retention.command("set")
def set_retention(
    *,
    project: Project,
    keep: Annotated[str, typer.Option(help="From a rollout's end: 12h, 30d or 90d.")],
    yes: Yes = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Tell what would be deleted now.")] = False,
    url: Url = None,
    key: Key = None,
    path: Path_ = None,
    as_json: AsJson = False,
) -> None:
    """Delete a project's rollouts once they are older than that: now, and from now on by itself while the server runs.

    With a rollout go its calls, texts and token files, whether it was trained or not. Models and checkpoints stay.

    Examples:

      art data retention set --project shop --keep 30d

      art data retention set --project shop --keep 7d --dry-run
    """
    wanted = SetRetention(project=project, keep_seconds=_kept_seconds(keep), dry_run=True)
    with backend_of(url, key, path) as backend:
        found = run_to_the_end(backend.connection.request("POST", RETENTION, body=wanted))
        if not dry_run:
            told = RetentionSet.model_validate(found)
            if not yes:
                question = f"Keep {project}'s data for {keep}, and delete {line(told.purged)} now?"
                typer.confirm(question, abort=True, err=True)
            wanted = wanted.model_copy(update={"dry_run": False})
            found = run_to_the_end(backend.connection.request("POST", RETENTION, body=wanted))
    told = RetentionSet.model_validate(found)
    said = "would delete" if dry_run else f"{project} keeps its data for {keep}; deleted"
    typer.echo(told.model_dump_json(indent=2) if as_json else f"{said} {line(told.purged)}")


@retention.command("clear")
def clear_retention(
    *, project: Project, url: Url = None, key: Key = None, path: Path_ = None, as_json: AsJson = False
) -> None:
    """Keep a project's data until it is purged by hand, as without a retention.

    Examples:

      art data retention clear --project shop

      art data retention clear --project shop --url http://gpu:7999
    """
    wanted = SetRetention(project=project, keep_seconds=None)
    with backend_of(url, key, path) as backend:
        found = run_to_the_end(backend.connection.request("POST", RETENTION, body=wanted))
    told = RetentionSet.model_validate(found)
    typer.echo(told.model_dump_json(indent=2) if as_json else f"{project} keeps its data")


@retention.command("list")
def list_retentions(*, url: Url = None, key: Key = None, path: Path_ = None, as_json: AsJson = False) -> None:
    """The projects whose data is deleted by age.

    Examples:

      art data retention list

      art data retention list --json --url http://gpu:7999
    """
    with backend_of(url, key, path) as backend:
        found = run_to_the_end(backend.connection.request("GET", RETENTION))
    told = RetentionList.model_validate(found)
    shown = [f"{row.project}  {row.keep_seconds / DAY:g} days" for row in told.retentions]
    typer.echo(
        told.model_dump_json(indent=2) if as_json else "\n".join(shown or ["none: everything is kept"])
    )


def _kept_seconds(text: str) -> float:
    seconds = seconds_of(text, "--keep")
    if seconds == 0:
        raise WrongUsage("--keep 0 would keep nothing", hint="to delete everything now: art data purge")
    return seconds
