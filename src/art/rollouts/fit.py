"""`art.fit`: the whole loop, for those who do not want to write it.

Each step runs the agent `rollouts_per_group` times on each of `groups_per_step` scenarios, takes the rewards,
trains, and logs. Run it again to go on: it resumes at the batch the server has counted.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any

from art.backends.options import train_config
from art.config.budget import Budget
from art.config.train import TrainConfig
from art.errors import InvalidInput
from art.rollouts.agent import RolloutAgent
from art.rollouts.failure import is_infrastructure
from art.rollouts.fit_report import (
    FitResult,
    FitStep,
    ended_early,
    examples_of,
    nothing_learned,
    progress_line,
    stopped,
    where_it_stands,
)
from art.rollouts.gather import gather_trajectories, gather_trajectory_groups
from art.rollouts.purse import Purse, budget_of
from art.rollouts.wrap import RewardFunction, runnable
from art.trajectories import Trajectory, TrajectoryGroup, is_choice
from art.types.policy import Purpose
from art.types.scenario_names import digest
from art.types.wire import ModelInfo
from art.utils.console import say

if TYPE_CHECKING:
    from art.integrations.registry import Asked
    from art.model import TrainableModel

RETRY_SECONDS = 1.0
"""Before the first retry after an infrastructure failure; doubles. A server restart takes a few seconds."""


OnStep = Callable[[FitStep], Awaitable[None] | None]


async def fit(
    model: TrainableModel[Any, Any],
    rollout: Any,
    scenarios: Sequence[Any],
    *,
    reward: RewardFunction | None = None,
    steps: int,
    groups_per_step: int = 4,
    rollouts_per_group: int = 8,
    config: TrainConfig | None = None,
    eval_scenarios: Sequence[Any] | None = None,
    eval_every: int | None = None,
    eval_rollouts: int = 1,
    max_concurrency: int | None = 64,
    max_exceptions: int | float = 0.25,
    infra_retries: int = 3,
    seed: int = 0,
    budget: Budget | Mapping[str, Any] | None = None,
    trackers: Sequence[Asked] = (),
    on_step: OnStep | None = None,
    should_stop: Callable[[], bool] | None = None,
    verbose: bool = True,
) -> FitResult:
    """Train `model` until it has seen `steps` batches, each of `groups_per_step` * `rollouts_per_group` runs.

    The server counts a model's train calls as batches, so a fit that is run again goes on where it stopped. `rollout` is
    what `art.wrap` takes or gives, or `async def rollout(model, scenario)` that returns an `art.Trajectory`, a number, or
    what `reward(result[, scenario])` judges. `eval_scenarios` are run before a model's first batch, at the end, and every
    `eval_every` batches. An agent's exceptions are kept with their groups up to `max_exceptions` per batch (a count, or a
    share below 1). Infrastructure failures are retried `infra_retries` times with a fresh rollout and are never a reward.
    `budget` (art.config.budget.Budget, or its fields `usd`, `tokens`, `seconds`) ends the run after the batch that reaches
    it, earlier runs counted; so does `should_stop` once it is true. `trackers` get the rows too (docs/trackers.md).
    """
    per = {"groups_per_step": groups_per_step, "rollouts_per_group": rollouts_per_group}
    _check(scenarios, steps=steps, eval_rollouts=eval_rollouts, **per)
    runner = _Runner(
        model=model,
        agent=(agent := runnable(rollout, reward)),
        config=config,
        rollouts_per_group=rollouts_per_group,
        max_concurrency=1 if agent.exclusive else max_concurrency,
        max_exceptions=max_exceptions,
        infra_retries=infra_retries,
        seed=seed,
        verbose=verbose,
    )
    loop = _Loop(
        runner=runner,
        scenarios=scenarios,
        steps=steps,
        groups_per_step=groups_per_step,
        eval_scenarios=eval_scenarios,
        eval_every=eval_every,
        eval_rollouts=eval_rollouts,
        purse=Purse(budget_of(budget), say if verbose else _silent),
        on_step=on_step,
        should_stop=should_stop,
    )
    async with model.tracking.during(trackers):
        return await loop.go(await _known(model, config))


@contextmanager
def _telling(tell: Callable[[str], None], text: str) -> Iterator[None]:
    """Say `text` when what is done here is cancelled."""
    try:
        yield
    except asyncio.CancelledError:
        tell(text)
        raise


async def _call_back(on_step: OnStep | None, report: FitStep) -> None:
    answer = None if on_step is None else on_step(report)
    if inspect.isawaitable(answer):
        await answer


def _check(scenarios: object, **counts: int) -> None:
    for name, value in counts.items():
        if value < 1:
            raise InvalidInput(f"{name} is {value}", hint="give at least 1")
    if isinstance(scenarios, str | bytes) or not (
        hasattr(scenarios, "__len__") and hasattr(scenarios, "__getitem__")
    ):
        raise InvalidInput(
            f"fit was given a {type(scenarios).__name__} as its scenarios",
            hint="pass a list of them: fit(model, agent, [first, second, ...], ...)",
        )
    if not len(scenarios):
        raise InvalidInput("fit needs at least one scenario", hint="pass a non-empty list of scenarios")


async def _known(model: TrainableModel[Any, Any], config: TrainConfig | None) -> ModelInfo:
    """The model as the server knows it; model and config are looked at first."""
    if model.server_config() is None:
        raise InvalidInput(
            f"{model.name} is not trainable",
            cause="an art.Model is only prompted",
            hint="make it an art.TrainableModel with a base_model",
        )
    train_config({}, "fit", config)  # now, not after the first batch was run
    return await model.info()


@dataclass(frozen=True, kw_only=True)
class _Runner:
    """Runs the agent on scenarios, with retries and bounds."""

    model: TrainableModel[Any, Any]
    agent: RolloutAgent
    config: TrainConfig | None
    rollouts_per_group: int
    max_concurrency: int | None
    max_exceptions: int | float
    infra_retries: int
    seed: int
    verbose: bool

    async def batch(self, chosen: Sequence[Any], batch: int, *, first: bool = False) -> FitStep:
        """Run, train and log one batch; `batch` counts those before it.

        InvalidInput when no run of a fit's `first` batch called the model: nothing will ever be learned then, and
        the batch is not counted.
        """
        started = time.monotonic()
        with self.model.counting("train"):
            groups = await self.groups(chosen, batch)
        if first:
            _require_calls(self.model.name, groups)
        result = await self.model.train(groups, config=self.config)
        rewards = [trajectory.reward for group in groups for trajectory in group]
        return FitStep(
            batch=max(batch + 1, result.batch),
            step=result.step,
            published=result.published,
            reason=result.reason,
            reward=fmean(rewards) if rewards else None,
            reward_std_dev=pstdev(rewards) if rewards else None,
            exceptions=sum(len(group.exceptions) for group in groups),
            seconds=time.monotonic() - started,
            checkpoint_path=getattr(result, "checkpoint_path", None),
            metrics=result.metrics,
            trajectories=result.trajectories,
            examples=examples_of(groups),
        )

    async def latest(self) -> tuple[int, str | None]:
        """The published step and its checkpoint's folder."""
        step = await self.model.get_step()
        api = self.model.backend().connection.api
        listed = await api.checkpoints(self.model.project, self.model.name)
        return step, next((one.path for one in listed if one.step == step), None)

    async def groups(self, chosen: Sequence[Any], batch: int) -> list[TrajectoryGroup]:
        """The trajectories of one batch, a group per scenario, in order."""
        pending = []
        for number, scenario in enumerate(chosen):
            identity = scenario_id(scenario)
            members = [
                self._rollout(
                    scenario,
                    purpose=Purpose.TRAIN,
                    scenario_id=identity,
                    group_id=f"{self.model.name}-{batch}-{number}",
                    seed_key=f"{batch}-{number}",
                    member=member,
                )
                for member in range(self.rollouts_per_group)
            ]
            metadata: dict[str, Any] = {"scenario_id": identity}
            pending.append(TrajectoryGroup(members, metadata=metadata))
        return await gather_trajectory_groups(
            pending,
            pbar_desc=f"batch {batch + 1}" if self.verbose else None,
            max_exceptions=self.max_exceptions,
            max_concurrency=self.max_concurrency,
        )

    async def evaluate(self, scenarios: Sequence[Any], rollouts: int, step: int) -> float:
        """The mean reward over `rollouts` runs of each scenario; logged under `val`."""
        began = time.monotonic()
        members = [
            self._rollout(
                scenario, purpose=Purpose.EVALUATE, scenario_id=scenario_id(scenario), member=member
            )
            for scenario in scenarios
            for member in range(rollouts)
        ]
        with self.model.counting("eval"):
            results = await gather_trajectories(
                members,
                pbar_desc="evaluation" if self.verbose else None,
                max_exceptions=self.max_exceptions,
                max_concurrency=self.max_concurrency,
            )
        groups = [TrajectoryGroup(results[n : n + rollouts]) for n in range(0, len(results), rollouts)]
        metrics = {"time/step_eval_s": time.monotonic() - began}
        await self.model.log(groups, split="val", metrics=metrics, step=step)
        rewards = [result.reward for result in results if isinstance(result, Trajectory)]
        if not rewards:
            raise InvalidInput("no evaluation run ended with a reward", hint="see the group's exceptions")
        return fmean(rewards)

    async def _rollout(self, scenario: Any, **session_options: Any) -> Trajectory:
        for attempt in range(self.infra_retries + 1):
            try:
                return await self.agent.rollout(self.model, scenario, run_seed=self.seed, **session_options)
            except Exception as error:
                if attempt == self.infra_retries or not is_infrastructure(error):
                    raise
            await asyncio.sleep(RETRY_SECONDS * 2**attempt)
        raise AssertionError("unreachable: the last attempt returns or raises")


