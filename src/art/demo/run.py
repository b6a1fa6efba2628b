"""The demonstration: measure, train, measure again, with nothing but the public client.

It is the loop that a user of ART writes: sessions around an unchanged agent, a reward for each run, groups of
runs of the same scenario, `train`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import art
from art.demo.live import Display
from art.demo.step_record import StepRecord
from art.demo.task import Scenario, Task, Turns
from art.evals.intervals import Mean, improved, mean_of
from art.rollouts.scope import new_rollout_id

PROJECT = "demo"
BASE_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line decides."""

    seed: int = 0
    steps: int | None = None
    """Train calls at most; None is the task's own number."""
    path: Path = Path(".art")
    base_model: str = BASE_MODEL
    held_out: int | None = None
    """Evaluation rollouts; None is the task's own number."""
    train: Mapping[str, Any] = field(default_factory=dict)
    """Options of `art.TrainConfig` instead of the defaults."""
    budget_seconds: float | None = None
    """Instead of the task's own."""
    deterministic: bool = False
    """The same seed gives the same run, bit by bit: the number of steps does not follow the clock then."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the demonstration showed."""

    task: str
    base_model: str
    before: Mean
    after: Mean
    best_constant: float
    steps: int
    seconds: float
    """Wall time of gathering and training; loading and evaluation not counted."""
    checkpoint: str
    rewards: list[float] = field(default_factory=list)
    """Mean training reward of each step."""
    run_before: Turns = field(default_factory=list)
    run_after: Turns = field(default_factory=list)
    records: list[StepRecord] = field(default_factory=list)
    """Of each step."""

    @property
    def improved(self) -> bool:
        """True when the held-out reward rose by more than chance explains (95 %)."""
        return improved(self.before, self.after)

    def summary(self) -> dict[str, Any]:
        """The last line of `art demo`."""
        return {
            "task": self.task,
            "base_model": self.base_model,
            "eval_before": round(self.before.value, 4),
            "eval_after": round(self.after.value, 4),
            "ci95_before": [round(bound, 4) for bound in self.before.ci95],
            "ci95_after": [round(bound, 4) for bound in self.after.ci95],
            "best_constant": round(self.best_constant, 4),
            "steps": self.steps,
            "seconds": round(self.seconds, 1),
            "checkpoint": self.checkpoint,
        }


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs a task's agent against a model."""

    task: Task
    model: art.TrainableModel[Any, Any]
    seed: int
    display: Display
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of `art.TrainConfig`, beside or instead of the task's learning rate."""
    timed: bool = True
    """Training ends with the task's time budget."""

    async def run(self, scenario: Scenario, *, purpose: str, group: str, member: int) -> art.Trajectory:
        """One run of the agent in a session of its own, with its reward."""
        async with art.rollout(
            self.model,
            purpose=purpose,
            scenario_id=scenario.id,
            group_id=group,
            seed_key=group,
            member=member,
            run_seed=self.seed,
        ) as session:
            turns = await self.task.agent(session.openai_client(), session.model_name, scenario)
            judge = (self.task.score if purpose == "evaluate" else None) or self.task.reward
            session.reward = judge(scenario, turns)
        self.display.advance(session.trajectory.reward)
        return session.trajectory

    async def evaluate(self, scenarios: Sequence[Scenario], title: str) -> tuple[Mean, list[art.Trajectory]]:
        """Mean score over held-out scenarios at ordinary sampling, and their runs in order."""
        self.display.phase(title, len(scenarios))
        runs = await art.gather_trajectories(
            (self.run(scenario, purpose="evaluate", group="", member=0) for scenario in scenarios),
            pbar_desc=None,
        )
        mean = mean_of([run.reward for run in runs])
        await self.model.log(runs, split="val")
        self.display.evaluated(title, mean)
        return mean, runs

    async def gather(self, scenarios: Sequence[Scenario], step: int | str) -> list[art.TrajectoryGroup]:
        """A group of runs for each scenario."""
        count = self.task.rollouts_per_group
        self.display.phase(f"step {step}: rollouts", len(scenarios) * count)
        return await art.gather_trajectory_groups(
            (
                art.TrajectoryGroup(
                    self.run(scenario, purpose="train", group=f"{step}-{number}", member=member)
                    for member in range(count)
                )
                for number, scenario in enumerate(scenarios)
            ),
            pbar_desc=None,
        )

    async def step(self, scenarios: Sequence[Scenario], earlier: Sequence[float], steps: int) -> StepRecord:
        """The train call after those whose mean rewards were `earlier`, of `steps` in all."""
        number, began = len(earlier) + 1, time.monotonic()
        count = self.task.groups_per_step
        chosen = [scenarios[((number - 1) * count + place) % len(scenarios)] for place in range(count)]
        groups = await self.gather(chosen, number)
        gathered = time.monotonic()
        self.display.phase(f"step {number}: training", 0)
        result = await self.model.train(groups, config=art.TrainConfig(**self.options))
        trained = time.monotonic()
        record = StepRecord.of(
            groups, result, gather_seconds=gathered - began, train_seconds=trained - gathered
        )
        self.display.trained(number, steps, [*earlier, record.reward], result, record.seconds)
        return record

    async def train(
        self, scenarios: Sequence[Scenario], steps: int, budget_seconds: float | None = None
    ) -> list[StepRecord]:
        """Train calls until `steps`, the time budget (None: the task's own), or the task's `enough`."""
        task = self.task
        budget = task.budget_seconds if budget_seconds is None else budget_seconds
        records: list[StepRecord] = []
        rewards: list[float] = []
        start = time.monotonic()
        while len(records) < steps:
            record = await self.step(scenarios, rewards, steps)
            records.append(record)
            rewards.append(record.reward)
            learned = len(rewards) > 1 and min(rewards[-2:]) > task.enough
            slowest = max(one.seconds for one in records)
            late = self.timed and time.monotonic() - start + slowest > budget
            if learned or late:
                why = (
                    f"two steps in a row were rewarded with more than {task.enough:g}"
                    if learned
                    else f"one more would pass the time budget of {budget:.0f} s"
                )
                self.display.stopped(len(records), steps, why)
                break
        return records


