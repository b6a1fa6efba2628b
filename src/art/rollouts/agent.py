"""What a fit, a pipeline or a program runs for each rollout, whatever the agent behind it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from art.model import TrainableModel
    from art.trajectories import Trajectory


class RolloutAgent(ABC):
    """Runs on a scenario, in a rollout of its own."""

    @property
    @abstractmethod
    def exclusive(self) -> bool:
        """True when only one rollout may run at a time."""

    @abstractmethod
    async def rollout(
        self, model: TrainableModel[Any, Any], scenario: Any, **session_options: Any
    ) -> Trajectory:
        """One rollout with `model`, as a trajectory with its reward. `session_options` are those of `art.rollout`.

        The agent's own exception is raised unchanged; InfraError says nothing about the agent.
        """
