"""`art demo`: train a small real model on a task, and show that it learned."""

from __future__ import annotations

import asyncio
import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

NOT_IMPROVED = 3
"""Exit status when the held-out reward did not rise by more than chance explains."""


class TaskName(StrEnum):
    """The tasks at hand."""

    WEATHER = "weather"
    TICTACTOE = "tictactoe"


def command(
    task: Annotated[
        TaskName, typer.Option(help="weather: a multi-turn tool agent. tictactoe: one minute.")
    ] = TaskName.WEATHER,
    seed: Annotated[int, typer.Option(help="Of scenarios and sampling.")] = 0,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Train calls at most; by default the task's own number.")
    ] = None,
    path: Annotated[Path, typer.Option(help="Folder of models and records.")] = Path(".art"),
    base_model: Annotated[str | None, typer.Option(help="Another base model: a folder or a hub id.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Only the result on stdout; progress goes to stderr.")
    ] = False,
) -> None:
    """Train a small model on an agent task and show the agent before and after.

    The last line is the result as JSON. Exit status 3 when the model did not improve.

    Examples:  art demo --task tictactoe  |  art demo --seed 1 --json
    """
    from rich.console import Console

    from art.demo import plot
    from art.demo.live import Display, transcript
    from art.demo.run import BASE_MODEL, PROJECT, Options, demonstrate
    from art.demo.tasks import TASKS

    plot.available()
    chosen = TASKS[task]
    console = Console(stderr=as_json)
    options = Options(seed=seed, steps=steps, path=path, base_model=base_model or BASE_MODEL)
    with Display(console, f"art demo: {chosen.title}") as display:
        outcome = asyncio.run(demonstrate(chosen, options, display))
    for title, turns in (("before", outcome.run_before), ("after", outcome.run_after)):
        display.say(f"\nthe same scenario {title}:\n{transcript(turns)}")
    file = plot.plot_rewards(outcome, path / PROJECT / f"{outcome.task}-seed{seed}.png")
    display.say(f"\nreward curve: {file}")
    if not outcome.improved:
        display.say("the model did not improve by more than chance explains")
    typer.echo(json.dumps(outcome.summary()))
    if not outcome.improved:
        raise typer.Exit(NOT_IMPROVED)
