"""`art rollouts`: run a program on many scenarios, several times each, and perhaps train on what it did."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer
from pydantic import BaseModel, ConfigDict, Field

from art.cli._output import ProgramRuns
from art.cli._served import (
    AsJson,
    Key,
    ModelName,
    Path_,
    Url,
    backend_of,
    choose_model,
    run_to_the_end,
)
from art.cli._served import (
    BaseModel as BaseModelName,
)
from art.cli._settings import Set, checked, only, parsed
from art.cli._units import Seconds, count_option
from art.cli._usage import WrongUsage
from art.cli.rollout import (
    CONTEXT,
    NO_REWARD,
    Command,
    RewardCommand,
    explain_hint,
    program_of,
)
from art.errors import ConfigError
from art.types.policy import Purpose, RolloutStatus

if TYPE_CHECKING:
    from art.backends.results import TrainResult
    from art.backends.server import ServerBackend
    from art.config.train import TrainConfig
    from art.rollouts.command import Program
    from art.rollouts.program_groups import ScenarioRuns

__all__ = ["CONTEXT", "JSON", "command"]

JSON = "art.cli._output:ProgramRuns"
SECTIONS = ("train", "rollout")

Scenarios = Annotated[Path, typer.Option(help="One JSON value a line; each is one scenario.")]
Out = Annotated[Path | None, typer.Option(help="Add the groups to this file, one JSON object a line.")]


class RolloutSettings(BaseModel):
    """What `--set rollout.NAME=VALUE` can say."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    purpose: Purpose = Purpose.TRAIN
    """evaluate leaves the program's sampling as it is."""
    seed: int | None = Field(None, ge=0)
    """Of the draws; None is another one each time."""
    timeout: Seconds | None = None
    """For one run; None is an hour."""


def command(
    program: Command,
    *,
    scenarios: Scenarios,
    group: Annotated[int, count_option("Runs of each scenario.", at_least=1)] = 8,
    concurrency: Annotated[int, count_option("Programs at the same time.", at_least=1)] = 8,
    out: Annotated[
        Path | None, typer.Option(help="Add the groups to this file, one JSON object a line.")
    ] = None,
    train: Annotated[bool, typer.Option("--train", help="Train one step on the groups.")] = False,
    model: ModelName = None,
    base_model: BaseModelName = None,
    reward_command: RewardCommand = None,
    set_: Set = None,
    url: Url = None,
    key: Key = None,
    path: Path_ = None,
    as_json: AsJson = False,
) -> None:
    """Run a program on every scenario of a file, --group times each; see `art rollout` for what the program finds.

    A run that crashes ends no other. What the programs print goes to stderr; stdout gets a line for each group.

    Exit status: 0 when every run has a reward and a call to train on, 1 when ART failed, 2 for a wrong command line,
    3 when some run has none, 130 after Ctrl-C.

    Examples:

      art rollouts --model shop/agent --scenarios cities.jsonl --group 8 -- node agent.js

      art rollouts --model shop/agent --scenarios cities.jsonl --train --set train.learning_rate=1e-4 -- ./agent
    """
    from art.config.load import load_config
    from art.rollouts.program_groups import read_scenarios

    given = read_scenarios(scenarios)
    more = only(parsed(set_ or []), SECTIONS)
    how = checked(RolloutSettings, "rollout", more.get("rollout", {}))
    made = program_of(program, reward_command, how.timeout)
    if train and (how.purpose is Purpose.EVALUATE or "@" in (model or "")):
        raise WrongUsage("--train needs runs of the latest step with purpose train")
    settings = more.get("train", {})
    if settings and not train:
        raise WrongUsage(f"--set train.{next(iter(settings))} would be ignored", hint="add --train")
    learning = load_config(flags={"train": settings}).train if train else None
    draws = secrets.randbelow(2**31) if how.seed is None else how.seed
    runner = {"size": group, "concurrency": concurrency, "seed": draws, "purpose": how.purpose}
    with backend_of(url, key, path) as backend, _writer(out) as file:
        work = _run(
            backend, (model, base_model), made, given, runner, out=file, train=learning, quiet=as_json
        )
        results, trained = run_to_the_end(work)
    if as_json:
        found = {"groups": [one.summary() for one in results], "train": trained}
        typer.echo(ProgramRuns.model_validate(found).model_dump_json())
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
    train: TrainConfig | None,
    quiet: bool,
) -> tuple[list[ScenarioRuns], dict[str, Any] | None]:
    """The groups' runs, and what became of the train call; without `train` there is none."""
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
    done = await chosen.model.train(groups, config=train)
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
