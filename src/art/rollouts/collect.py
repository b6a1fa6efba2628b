"""Running the coroutines of one group: each in its own rollout, exceptions kept, order kept."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Awaitable, Iterable, Sequence
from functools import partial
from typing import Any

from art.rollouts.failure import is_infrastructure
from art.rollouts.scope import RolloutScope, enter_scope, new_rollout_id
from art.rollouts.tasks import Gathering, all_or_cancel, close_unstarted, current_gathering

log = logging.getLogger(__name__)


async def collect_group(members: Sequence[Any]) -> list[Any]:
    """The trajectories (and tolerated exceptions) of one group, in the order of its members.

    A member may yield one trajectory or several. Inside a gather its tolerance, bound and progress apply;
    alone, the first exception is raised.
    """
    gathering = current_gathering.get()
    if gathering is None:
        gathering = Gathering()
    gathering.expect(len(members))
    return flatten(await run_members(members, gathering, group_id=f"gr-{uuid.uuid4().hex}"))


async def run_members(
    members: Sequence[Any], gathering: Gathering, *, group_id: str | None = None
) -> list[Any]:
    """Each member's result or tolerated exception, in order; a failure cancels and awaits the others."""
    try:
        return await all_or_cancel(
            [
                gathering.run_member(member, partial(run_rollout, group_id=group_id, number=number))
                for number, member in enumerate(members)
            ]
        )
    finally:
        close_unstarted(members)


async def run_rollout(member: Any, *, group_id: str | None, number: int) -> Any:
    """Run one trajectory's coroutine under a rollout id of its own and tell the server how it ended.

    Runs inside a task of its own (`all_or_cancel`), so the scope ends with it.
    """
    if not isinstance(member, Awaitable):
        return member
    # A group that the rollout itself runs inside is its own affair: it must not wait for the slot that
    # this rollout holds.
    current_gathering.set(None)
    scope = RolloutScope(new_rollout_id(), group_id=group_id, member=number)
    enter_scope(scope)
    try:
        result = await member
    except Exception as error:
        await report(scope, error)
        raise
    await report(scope, result)
    return result


async def report(scope: RolloutScope, result: Any) -> None:
    """Tell the server how the rollouts ended that were opened by header under `scope`.

    Never fails the rollout: the trajectory is in the caller's hands, and training hands it over again.
    """
    from art.trajectories import Trajectory

    opened = scope.opened()
    if isinstance(result, Trajectory) and result.rollout_id is None and scope.owner is not None:
        result.rollout_id = scope.rollout_id
    if isinstance(result, Trajectory):
        result.metrics.update(scope.recording.counts)
    for connection, rollout_id in opened:
        try:
            if isinstance(result, BaseException):
                status = "infra_error" if is_infrastructure(result) else "agent_error"
                await connection.api.finish_rollout(rollout_id, status, _reason(result))
                continue
            rewarded = isinstance(result, Trajectory) and "reward" in result.model_fields_set
            if rewarded and rollout_id == scope.rollout_id:
                await connection.api.set_reward(
                    rollout_id, result.reward, metrics=result.metrics, metadata=result.metadata
                )
            await connection.api.finish_rollout(rollout_id, "finished")
        except Exception as error:  # noqa: BLE001 - a report is a courtesy; see the docstring
            log.warning("the end of rollout %s was not recorded: %s", rollout_id, str(error) or "no answer")


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:2000]


def flatten(results: Iterable[Any]) -> list[Any]:
    """Members may return lists of trajectories; the group holds them flat."""
    flat: list[Any] = []
    for result in results:
        if isinstance(result, list | tuple):
            flat.extend(result)
        else:
            flat.append(result)
    return flat
