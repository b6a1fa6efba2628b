"""The demonstration: measure, train, measure again, with nothing but the public client.

It is the loop that a user of ART writes: sessions around an unchanged agent, a reward for each run, groups of
runs of the same scenario, `train`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any

import art
from art.backends.results import LocalTrainResult
from art.demo.live import Display
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
            session.reward = self.task.reward(scenario, turns)
        self.display.advance(session.trajectory.reward)
        return session.trajectory

    async def evaluate(self, scenarios: Sequence[Scenario], title: str) -> tuple[Mean, Turns]:
        """Mean reward over held-out scenarios at ordinary sampling, and the first one's run."""
        self.display.phase(title, len(scenarios))
        runs = await art.gather_trajectories(
            (self.run(scenario, purpose="evaluate", group="", member=0) for scenario in scenarios),
            pbar_desc=None,
        )
        mean = mean_of([run.reward for run in runs])
        await self.model.log(runs, split="val")
        self.display.evaluated(title, mean)
        return mean, runs[0].messages()

    async def gather(self, scenarios: Sequence[Scenario], step: int) -> list[art.TrajectoryGroup]:
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

    async def train(self, scenarios: Sequence[Scenario], steps: int) -> tuple[list[float], float, str]:
        """Train calls until `steps`, the time budget, or `enough`: rewards, seconds, the last checkpoint."""
        task = self.task
        config = art.TrainConfig(learning_rate=task.learning_rate)
        rewards: list[float] = []
        checkpoint = ""
        slowest = 0.0
        start = time.monotonic()
        for step in range(steps):
            began = time.monotonic()
            chosen = [
                scenarios[(step * task.groups_per_step + i) % len(scenarios)]
                for i in range(task.groups_per_step)
            ]
            groups = await self.gather(chosen, step + 1)
            self.display.phase(f"step {step + 1}: training", 0)
            result = await self.model.train(groups, config=config)
            rewards.append(fmean(trajectory.reward for group in groups for trajectory in group))
            if isinstance(result, LocalTrainResult) and result.checkpoint_path:
                checkpoint = result.checkpoint_path
            now = time.monotonic()
            slowest = max(slowest, now - began)
            self.display.trained(step + 1, steps, rewards, result, now - began)
            learned = len(rewards) > 1 and min(rewards[-2:]) > task.enough
            late = self.timed and now - start + slowest > task.budget_seconds
            if learned or late:
                break
        return rewards, time.monotonic() - start, checkpoint


async def demonstrate(task: Task, options: Options, display: Display) -> Outcome:
    """Measure the base model, train it, measure it again on the same held-out scenarios."""
    steps = task.steps if options.steps is None else options.steps
    held_out = task.held_out if options.held_out is None else options.held_out
    training, evaluation = task.scenarios(options.seed, steps * task.groups_per_step, held_out)
    name = f"{task.name}-{options.seed}-{datetime.now():%Y%m%d-%H%M%S}-{new_rollout_id()[-4:]}"
    async with art.LocalBackend(path=options.path, deterministic=options.deterministic) as backend:
        model = art.TrainableModel(name=name, project=PROJECT, base_model=options.base_model)
        display.phase(f"loading {options.base_model}", 0)
        await model.register(backend)
        runner = Runner(task, model, options.seed, display, timed=not options.deterministic)
        before, run_before = await runner.evaluate(evaluation, "held-out reward before")
        rewards, seconds, checkpoint = await runner.train(training, steps)
        after, run_after = await runner.evaluate(evaluation, "held-out reward after")
    return Outcome(
        task=task.name,
        base_model=options.base_model,
        before=before,
        after=after,
        best_constant=task.best_constant(evaluation),
        steps=len(rewards),
        seconds=seconds,
        checkpoint=checkpoint,
        rewards=rewards,
        run_before=run_before,
        run_after=run_after,
    )