async def demonstrate(task: Task, options: Options, display: Display) -> Outcome:
    """Measure the base model, train it, measure it again on the same held-out scenarios."""
    steps = task.steps if options.steps is None else options.steps
    held_out = task.held_out if options.held_out is None else options.held_out
    training, evaluation = task.scenarios(options.seed, steps * task.groups_per_step, held_out)
    async with art.LocalBackend(path=options.path, deterministic=options.deterministic) as backend:
        model = new_model(f"{task.name}-{options.seed}", options.base_model)
        display.phase(f"loading {options.base_model}", 0)
        await model.register(backend)
        runner = Runner(task, model, options.seed, display, options.train, timed=not options.deterministic)
        before, runs_before = await runner.evaluate(evaluation, "held-out reward before")
        records = await runner.train(training, steps, options.budget_seconds)
        after, runs_after = await runner.evaluate(evaluation, "held-out reward after")
    shown = clearest([run.reward for run in runs_before], [run.reward for run in runs_after])
    return Outcome(
        task=task.name,
        base_model=options.base_model,
        before=before,
        after=after,
        best_constant=task.best_constant(evaluation),
        steps=len(records),
        seconds=sum(record.seconds for record in records),
        checkpoint=last_checkpoint(records),
        rewards=[record.reward for record in records],
        run_before=runs_before[shown].messages(),
        run_after=runs_after[shown].messages(),
        records=records,
    )


def clearest(before: Sequence[float], after: Sequence[float]) -> int:
    """The scenario to show: the first of those whose reward rose most."""
    gains = [late - early for early, late in zip(before, after, strict=True)]
    return gains.index(max(gains))


def new_model(prefix: str, base_model: str) -> art.TrainableModel[Any, Any]:
    """A model that no run before this one has trained."""
    name = f"{prefix}-{datetime.now():%Y%m%d-%H%M%S}-{new_rollout_id()[-4:]}"
    return art.TrainableModel(name=name, project=PROJECT, base_model=base_model)


def last_checkpoint(records: Sequence[StepRecord]) -> str:
    """The folder that was published last; "" where nothing was."""
    return next((one.checkpoint for one in reversed(records) if one.checkpoint), "")
