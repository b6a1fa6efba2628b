"""`auto_trajectory`: the trajectory of the calls that the running code makes, without building it by hand.

Our own clients (`model.openai_client()`, a session's clients) hand every chat completion they are answered to
the recording around the call; see `art.rollouts.recording`. No HTTP library is patched: calls of a client
that the program made itself are in `session.trajectory` of `art.rollout`, as the server recorded them.
"""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Literal, overload

from art.errors import NoTrajectory
from art.rollouts.collect import report
from art.rollouts.recording import Recording, current_recording, recording_into
from art.rollouts.scope import RolloutScope, current_scope, new_rollout_id, rollout_scope

if TYPE_CHECKING:
    from art.trajectories import Trajectory


@overload
def auto_trajectory(*, required: Literal[True]) -> Trajectory: ...


@overload
def auto_trajectory(*, required: bool = False) -> Trajectory | None: ...


def auto_trajectory(*, required: bool = False) -> Trajectory | None:
    """The trajectory of the innermost `capture_auto_trajectory`, gather member or `art.rollout` block around.

    It holds the calls made so far and grows with those to come; each time it is the same object, so its reward
    may be set at any moment. A call that does not continue a history (rewritten messages, other tools, a
    sub-agent) begins one in `additional_histories`. Outside of all these: None, or, with `required`,
    NoTrajectory (a RuntimeError).
    """
    recording = current_recording()
    if recording is not None:
        return recording.trajectory
    if required:
        raise NoTrajectory(
            "there is no trajectory here",
            cause="auto_trajectory(required=True) was called outside of what makes one",
            hint="run the agent as `await art.capture_auto_trajectory(agent(...))`, in a gather, "
            "or inside `with art.rollout(model)`",
        )
    return None


async def capture_auto_trajectory(coroutine: Awaitable[object]) -> Trajectory:
    """Run `coroutine` and return the trajectory of the calls it made; what it returns is dropped.

    Outside of a gather and of `art.rollout` the calls become a rollout of their own. The coroutine's
    exception is raised unchanged.
    """
    scope = current_scope()
    own = RolloutScope(new_rollout_id()) if scope is None else None
    recording = own.recording if own is not None else Recording(scope.rollout_id if scope else None)
    with ExitStack() as inside:
        if own is not None:
            inside.enter_context(rollout_scope(own))
        inside.enter_context(recording_into(recording))
        try:
            await coroutine
        except Exception as error:
            if own is not None:
                await report(own, error)
            raise
    if own is not None:
        await report(own, recording.trajectory)
    return recording.trajectory
