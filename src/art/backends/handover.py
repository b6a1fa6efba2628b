"""Trajectories as `train` and `log` hand them over: checked, and without what the server knows already."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel

from art.errors import InvalidInput, InvalidReward
from art.trajectories import Trajectory, TrajectoryGroup, as_dict, check_reward, is_choice
from art.types import wire
from art.utils.summary import named_for_split, summarize


def as_groups(
    trajectories: Iterable[TrajectoryGroup] | Iterable[Trajectory | BaseException] | None, where: str
) -> list[TrajectoryGroup]:
    """Groups as they are; loose trajectories and exceptions become one group.

    InvalidInput says what `where` (train, log) was given instead.
    """
    if trajectories is None:
        return []
    if not isinstance(trajectories, Iterable) or isinstance(trajectories, str | bytes | Mapping):
        raise InvalidInput(f"{where} was given a {type(trajectories).__name__}; {_EXPECTED}", hint=_HOW)
    items: list[Any] = [trajectories] if isinstance(trajectories, TrajectoryGroup) else list(trajectories)
    groups = [item for item in items if isinstance(item, TrajectoryGroup)]
    if len(groups) == len(items):
        return groups
    if groups or not all(isinstance(item, Trajectory | BaseException) for item in items):
        kinds = sorted({type(item).__name__ for item in items})
        raise InvalidInput(f"{where} was given a list of {' and '.join(kinds)}; {_EXPECTED}", hint=_HOW)
    return [TrajectoryGroup(items)]


_EXPECTED = "expected are TrajectoryGroups, or Trajectories, all of one kind"
_HOW = "await art.gather_trajectory_groups(...) gives the groups of what is still to run"


def log_request(
    groups: list[TrajectoryGroup], metrics: Mapping[str, float], *, split: str, step: int, sent: bool
) -> wire.LogRequest:
    """One row of a split at a step: averages of the groups, and `metrics`; the groups with it if `sent`."""
    return wire.LogRequest(
        split=split,
        step=step,
        groups=groups_to_wire(groups if sent else []),
        metrics={**summarize(groups, split), **named_for_split(metrics, split)},
        recorded_at=datetime.now(UTC).isoformat(),
    )


_KNOWN_CHOICE = ("finish_reason", "index", "message", "art")
"""What is sent of a choice with an `art` field: the server has its tokens, so they stay at home."""


def _wire_item(item: Any) -> dict[str, Any]:
    if not is_choice(item):
        return as_dict(item)
    if isinstance(item, BaseModel) and getattr(item, "art", None) is not None:
        return item.model_dump(mode="json", include=set(_KNOWN_CHOICE))
    choice = as_dict(item)
    if choice.get("art") is None:
        return choice
    return {key: choice[key] for key in _KNOWN_CHOICE if key in choice}


def _wire_items(items: Iterable[object]) -> list[dict[str, Any]]:
    return [_wire_item(item) for item in items]


def trajectory_to_wire(trajectory: Trajectory, where: str = "trajectory") -> wire.TrajectoryIn:
    """The form `train` and `log` send. InvalidReward or InvalidInput name `where`."""
    if trajectory.selects_rollout and "reward" not in trajectory.model_fields_set:
        raise InvalidReward(
            f"{where} has no reward",
            cause=f"the session of rollout {trajectory.rollout_id} ended without one",
            hint="set session.reward inside `art.rollout(...)`, or trajectory.reward before training",
        )
    tools = None if trajectory.tools is None else [as_dict(tool) for tool in trajectory.tools]
    return wire.TrajectoryIn(
        messages_and_choices=_wire_items(trajectory.messages_and_choices),
        tools=tools,
        additional_histories=[
            wire.History(
                messages_and_choices=_wire_items(history.messages_and_choices),
                tools=None if history.tools is None else [as_dict(tool) for tool in history.tools],
            )
            for history in trajectory.additional_histories
        ],
        reward=check_reward(trajectory.reward, f"the reward of {where}"),
        metrics=trajectory.metrics,
        metadata=trajectory.metadata,
        logs=trajectory.logs,
        start_time=trajectory.start_time.isoformat(),
        initial_policy_version=trajectory.initial_policy_version,
        final_policy_version=trajectory.final_policy_version,
        rollout_id=trajectory.rollout_id,
        selects_rollout=trajectory.selects_rollout,
    )


def groups_to_wire(groups: Iterable[TrajectoryGroup] | TrajectoryGroup) -> list[wire.GroupIn]:
    """Groups (or one) as `train` and `log` send them; InvalidInput for anything that is not a group."""
    items: list[object] = [groups] if isinstance(groups, TrajectoryGroup) else list(groups)
    result = []
    for number, group in enumerate(items):
        if not isinstance(group, TrajectoryGroup):
            raise InvalidInput(
                f"groups[{number}] is a {type(group).__name__}, not a TrajectoryGroup",
                hint="await it first (gather_trajectory_groups), or wrap trajectories in TrajectoryGroup(...)",
            )
        result.append(
            wire.GroupIn(
                trajectories=[
                    trajectory_to_wire(trajectory, f"trajectory {index} of group {number}")
                    for index, trajectory in enumerate(group.trajectories)
                ],
                exceptions=[wire.ExceptionIn(**error.model_dump()) for error in group.exceptions],
                metadata=group.metadata,
                metrics=group.metrics,
                logs=group.logs,
            )
        )
    return result
