"""`art config`: the settings of a run, who set them, and whether they go together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from art.cli._settings import File, Set, settings_of
from art.cli._usage import WrongUsage

if TYPE_CHECKING:
    from art.config.load import Loaded

JSON = {"show": "art.types.wire_views:RunConfig", "check": "art.cli._output:RunnableRun"}
group = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="The settings of a run: what they are, who set them, whether they go together.",
)


@group.command()
def show(
    file: File = None,
    *,
    set_: Set = None,
    origin: Annotated[
        bool, typer.Option("--origin", help="Who set each: the file's line, a variable, a flag, or default.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help='{"config": {...}, "origin": {...}} on stdout.')
    ] = False,
) -> None:
    """Every setting of a run with its value, as TOML that gives the same run.

    Over one another, the last wins: default, file, environment (ART_TRAIN__LEARNING_RATE), flag.

    Exit status: 0, 1 for settings that cannot be, 2 for a wrong command line.

    Examples:

      art config show --origin

      art config show weather/run.toml --set train.learning_rate=1e-4 --json
    """
    from art.config.resolved import kinds_of_origin, leaves, resolved, to_toml, who_set

    loaded = settings_of(file, set_)
    data = resolved(loaded, server_path=_server_path(loaded))
    if as_json:
        typer.echo(json.dumps({"config": data, "origin": kinds_of_origin(loaded, data)}, indent=2))
        return
    told = {name: who_set(loaded, name) for name, _ in leaves(data)} if origin else None
    typer.echo(to_toml(data, told), nl=False)


@group.command()
def check(
    file: File = None,
    *,
    set_: Set = None,
    as_json: Annotated[bool, typer.Option("--json", help="What was found, as JSON.")] = False,
) -> None:
    """Whether a run could start: settings known and possible, agent and reward importable, scenarios readable.

    Nothing is started or trained. Exit status: 0, 1 with what is wrong, 2 for a wrong command line.

    Examples:

      art config check

      art config check weather/run.toml --set run.steps=1k --json
    """
    from art.config.runnable import require_runnable
    from art.run.parts import load_parts

    loaded = settings_of(file, set_)
    if loaded.file is None and not loaded.origins:
        raise WrongUsage("there is no run.toml here", hint="name the file: art config check FOLDER/run.toml")
    require_runnable(loaded)
    parts = load_parts(loaded)
    run = loaded.run
    rollouts = run.steps * run.groups_per_step * run.rollouts_per_group
    found = {
        "model": f"{loaded.model.project}/{loaded.model.name}",
        "scenarios": len(parts.scenarios),
        "held_out": len(parts.held_out),
        "steps": run.steps,
        "rollouts": rollouts,
        "concurrency": parts.concurrency,
    }
    if as_json:
        typer.echo(json.dumps(found))
        return
    held_out = f", {len(parts.held_out)} held out" if parts.held_out else ""
    typer.echo(
        f"{found['model']}: {len(parts.scenarios)} scenarios{held_out}; {run.steps} batches of "
        f"{run.groups_per_step} x {run.rollouts_per_group} rollouts, {rollouts} in all, {parts.concurrency} at a time"
    )


def _server_path(loaded: Loaded) -> Path:
    """The folder of the server that a run would use."""
    from art.backends.local import default_path

    return loaded.server.path if "server.path" in loaded.origins else default_path(Path.cwd())