@dataclass(frozen=True, kw_only=True)
class _Loop:
    """Batch after batch, with evaluations in between, until all are done or the budget is used up."""

    runner: _Runner
    scenarios: Sequence[Any]
    steps: int
    groups_per_step: int
    eval_scenarios: Sequence[Any] | None
    eval_every: int | None
    eval_rollouts: int
    purse: Purse
    on_step: OnStep | None
    should_stop: Callable[[], bool] | None

    def tell(self, line: str) -> None:
        """Show a line, unless the fit is to be silent."""
        if self.runner.verbose:
            say(line)

    async def go(self, info: ModelInfo) -> FitResult:
        """All batches from where the model stands."""
        runner, steps, name, batch = self.runner, self.steps, self.runner.model.name, info.batch
        self.tell(where_it_stands(name, batch=batch, step=info.step, steps=steps))
        await self.purse.look_back(runner.model)
        done: list[FitStep] = []
        before = await self._before(batch, info.step)
        while batch < steps and not self.purse.reason and not (self.should_stop and self.should_stop()):
            chosen = scenarios_of_batch(self.scenarios, batch, self.groups_per_step, runner.seed)
            with _telling(self.tell, stopped(name, batch=batch, steps=steps)):
                report = await runner.batch(chosen, batch, first=not done)
            batch = report.batch
            report = await self._evaluated(report)
            done.append(report)
            self.tell(progress_line(name, report, steps))
            self.purse.spend(report.metrics)
            await _call_back(self.on_step, report)
        self.tell(ended_early(name, self.purse.reason, batch=batch, steps=steps))
        self.tell(note := nothing_learned(name, done))
        step, path = await runner.latest()
        stopped_by = self.purse.reason if batch < steps else ""
        return FitResult(
            step,
            batch,
            done,
            checkpoint_path=path,
            note=note,
            stopped_by=stopped_by,
            eval_reward_before=before,
        )

    async def _before(self, batch: int, step: int) -> float | None:
        """What a model reaches that no batch has trained yet: what every later evaluation is compared with."""
        if batch or not self.eval_scenarios:
            return None
        measured = await self.runner.evaluate(self.eval_scenarios, self.eval_rollouts, step)
        self.tell(f"{self.runner.model.name}: before the first batch  eval {measured:.3f}")
        return measured

    async def _evaluated(self, report: FitStep) -> FitStep:
        """The report with the evaluation that is due after it."""
        due = report.batch >= self.steps or (
            self.eval_every is not None and report.batch % self.eval_every == 0
        )
        if not self.eval_scenarios or not due:
            return report
        measured = await self.runner.evaluate(self.eval_scenarios, self.eval_rollouts, report.step)
        return replace(report, eval_reward=measured)


