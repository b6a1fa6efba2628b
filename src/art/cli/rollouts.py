"""`art rollouts`: run a program on many scenarios, several times each, and perhaps train on what it did."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from art.cli._served import (
    BaseModel,
    Key,
    ModelName,
    Path_,
    Url,
    backend_of,
    choose_model,
    run_to_the_end,
)
from art.cli._usage import WrongUsage
from art.cli.rollout import (
    CONTEXT,
    NO_REWARD,
    Command,
    Purpose_,
    RewardCommand,
    Seed,
    Timeout,
    explain_hint,
    program_of,
)
from art.errors import ConfigError
from art.types.policy import Purpose, RolloutStatus

if TYPE_CHECKING:
    from art.backends.results import TrainResult
    from art.backends.server import ServerBackend
    from art.rollouts.command import Program
    from art.rollouts.program_groups import ScenarioRuns

__all__ = ["CONTEXT", "command"]

Scenarios = Annotated[Path, typer.Option(help="One JSON value a line; each is one scenario.")]
Out = Annotated[Path | None, typer.Option(help="Add the groups to this file, one JSON object a line.")]
LearningRate = Annotated[float | None, typer.Option(min=0, help="Of that step.", show_default=False)]


def command(
    program: Command,
    *,
    scenarios: Scenarios,
    group: Annotated[int, typer.Option(min=1, help="Runs of each scenario.")] = 8,
    concurrency: Annotated[int, typer.Option(min=1, help="Programs at the same time.")] = 8,
    out: Annotated[
        Path | None, typer.Option(help="Add the groups to this file, one JSON object a line.")
    ] = None,
    train: Annotated[bool, typer.Option("--train", help="Train one step on the groups.")] = False,
    learning_rate: LearningRate = None,
    model: ModelName = None,
    base_model: BaseModel = None,
    purpose: Purpose_ = Purpose.TRAIN,
    reward_command: RewardCommand = None,
    timeout: Timeout = None,
    seed: Seed = None,
    url: Url = None,
    key: Key = None,
    path: Path_ = None,
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON on stdout.")] = False,
) -> None:
    """Run a program on every scenario of a file, --group times each; see `art rollout` for what the program finds.

    A run that crashes ends no other. What the programs print goes to stderr; stdout gets a line for each group.

    Exit status: 0 when every run has a reward and a call to train on, 1 when ART failed, 2 for a wrong command line,
    3 when some run has none, 130 after Ctrl-C.

    Examples:

      art rollouts --model shop/agent --scenarios cities.jsonl --group 8 -- node agent.js

      art rollouts --model shop/agent --scenarios cities.jsonl --train --learning-rate 1e-4 -- ./agent
    """
    from art.rollouts.program_groups import read_scenarios

    given = read_scenarios(scenarios)
    made = program_of(program, reward_command, timeout)
    if train and (purpose is Purpose.EVALUATE or "@" in (model or "")):
        raise WrongUsage("--train needs runs of the latest step with --purpose train")
    if learning_rate is not None and not train:
        raise WrongUsage("--learning-rate would be ignored", hint="add --train")
    draws = secrets.randbelow(2**31) if seed is None else seed
    runner = {"size": group, "concurrency": concurrency, "seed": draws, "purpose": purpose}
    settings = {"learning_rate": learning_rate} if train else None
    with backend_of(url, key, path) as backend, _writer(out) as file:
        work = _run(
            backend, (model, base_model), made, given, runner, out=file, train=settings, quiet=as_json
        )
        results, trained = run_to_the_end(work)
    if as_json:
        typer.echo(json.dumps({"groups": [one.summary() for one in results], "train": trained}))
    typer.echo(explain_hint(_example(results), url, backend), err=True)
    good = sum(run.reward is not None and run.calls > 0 for one in results for run in one.runs)
    if good < group * len(given):
        raise typer.Exit(NO_REWARD)


async def _run(
    backend: ServerBackend,
    names: tuple[str | None, str | None],
    program: Program,
    scenarios: list[Any],
    runner: dict[str, Any],
    *,
    out: IO[str] | None,
    train: dict[str, Any] | None,
    quiet: bool,
) -> tuple[list[ScenarioRuns], dict[str, Any] | None]:
    """The groups' runs, and what became of the train call; `train` holds its settings, None trains nothing."""
    from art.config.train import TrainConfig
    from art.rollouts.program_groups import GroupRunner

    chosen = await choose_model(backend, *names)
    lines = Lines()

    def complete(result: ScenarioRuns) -> None:
        lines.flush(f"{result.label}#")
        typer.echo(result.line(), err=quiet)
        for error in dict.fromkeys(one.reason for one in result.runs if one.error is not None):
            typer.echo(f"  {error.splitlines()[0]}", err=True)
        if out is not None:
            assert result.group is not None
            out.write(
                json.dumps({"scenario": result.scenario, **result.group.model_dump(mode="json")}) + "\n"
            )
            out.flush()

    made = GroupRunner(model=chosen.model, program=program, step=chosen.step, on_output=lines.add, **runner)
    results = await made.run(scenarios, on_group=complete)
    if train is None:
        return results, None
    groups = [one.group for one in results if one.group is not None]
    done = await chosen.model.train(
        groups, config=TrainConfig(**{k: v for k, v in train.items() if v is not None})
    )
    said = f"step {done.step} published" if done.published else f"no step published: {_why(done)}"
    typer.echo(f"{chosen.model.name}: {said}", err=quiet)
    return results, {
        "step": done.step,
        "published": done.published,
        "reason": done.reason,
        "checkpoint_path": getattr(done, "checkpoint_path", None),
    }


