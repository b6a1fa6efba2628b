"""`yield_trajectory`: hand a trajectory to whoever runs the agent, and keep the agent's own return value."""

from __future__ import annotations

from collections.abc import Awaitable
from contextvars import ContextVar
from typing import TYPE_CHECKING

from art.errors import NoTrajectory

if TYPE_CHECKING:
    from art.trajectories import Trajectory


class _Slot:
    """What one capture waits for. Tasks and threads that the coroutine starts share it."""

    trajectory: Trajectory | None = None


_current: ContextVar[_Slot | None] = ContextVar("art_yielded", default=None)


def yield_trajectory(trajectory: Trajectory) -> None:
    """Give `trajectory` to the innermost `capture_yielded_trajectory` around; a later one replaces it.

    Where nobody captures it this does nothing, so that the same agent runs in production.
    """
    slot = _current.get()
    if slot is not None:
        slot.trajectory = trajectory


async def capture_yielded_trajectory(coroutine: Awaitable[object]) -> Trajectory:
    """Run `coroutine` and return the trajectory it yielded; what it returns is dropped.

    NoTrajectory (a RuntimeError) when it yielded none. The coroutine's exception is raised unchanged.
    """
    slot = _Slot()
    token = _current.set(slot)
    try:
        await coroutine
    finally:
        _current.reset(token)
    if slot.trajectory is None:
        raise NoTrajectory(
            "the coroutine yielded no trajectory",
            hint="call art.yield_trajectory(trajectory) in it before it returns",
        )
    return slot.trajectory
