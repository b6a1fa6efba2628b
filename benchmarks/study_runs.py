"""The learning study's runs: which there are, how one is made, and what is kept of it."""

from __future__ import annotations

import asyncio
import json
import math
import os
import platform
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench_demo import cpu_name, now

import art
from art.config.train import LOSSES, chosen_by_size
from art.demo import cold
from art.demo.live import Display
from art.demo.run import BASE_MODEL, Options, demonstrate
from art.demo.step_record import StepRecord
from art.demo.task import Task
from art.demo.tasks import TASKS
from art.errors import TrainingFailed, boundary
from art.evals.intervals import Mean
from art.utils.console import console

DEFAULTS = "defaults"
VARIANTS: dict[str, dict[str, Any]] = {
    "dr_grpo": {"advantages": "dr_grpo", "loss_aggregation": "token"},
    **{loss: {"loss_fn": loss} for loss in ("gspo", "cispo") if loss != LOSSES[0]},
}
"""What is compared with the default loss, on the weather task. With one update `ppo` has the gradient of `cispo`."""
PARAMETERS = 135_000_000
"""Of the base model, about: what the defaults are chosen by."""
SEEDS, FEWER_SEEDS = range(5), range(3)
DISTRIBUTIONS = ("agent-reinforcement-trainer", "torch", "transformers", "peft", "openai")


@dataclass(frozen=True, slots=True)
class Run:
    """One training of one model."""

    task: str
    variant: str
    seed: int
    train: Mapping[str, Any] = field(default_factory=dict)
    """Options of `art.TrainConfig` beside the defaults."""

    @property
    def name(self) -> str:
        """Of the run, of its file."""
        return f"{self.task}-{self.variant}-seed{self.seed}"


RUNS = (
    *(Run("guess", DEFAULTS, seed) for seed in SEEDS),
    *(Run("cold", DEFAULTS, seed) for seed in FEWER_SEEDS),
    *(Run(task, DEFAULTS, seed) for task in ("weather", "tictactoe") for seed in SEEDS),
    *(Run("weather", variant, seed, train) for variant, train in VARIANTS.items() for seed in FEWER_SEEDS),
    Run("guess", "no_entropy", 0, {"entropy_coef": 0.0}),
)
"""In the order in which they are made."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the study works, and what a trial changes."""

    results: Path
    scratch: Path
    """Models of the run in progress; the converted base model."""
    base_model: str = BASE_MODEL
    steps: int | None = None
    held_out: int | None = None

    def file(self, run: Run) -> Path:
        """Where a run's result lies, once it has ended."""
        return self.results / f"{run.name}.json"


def task_of(run: Run) -> Task:
    """The run's task."""
    return cold.TASK if run.task == cold.TASK.name else TASKS[run.task]


def settings(run: Run, place: Place) -> dict[str, Any]:
    """Everything that decides the run, the machine's arithmetic aside."""
    task = task_of(run)
    config = art.TrainConfig(**run.train)
    return {
        "task": run.task,
        "variant": run.variant,
        "seed": run.seed,
        "base_model": place.base_model,
        "steps": place.steps or task.steps,
        "enough": task.enough,
        "groups_per_step": task.groups_per_step,
        "rollouts_per_group": task.rollouts_per_group,
        "held_out": place.held_out or task.held_out,
        "train": config.model_dump(mode="json"),
        "chosen_by_size": chosen_by_size(config, PARAMETERS, whole=False),
    }


def finished(run: Run, place: Place) -> dict[str, Any] | None:
    """The run's result; None when there is none, or one with other settings."""
    try:
        result: dict[str, Any] = json.loads(place.file(run).read_text())
    except FileNotFoundError:
        return None
    return result if agrees(result["settings"], settings(run, place)) else None