def _why(result: TrainResult) -> str:
    """Why nothing was published, in words."""
    statuses = {outcome.status for outcome in result.trajectories}
    if statuses != {RolloutStatus.ZERO_VARIANCE}:
        return result.reason
    return (
        "the runs of each scenario got the same reward, so there is nothing to compare "
        "(rewards are shown above; --group 1 never has a difference)"
    )


def _example(results: list[ScenarioRuns]) -> str:
    """A rollout worth looking at: one that went wrong, else the first."""
    runs = [run for one in results for run in one.runs]
    wrong = [run for run in runs if run.error is not None or not run.calls]
    return next((run.rollout_id for run in [*wrong, *runs]), "ROLLOUT")


LONGEST_LINE = 8192
"""Bytes after which a line is shown in parts."""


class Lines:
    """What the programs print, line by line behind the run's label: they run side by side."""

    def __init__(self) -> None:
        self._parts: dict[str, bytes] = {}

    def add(self, label: str, part: bytes) -> None:
        """More output of one run."""
        *whole, rest = (self._parts.get(label, b"") + part).split(b"\n")
        while len(rest) > LONGEST_LINE:  # and what is kept stays short, so that adding to it stays cheap
            whole.append(rest[:LONGEST_LINE])
            rest = rest[LONGEST_LINE:]
        self._parts[label] = rest
        for line in whole:
            self._show(label, line)

    def flush(self, prefix: str) -> None:
        """Show the unfinished last lines of the runs whose label begins so."""
        for label in [label for label in self._parts if label.startswith(prefix)]:
            if rest := self._parts.pop(label):
                self._show(label, rest)

    @staticmethod
    def _show(label: str, line: bytes) -> None:
        from art.utils.console import say

        say(f"{label} | {line.decode(errors='replace').rstrip()}", style="dim")


@contextmanager
def _writer(file: Path | None) -> Iterator[IO[str] | None]:
    """`file`, to be added to; ConfigError before anything runs when it cannot be written."""
    if file is None:
        yield None
        return
    try:
        opened = file.open("a", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file} cannot be written", cause=str(error)) from error
    with opened:
        yield opened
