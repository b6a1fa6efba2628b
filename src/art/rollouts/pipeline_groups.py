"""The groups of a pipeline: the function that makes one, and what counts as one."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from art.errors import InvalidInput
from art.rollouts.gather import gather_trajectory_groups, record_metrics
from art.trajectories import Trajectory, TrajectoryGroup

GroupRolloutFn: TypeAlias = Callable[[Any, Any, Any], Awaitable[TrajectoryGroup]]
"""(model, scenario, config) -> the group of that scenario."""
RolloutFn: TypeAlias = Callable[[Any, Any, Any], Awaitable[Trajectory]]
"""(model, scenario, config) -> one trajectory."""


def make_group_rollout_fn(single_rollout_fn: RolloutFn, n: int = 4) -> GroupRolloutFn:
    """A group function that runs `single_rollout_fn(model, scenario, config)` `n` times at once.

    Each run is a rollout of its own on the server. A run's exception stays with the group; the others go on.
    """
    if n < 1:
        raise InvalidInput(
            f"n is {n}", hint="a group needs at least 2 rollouts to be compared with one another"
        )

    async def group_rollout(model: Any, scenario: Any, config: Any) -> TrajectoryGroup:
        pending = TrajectoryGroup(single_rollout_fn(model, scenario, config) for _ in range(n))
        (group,) = await gather_trajectory_groups([pending], pbar_desc=None, max_exceptions=n)
        return group

    return group_rollout


async def run_group(rollout_fn: GroupRolloutFn, model: Any, scenario: Any, config: Any) -> TrajectoryGroup:
    """The group that `rollout_fn` makes; a group without trajectories, with the exception, where it raises.

    InvalidInput when it makes something else: that is the same for every scenario, and ends the run.
    """
    try:
        made: Any = rollout_fn(model, scenario, config)
        group = await made if inspect.isawaitable(made) else made
    except Exception as error:  # noqa: BLE001 - the boundary where a group's failure becomes data
        return TrajectoryGroup([], exceptions=[error])
    if not isinstance(group, TrajectoryGroup):
        raise InvalidInput(
            f"rollout_fn came out as {type(group).__name__}",
            cause="PipelineTrainer trains groups: the rollouts of one scenario, compared with one another",
            hint="return an art.TrajectoryGroup, or wrap a function of one trajectory: "
            "make_group_rollout_fn(rollout, n=8)",
        )
    for trajectory in group:
        record_metrics(trajectory)
    return group


def stamp_versions(group: TrajectoryGroup, *, started: int, ended: int) -> int:
    """Note between which published steps the group ran, unless its rollouts did; the oldest of them."""
    for trajectory in group:
        if trajectory.initial_policy_version is None:
            trajectory.initial_policy_version = started
        if trajectory.final_policy_version is None:
            trajectory.final_policy_version = ended
    return min(
        (t.initial_policy_version for t in group if t.initial_policy_version is not None), default=started
    )
