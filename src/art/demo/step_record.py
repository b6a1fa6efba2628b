"""What is kept of one step of a demonstration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Self

from art.backends.results import LocalTrainResult, TrainResult
from art.trajectories import TrajectoryGroup

TRAINABLE_GROUPS = "data/step_num_groups_trainable"


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One train call with the runs it learned from."""

    reward: float
    """Mean over the step's runs."""
    spread: float
    """Standard deviation over the step's runs."""
    group_spread: float
    """Mean over groups of the standard deviation inside a group: what there was to learn from."""
    groups: int
    groups_with_signal: int
    published: bool
    reason: str
    """Why nothing was published; empty otherwise."""
    checkpoint: str | None
    gather_seconds: float
    train_seconds: float
    metrics: dict[str, float]
    """Those of the train call: loss, entropy, parity, KL where there is a reference."""

    @property
    def seconds(self) -> float:
        """Wall time of the step."""
        return self.gather_seconds + self.train_seconds

    @classmethod
    def of(
        cls,
        groups: Sequence[TrajectoryGroup],
        result: TrainResult,
        *,
        gather_seconds: float,
        train_seconds: float,
    ) -> Self:
        """The record of a step whose `groups` gave `result`."""
        rewards = [[trajectory.reward for trajectory in group] for group in groups]
        every = [reward for group in rewards for reward in group]
        return cls(
            reward=fmean(every),
            spread=pstdev(every),
            group_spread=fmean(pstdev(group) for group in rewards),
            groups=len(groups),
            groups_with_signal=round(result.metrics[TRAINABLE_GROUPS]),
            published=result.published,
            reason=result.reason,
            checkpoint=result.checkpoint_path if isinstance(result, LocalTrainResult) else None,
            gather_seconds=gather_seconds,
            train_seconds=train_seconds,
            metrics=dict(result.metrics),
        )


def has_signal(group: TrajectoryGroup) -> bool:
    """Whether rewards between 0 and 1 differ by more than rounding: the trainer's own rule for them."""
    rewards = [trajectory.reward for trajectory in group]
    return max(rewards) - min(rewards) > 1e-6
