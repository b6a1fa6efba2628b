"""A program in any language as an agent: each rollout is one run of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from art.errors import InvalidInput
from art.rollouts.agent import RolloutAgent
from art.rollouts.command import Program, run_program

if TYPE_CHECKING:
    from art.model import TrainableModel
    from art.trajectories import Trajectory


class ProgramAgent(RolloutAgent):
    """Runs a Program. What it prints is looked at for its reward and not shown."""

    def __init__(self, program: Program) -> None:
        self._program = program

    @property
    def exclusive(self) -> bool:
        return False

    async def rollout(
        self, model: TrainableModel[Any, Any], scenario: Any, **session_options: Any
    ) -> Trajectory:
        """One run. AgentFailed, InvalidReward or InvalidInput where it came to no reward."""
        run = await run_program(model, self._program, scenario=scenario, **session_options)
        if run.trajectory is None:
            raise run.error or InvalidInput(f"{run.rollout_id} has no reward", cause=run.reason)
        return run.trajectory
