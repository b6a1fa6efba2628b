"""`art checkpoint`: a model's published steps, where each comes from, and which one is the latest."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from art.cli._output import Lineage, print_json
from art.cli._served import AsJson, Key, ModelName, Path_, Url, Yes, backend_of, find_model, run_to_the_end
from art.types.wire import (
    Checkpoint,
    CheckpointList,
    DeleteCheckpoints,
    DeletedCheckpoints,
    ModelInfo,
    RollBack,
)

if TYPE_CHECKING:
    from art.backends.server import ServerBackend

group = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="A model's published steps: list, lineage, roll back, delete.",
)
JSON = {
    "list": "art.types.wire:CheckpointList",
    "lineage": "art.cli._output:Lineage",
    "rollback": "art.types.wire:ModelInfo",
    "delete": "art.types.wire:DeletedCheckpoints",
}


@group.command("list")
def list_steps(
    *, model: ModelName = None, url: Url = None, key: Key = None, path: Path_ = None, as_json: AsJson = False
) -> None:
    """The steps that are there, oldest first: parent, time and mean training reward. The latest has a star.

    Examples:

      art checkpoint list --model shop/agent

      art checkpoint list --json --url http://gpu:7999
    """
    with backend_of(url, key, path) as backend:
        info, found = run_to_the_end(_steps(backend, model))
    if as_json:
        print_json(found)
        return
    for checkpoint in found.checkpoints:
        typer.echo(line(checkpoint, latest=info.step))


@group.command()
def lineage(
    step: Annotated[
        int | None, typer.Argument(help="Of this step; default: the latest.", metavar="STEP")
    ] = None,
    *,
    model: ModelName = None,
    url: Url = None,
    key: Key = None,
    path: Path_ = None,
    as_json: AsJson = False,
) -> None:
    """The steps that one was trained from, back to the first, and the model that it was forked from.

    A step whose parent was deleted ends the list: its number is shown with `deleted`.

    Examples:

      art checkpoint lineage --model shop/agent

      art checkpoint lineage 12 --model shop/agent --json
    """
    with backend_of(url, key, path) as backend:
        info, found = run_to_the_end(_steps(backend, model))
    wanted = info.step if step is None else step
    line_of, missing = ancestors({one.step: one for one in found.checkpoints}, wanted)
    forks = [note for note in info.notes if note.startswith("forked from")]
    if as_json:
        print_json(Lineage(steps=line_of, deleted=missing, forks=forks))
        return
    for checkpoint in line_of:
        typer.echo(line(checkpoint, latest=info.step))
    if missing is not None:
        typer.echo(f"  {missing}  deleted, or of another model")
    for note in forks:
        typer.echo(f"  {note}")


@group.command()
def rollback(
    step: Annotated[int, typer.Argument(help="The step that becomes the latest.", metavar="STEP")],
    *,
    yes: Yes = False,
    model: ModelName = None,
    url: Url = None,
    key: Key = None,
    path: Path_ = None,
    as_json: AsJson = False,
) -> None:
    """Make an earlier step the latest again. Nothing is deleted: later steps stay, and the next one comes after them.

    Undone by rolling "back" to the later step.

    Examples:

      art checkpoint rollback 7 --model shop/agent

      art checkpoint rollback 7 --model shop/agent --yes --url http://gpu:7999
    """
    with backend_of(url, key, path) as backend:
        info = run_to_the_end(find_model(backend, model))
        if not yes:
            typer.confirm(
                f"Serve and train step {step} of {info.inference_name} instead of {info.step}?",
                abort=True,
                err=True,
            )
        body = RollBack(step=step)
        answer = run_to_the_end(backend.connection.request("POST", f"{_route(info)}/rollback", body=body))
    now = ModelInfo.model_validate(answer)
    if as_json:
        print_json(now)
    else:
        typer.echo(f"{now.inference_name} is at step {now.step} (was {info.step})")


@group.command()
def delete(
    steps: Annotated[list[int], typer.Argument(help="The steps to delete.", metavar="STEP...")],
    *,
    yes: Yes = False,
    model: ModelName = None,
    url: Url = None,
    key: Key = None,
    path: Path_ = None,
    as_json: AsJson = False,
) -> None:
    """Delete steps for good: all of them or none. The latest, and those that open rollouts use, are refused.

    Examples:

      art checkpoint delete 3 4 --model shop/agent

      art checkpoint delete 3 --model shop/agent --yes --json
    """
    with backend_of(url, key, path) as backend:
        info = run_to_the_end(find_model(backend, model))
        if not yes:
            named = ", ".join(map(str, steps))
            typer.confirm(f"Delete step {named} of {info.inference_name} for good?", abort=True, err=True)
        body = DeleteCheckpoints(steps=steps)
        answer = run_to_the_end(
            backend.connection.request("DELETE", f"{_route(info)}/checkpoints", body=body)
        )
    told = DeletedCheckpoints.model_validate(answer)
    if as_json:
        print_json(told)
        return
    for number in told.deleted:
        typer.echo(f"deleted {number}")
    for number in told.missing:
        typer.echo(f"there was no step {number}", err=True)


def ancestors(steps: dict[int, Checkpoint], step: int) -> tuple[list[Checkpoint], int | None]:
    """From `step` back to the first; and the number of a parent that is not there, where the line breaks."""
    found: list[Checkpoint] = []
    wanted: int | None = step
    while wanted is not None:
        if wanted not in steps:
            return found, wanted
        found.append(steps[wanted])
        wanted = found[-1].parent_step
    return found, None


def line(checkpoint: Checkpoint, *, latest: int) -> str:
    """A step for a person."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(checkpoint.created_at))
    parent = "first" if checkpoint.parent_step is None else f"after {checkpoint.parent_step}"
    reward = checkpoint.metrics.get("train/reward", checkpoint.metrics.get("reward"))
    told = "" if reward is None else f"  reward {reward:.3f}"
    return f"{'*' if checkpoint.step == latest else ' '} {checkpoint.step}  {when}  {parent}{told}"


async def _steps(backend: ServerBackend, model: str | None) -> tuple[ModelInfo, CheckpointList]:
    info = await find_model(backend, model)
    answer: Any = await backend.connection.request("GET", f"{_route(info)}/checkpoints")
    return info, CheckpointList.model_validate(answer)


def _route(info: ModelInfo) -> str:
    return f"/api/v1/models/{info.project}/{info.name}"