def agrees(kept: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether settings are the same. Options that only one of them knows were at their defaults, or are gone."""
    for name in kept.keys() & wanted.keys():
        mine, other = kept[name], wanted[name]
        same = agrees(mine, other) if isinstance(mine, dict) and isinstance(other, dict) else mine == other
        if not same:
            return False
    return True


def make(run: Run, place: Place) -> dict[str, Any]:
    """Train, and write the result at once. ArtError where that fails; the run's folder stays then."""
    folder = fresh_folder(run, place)
    options = Options(
        seed=run.seed,
        steps=place.steps,
        path=folder,
        base_model=place.base_model,
        held_out=place.held_out,
        train=run.train,
        # What a run learns must not depend on what else the machine does.
        budget_seconds=math.inf,
    )
    load = list(os.getloadavg())
    # A client library raises its own errors; the study tells all of them from faults of its own.
    with boundary(f"the run {run.name}", TrainingFailed), Display(console(), run.name) as display:
        found = one_of(run, options, display)
    steps = found.pop("steps")
    result = {
        "run": run.name,
        "settings": settings(run, place),
        "date": now(),
        "load_average": {"before": load, "after": list(os.getloadavg())},
        "machine": {"platform": platform.platform(), "cpu": cpu_name(), "cores": os.cpu_count()},
        "versions": {"python": platform.python_version(), **{name: version(name) for name in DISTRIBUTIONS}},
        **found,
        "steps": steps,
    }
    write(result, place.file(run))
    shutil.rmtree(folder, ignore_errors=True)  # its server may be writing its last lines
    return result


def fresh_folder(run: Run, place: Place) -> Path:
    """An empty folder for the run's server, which finds the base model that an earlier run converted."""
    folder = place.scratch / run.name
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
    shared = (place.scratch / "base_models").absolute()
    shared.mkdir(parents=True, exist_ok=True)
    (folder / "server").mkdir(parents=True, exist_ok=True)
    (folder / "server" / "base_models").symlink_to(shared)
    return folder


def one_of(run: Run, options: Options, display: Display) -> dict[str, Any]:
    """What a run found: its evaluations, its seconds, its steps."""
    if run.task == cold.TASK.name:
        chilled = asyncio.run(cold.cold_start(options, display))
        stages = {"before": chilled.base, "taught": chilled.taught, "after": chilled.after}
        return {
            "evaluations": {name: figures_of(stage.held_out) for name, stage in stages.items()},
            "groups_with_signal": {
                name: [stage.groups_with_signal, stage.groups] for name, stage in stages.items()
            },
            "untaught_train_call": chilled.refused,
            "demonstrations": cold.DEMONSTRATIONS,
            "fine_tuning": chilled.fine_tuning,
            "seconds": sum(record.seconds for record in chilled.records),
            "steps": [row(record) for record in chilled.records],
        }
    outcome = asyncio.run(demonstrate(task_of(run), options, display))
    return {
        "evaluations": {"before": figures_of(outcome.before), "after": figures_of(outcome.after)},
        "best_constant": outcome.best_constant,
        "seconds": outcome.seconds,
        "steps": [row(record) for record in outcome.records],
    }


def figures_of(mean: Mean) -> dict[str, Any]:
    """A mean as data."""
    return {"mean": mean.value, "standard_error": mean.error, "runs": mean.count, "ci95": list(mean.ci95)}


def row(record: StepRecord) -> dict[str, Any]:
    """A step as data; its checkpoint is gone by then."""
    data = asdict(record)
    del data["checkpoint"]
    return {**data, "seconds": record.seconds}


def write(result: Mapping[str, Any], file: Path) -> None:
    """The result as JSON, a step a line; the file appears by rename, so it is whole."""
    head = json.dumps({name: value for name, value in result.items() if name != "steps"}, indent=2)
    steps = ",\n".join(f"    {json.dumps(step)}" for step in result["steps"])
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(".tmp")
    unfinished.write_text(f'{head[:-2]},\n  "steps": [\n{steps}\n  ]\n}}\n')
    unfinished.replace(file)
