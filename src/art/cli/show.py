"""`art show`: one run, step, group, rollout or scenario, as the dashboard shows it."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from art.cli._complete import model_names
from art.cli._output import ShownStep, print_json
from art.cli._served import AsJson, Key, ReadPath, Url
from art.cli._usage import WrongUsage
from art.cli._views import Views, read, run_path
from art.errors import NotFound
from art.types.wire import CheckpointList
from art.types.wire_views import (
    GroupDetail,
    RunDetail,
    ScenarioDetail,
    StepLine,
    StepList,
    TrajectoryDetail,
)

JSON = (
    "art.types.wire_views:RunDetail",
    "art.cli._output:ShownStep",
    "art.types.wire_views:GroupDetail",
    "art.types.wire_views:ScenarioDetail",
    "art.types.wire_views:TrajectoryDetail",
)
Shown = RunDetail | ShownStep | GroupDetail | ScenarioDetail | TrajectoryDetail
ROLLOUT = "ro-"
"""What the ids of rollouts begin with that ART makes itself."""
MAX_STEPS = 100_000
"""Train calls that are looked through for one step."""


def command(
    target: Annotated[
        str | None,
        typer.Argument(
            help="project/name, project/name@step, or a rollout's id.",
            metavar="TARGET",
            autocompletion=model_names,
        ),
    ] = None,
    *,
    group: Annotated[str | None, typer.Option(help="A group of the run: its rollouts side by side.")] = None,
    scenario: Annotated[str | None, typer.Option(help="A scenario of the run: before and after.")] = None,
    rollout: Annotated[str | None, typer.Option(help="A rollout whose id looks like a run's name.")] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Long texts whole on a terminal too; a run's defaults as well.")
    ] = False,
    url: Url = None,
    key: Key = None,
    path: ReadPath = None,
    as_json: AsJson = False,
) -> None:
    """Show a run, one of its steps, a group, a scenario, or a rollout with all that was said in it.

    A rollout is shown call by call: reasoning, text, tool calls and results, branches, and for everything sampled
    whether it was trained, or why not.

    Examples:

      art show shop/agent@12

      art show ro-5d41402abc4b2a76b9719d911017c592 --full | less -R
    """
    shown = read(
        lambda views: find(views, target, group=group, scenario=scenario, rollout=rollout), url, key, path
    )
    if as_json:
        print_json(shown)
        return
    for line in lines(shown, full=full):
        typer.echo(line)


def lines(shown: Shown, *, full: bool) -> list[str]:
    """For a person."""
    from art.cli import _shown, _trajectory

    match shown:
        case TrajectoryDetail():
            return _trajectory.lines(shown, full=full)
        case GroupDetail():
            return _shown.group(shown, full=full)
        case ScenarioDetail():
            return _shown.scenario(shown)
        case ShownStep():
            return _shown.step(shown)
        case RunDetail():
            return _shown.run(shown, full=full)


async def find(
    views: Views, target: str | None, *, group: str | None, scenario: str | None, rollout: str | None
) -> Shown:
    """What the command line names. WrongUsage for two things at once, NotFound for what is not there."""
    _one_of(group=group, scenario=scenario, rollout=rollout)
    if rollout is None and target is not None and target.startswith(ROLLOUT):
        target, rollout = None, target
    if rollout is not None:
        if target is not None or group is not None or scenario is not None:
            raise WrongUsage("a rollout's id is all that is needed", hint=f"art show {rollout}")
        return await _rollout(views, rollout)
    name, at, number = (target or "").partition("@")
    try:
        run = await views.run(name or None)
    except NotFound as error:
        return await _no_run(views, name, error)
    if group is not None:
        return await views.get(GroupDetail, run_path(run, "groups", group))
    if scenario is not None:
        return await views.get(ScenarioDetail, run_path(run, "scenarios", scenario))
    if not at:
        return await views.get(RunDetail, run_path(run))
    if not number.isdecimal():
        raise WrongUsage(f"{target!r} names no step", hint="project/name@3")
    return await _step(views, run, int(number))


async def _rollout(views: Views, rollout: str) -> TrajectoryDetail:
    return await views.get(TrajectoryDetail, f"/rollouts/{quote(rollout, safe='')}")


async def _no_run(views: Views, name: str, error: NotFound) -> TrajectoryDetail:
    """What is the name of no run may be a rollout's id that a client chose."""
    try:
        return await _rollout(views, name)
    except NotFound:
        raise NotFound(
            f"there is no run and no rollout {name!r}", cause=error.cause, hint="art ls; art ls rollouts"
        ) from None


def _one_of(**given: Any) -> None:
    names = [f"--{name}" for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise WrongUsage(f"{' and '.join(names)} name two things", hint="give one of them")


async def _step(views: Views, run: tuple[str, str], number: int) -> ShownStep:
    """A published step: its checkpoint, where it is still there, and the train call that published it."""
    route = f"/api/v1/models{run_path(run).removeprefix('/runs')}/checkpoints"
    checkpoints = (await views.get(CheckpointList, route)).checkpoints
    checkpoint = next((one for one in checkpoints if one.step == number), None)
    line = await train_call(views, run, number)
    if checkpoint is None and line is None:
        raise NotFound(
            f"{'/'.join(run)} has no step {number}", hint=f"art ls checkpoints {'/'.join(run)} lists them"
        )
    return ShownStep(model=f"{'/'.join(run)}@{number}", checkpoint=checkpoint, step=line)


async def train_call(views: Views, run: tuple[str, str], number: int) -> StepLine | None:
    """The train call that published a step."""
    async for page in views.pages(StepList, run_path(run, "steps"), limit=MAX_STEPS):
        for line in page.steps:
            if line.published and line.step == number:
                return line
    return None
