"""Gathering trajectories: many rollouts at once, in order, with a bound on failures and on concurrency."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, TypeAlias

from art.errors import InvalidInput
from art.rollouts.collect import flatten, run_members
from art.rollouts.progress import GatherProgress
from art.rollouts.tasks import Gathering, all_or_cancel, close_unstarted, current_gathering
from art.trajectories import PendingGroup, Trajectory, TrajectoryGroup, is_choice

AfterEach: TypeAlias = Callable[[TrajectoryGroup], Awaitable[TrajectoryGroup | list[TrajectoryGroup] | None]]


async def gather_trajectory_groups(
    groups: Iterable[Awaitable[TrajectoryGroup] | TrajectoryGroup],
    *,
    pbar_desc: str | None = "gather",
    pbar_total_completion_tokens: bool = False,
    max_exceptions: int | float = 0,
    max_metrics: int | None = None,
    after_each: AfterEach | None = None,
    max_concurrency: int | None = None,
) -> list[TrajectoryGroup]:
    """Run all groups at once and return them in the order given.

    `max_exceptions`: a count, or a share below 1 of all trajectories, of failures to put up with; they stay
    in their groups' `exceptions`. One more cancels everything, waits until it has ended, and is raised.
    `after_each(group)` may replace a group (also by several), or drop it by returning None.
    `max_concurrency` bounds the trajectories that run at the same time. `max_metrics` bounds the metrics
    shown; `pbar_desc=None` shows nothing. `pbar_total_completion_tokens` is accepted and shows nothing more.
    """
    members = list(groups)
    try:
        _require_awaitables(members, TrajectoryGroup, "gather_trajectory_groups")
        with GatherProgress(pbar_desc, max_metrics=max_metrics) as progress:
            gathering = Gathering(
                max_exceptions=max_exceptions,
                max_concurrency=max_concurrency,
                on_trajectory=progress.done,
                on_expect=progress.expect,
            )
            for member in members:
                if not isinstance(member, PendingGroup):
                    gathering.tolerance.expect_unknown()
            results = await all_or_cancel([_run_group(member, gathering, after_each) for member in members])
            gathering.tolerance.check()
    finally:
        close_groups(members)
    return [group for result in results for group in result]


def close_groups(groups: Iterable[object]) -> None:
    """Close the coroutines of groups that will not run any more; those that ran are left as they are."""
    for group in groups:
        close_unstarted(group.members if isinstance(group, PendingGroup) else [group])


async def _run_group(
    member: Awaitable[TrajectoryGroup] | TrajectoryGroup, gathering: Gathering, after_each: AfterEach | None
) -> list[TrajectoryGroup]:
    current_gathering.set(gathering)
    try:
        group: Any = await member if isinstance(member, Awaitable) else member
    finally:
        if not isinstance(member, PendingGroup):
            gathering.tolerance.known_now()
    if not isinstance(group, TrajectoryGroup):
        raise InvalidInput(
            f"a group came out as {type(group).__name__}",
            hint="each awaitable given to gather_trajectory_groups must return a TrajectoryGroup",
        )
    for trajectory in group:
        record_metrics(trajectory)
    if after_each is None:
        return [group]
    replaced: Any = after_each(group)
    if inspect.isawaitable(replaced):
        replaced = await replaced
    if replaced is None:
        return []
    return replaced if isinstance(replaced, list) else [replaced]


async def gather_trajectories(
    trajectories: Iterable[Awaitable[Any]],
    *,
    pbar_desc: str | None = "gather",
    pbar_total_completion_tokens: bool = False,
    max_exceptions: int | float = 0,
    max_metrics: int | None = None,
    max_concurrency: int | None = None,
) -> list[Any]:
    """Run all trajectories at once and return them in the order given.

    Awaitables that yield lists give lists. While `max_exceptions` lasts, an exception stands in the place
    of its trajectory; one more cancels the others and is raised. See `gather_trajectory_groups`.
    """
    members = list(trajectories)
    try:
        _require_awaitables(members, Trajectory, "gather_trajectories")
        with GatherProgress(pbar_desc, max_metrics=max_metrics) as progress:
            gathering = Gathering(
                max_exceptions=max_exceptions,
                max_concurrency=max_concurrency,
                on_trajectory=progress.done,
                on_expect=progress.expect,
            )
            gathering.expect(len(members))
            results = await run_members(members, gathering)
    finally:
        close_unstarted(members)
    for trajectory in flatten(results):
        if isinstance(trajectory, Trajectory):
            record_metrics(trajectory)
    return results


def record_metrics(trajectory: Trajectory) -> None:
    """Add `completion_tokens`: the mean number of sampled tokens per choice, where the choices tell it."""
    counts = [_sampled(item) for item in trajectory.messages_and_choices if is_choice(item)]
    known = [count for count in counts if count]
    if known:
        trajectory.metrics.setdefault("completion_tokens", fmean(known))


def sampled_tokens(trajectory: Trajectory) -> int:
    """Sampled tokens of all its calls, as the server or its choices tell it."""
    if trajectory.sampled_tokens is not None:
        return trajectory.sampled_tokens
    histories = [
        trajectory.messages_and_choices,
        *(more.messages_and_choices for more in trajectory.additional_histories),
    ]
    return sum(_sampled(item) for items in histories for item in items if is_choice(item))


def _sampled(choice: Any) -> int:
    """Sampled tokens of a choice; 0 where it does not tell. Reads without dumping: choices are long."""
    if isinstance(choice, Mapping):
        tokens, logprobs = choice.get("token_ids"), (choice.get("logprobs") or {}).get("content")
    else:
        tokens = getattr(choice, "token_ids", None)
        logprobs = getattr(getattr(choice, "logprobs", None), "content", None)
    return len(tokens or logprobs or ())


def _require_awaitables(members: Sequence[object], ready: type, function: str) -> None:
    wrong = [member for member in members if not isinstance(member, Awaitable | ready)]
    if wrong:
        raise InvalidInput(
            f"{function} was given a {type(wrong[0]).__name__}",
            hint="give coroutines: `rollout(model, scenario) for scenario in ...`, without awaiting them",
        )
