"""`art demo`: train a small real model on a task, and show that it learned."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from art.cli._output import DemoResult
from art.cli._served import AsJson
from art.cli._units import count_option

JSON = "art.cli._output:DemoResult"
NOT_IMPROVED = 3
"""Exit status when the held-out reward did not rise by more than chance explains."""


class TaskName(StrEnum):
    """The tasks at hand."""

    WEATHER = "weather"
    TICTACTOE = "tictactoe"
    GUESS = "guess"


def command(
    task: Annotated[
        TaskName,
        typer.Option(help="weather: a multi-turn tool agent. tictactoe: one minute. guess: fifteen."),
    ] = TaskName.WEATHER,
    seed: Annotated[int, typer.Option(help="Of scenarios and sampling.")] = 0,
    steps: Annotated[
        int | None,
        count_option("Train calls at most; by default the task's own number.", at_least=1),
    ] = None,
    path: Annotated[Path, typer.Option(help="Folder of models and records.")] = Path(".art"),
    base_model: Annotated[str | None, typer.Option(help="Another base model: a folder or a hub id.")] = None,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="The same seed gives the same run, bit by bit; slower.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train a small model on an agent task and show the agent before and after.

    The last line is the result as JSON; with --json nothing else is on stdout. Exit status 3 when the model did not improve.

    Examples:

      art demo --task tictactoe

      art demo --seed 1 --json
    """
    from rich.console import Console

    from art.demo import plot
    from art.demo.live import Display, transcript
    from art.demo.run import BASE_MODEL, PROJECT, Options, demonstrate
    from art.demo.tasks import TASKS
    from art.utils.console import console

    plot.available()
    chosen = TASKS[task]
    options = Options(
        seed=seed,
        steps=steps,
        path=path,
        base_model=base_model or BASE_MODEL,
        deterministic=deterministic,
    )
    # The client's own notices go to the same console: one terminal has room for one live display.
    with Display(console(), f"art demo: {chosen.title}") as display:
        outcome = asyncio.run(demonstrate(chosen, options, display))
    report = console() if as_json else Console(markup=False, highlight=False, soft_wrap=True)
    for title, turns in (("before", outcome.run_before), ("after", outcome.run_after)):
        report.print(f"the same scenario {title}:\n{transcript(turns)}\n", markup=False)
    file = plot.plot_rewards(outcome, path / PROJECT / f"{outcome.task}-seed{seed}.png")
    report.print(f"reward curve: {file}", markup=False)
    if not outcome.improved:
        report.print("the model did not improve by more than chance explains")
    typer.echo(DemoResult.model_validate(outcome.summary()).model_dump_json())
    if not outcome.improved:
        raise typer.Exit(NOT_IMPROVED)