def _require_calls(model: str, groups: Sequence[TrajectoryGroup]) -> None:
    runs = [trajectory for group in groups for trajectory in group]
    if not runs or any(_calls(run) for run in runs):
        return
    raise InvalidInput(
        f"none of the first {len(runs)} runs called {model}",
        cause="the agent talks to another model, or to none",
        hint="let the agent use the client, or the base_url and api_key, that it is given (docs/training.md); "
        "nothing was trained or counted",
    )


def _calls(run: Trajectory) -> bool:
    """Whether the run may hold a choice of the model."""
    histories = [run.messages_and_choices, *(more.messages_and_choices for more in run.additional_histories)]
    return any(is_choice(item) for history in histories for item in history)


def scenarios_of_batch(scenarios: Sequence[Any], batch: int, groups_per_step: int, seed: int) -> list[Any]:
    """The scenarios of one batch: epoch after epoch, each in an order that depends on seed and epoch alone."""
    chosen = []
    for position in range(batch * groups_per_step, (batch + 1) * groups_per_step):
        epoch, place = divmod(position, len(scenarios))
        order = list(range(len(scenarios)))
        random.Random(f"{seed}:{epoch}").shuffle(order)
        chosen.append(scenarios[order[place]])
    return chosen


def scenario_id(scenario: Any) -> str:
    """The scenario's own `id` where it has one, else a digest of its content."""
    own = scenario.get("id") if isinstance(scenario, dict) else getattr(scenario, "id", None)
    if isinstance(own, str | int):
        return str(own)
    return digest(scenario)


def _silent(_: str) -> None:
    """Shows nothing."""
