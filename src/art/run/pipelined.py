"""A run's agent in a PipelineTrainer: rollouts go on while a step trains."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from art.config.budget import Budget
from art.config.train import TrainConfig
from art.rollouts.failure import is_infrastructure
from art.rollouts.fit import RETRY_SECONDS, scenario_id, scenarios_of_batch
from art.rollouts.gather import gather_trajectories, gather_trajectory_groups
from art.rollouts.pipeline import PipelineTrainer
from art.trajectories import Trajectory, TrajectoryGroup
from art.types.policy import Purpose

if TYPE_CHECKING:
    from art.config.load import Loaded
    from art.model import TrainableModel
    from art.rollouts.agent import RolloutAgent
    from art.run.parts import Parts


def pipeline_of(
    loaded: Loaded,
    parts: Parts,
    model: TrainableModel[Any, Any],
    agent: RolloutAgent,
    *,
    steps: int,
    fresh: bool,
    budget: Budget | None,
) -> PipelineTrainer:
    """A trainer for `steps` further batches; `fresh` when there were none before, and what it starts from is measured."""
    run, settings = loaded.run, loaded.pipeline
    groups = _Groups(
        agent=agent,
        held_out=parts.held_out,
        size=run.rollouts_per_group,
        evaluations=loaded.evaluation.rollouts,
        seed=run.seed,
        retries=run.infra_retries,
        room=asyncio.Semaphore(parts.concurrency),
    )
    default = TrainConfig()
    options = {
        name: value for name, value in loaded.train.model_dump().items() if value != getattr(default, name)
    }
    return PipelineTrainer(
        model,
        model.backend(),
        groups.group,
        endless(parts.scenarios, run.seed),
        eval_fn=groups.evaluate if parts.held_out else None,
        num_rollout_workers=settings.workers,
        min_batch_size=run.groups_per_step,
        max_batch_size=settings.max_batch,
        max_steps_off_policy=settings.max_steps_off_policy,
        queue_maxsize=settings.queue,
        max_steps=steps,
        eval_every_n_steps=loaded.evaluation.every or 0,
        eval_at_start=fresh and bool(parts.held_out),
        log_interval_seconds=0.0,
        budget=budget,
        _config=options,
    )


def endless(scenarios: list[Any], seed: int) -> Iterator[tuple[int, Any]]:
    """(number, scenario), epoch after epoch, in the order of a fit."""
    number = 0
    while True:
        yield number, scenarios_of_batch(scenarios, number, 1, seed)[0]
        number += 1


@dataclass(frozen=True, kw_only=True)
class _Groups:
    """Makes groups of rollouts, and evaluations."""

    agent: RolloutAgent
    held_out: list[Any]
    size: int
    evaluations: int
    seed: int
    retries: int
    room: asyncio.Semaphore
    """Rollouts at the same time."""

    async def group(self, model: Any, numbered: tuple[int, Any], _: Any) -> TrajectoryGroup:
        """The group of one scenario."""
        number, scenario = numbered
        identity = scenario_id(scenario)
        members = [
            self._rollout(
                model,
                scenario,
                purpose=Purpose.TRAIN,
                scenario_id=identity,
                group_id=f"{model.name}-{number}",
                seed_key=str(number),
                member=member,
            )
            for member in range(self.size)
        ]
        pending = TrajectoryGroup(members, metadata={"scenario_id": identity})
        (group,) = await gather_trajectory_groups([pending], pbar_desc=None, max_exceptions=self.size)
        return group

    async def evaluate(self, model: Any, step: int, _: Any) -> list[Trajectory]:
        """Runs of the scenarios kept apart."""
        members = [
            self._rollout(
                model, scenario, purpose=Purpose.EVALUATE, scenario_id=scenario_id(scenario), member=member
            )
            for scenario in self.held_out
            for member in range(self.evaluations)
        ]
        results = await gather_trajectories(members, pbar_desc=None, max_exceptions=len(members))
        return [result for result in results if isinstance(result, Trajectory)]

    async def _rollout(self, model: Any, scenario: Any, **session_options: Any) -> Trajectory:
        for attempt in range(self.retries + 1):
            try:
                async with self.room:
                    return await self.agent.rollout(model, scenario, run_seed=self.seed, **session_options)
            except Exception as error:
                if attempt == self.retries or not is_infrastructure(error):
                    raise
            await asyncio.sleep(RETRY_SECONDS * 2**attempt)
        raise AssertionError("unreachable: the last attempt returns or raises")
