"""How far a run has come: counted where its rollouts end, read by what shows it."""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any

from art.rollouts.agent import RolloutAgent
from art.rollouts.failure import is_infrastructure
from art.rollouts.gather import sampled_tokens
from art.types.policy import Limits, Purpose

if TYPE_CHECKING:
    from art.model import TrainableModel
    from art.trajectories import Trajectory

SIDE_BY_SIDE = "rollouts and training"
REMEMBERED_STEPS = 8
"""Batches whose time the time left is estimated from: the latest say most about the next."""


@dataclass
class Progress:
    """Figures of the moment. Times are of the monotonic clock."""

    name: str
    steps: int
    """Batches in all."""
    groups: int
    """Of a batch."""
    group_size: int
    batch: int = 0
    """Batches that are done."""
    step: int = 0
    """The published step."""
    phase: str = "starting"
    side_by_side: bool = False
    """Rollouts and training go on at the same time: there is one phase."""
    rewards: list[float] = field(default_factory=list)
    """Mean reward of each batch of this run."""
    agent_error: Exception | None = None
    """What the agent raised last."""
    sampled: int = 0
    """Tokens sampled in this run, evaluations included."""
    _since: float = field(default_factory=time.monotonic)
    _members: Counter[str] = field(default_factory=Counter)
    _reward: float = 0.0
    _judged: int = 0
    _tokens: int = 0
    """Sampled since the phase began."""
    _rate: float | None = None
    _seconds: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED_STEPS))

    def enter(self, phase: str) -> None:
        """Another phase begins: nothing of it is done yet."""
        if self.side_by_side and self.phase == SIDE_BY_SIDE:
            return
        self._rate = self.tokens_per_second or self._rate
        self.phase = SIDE_BY_SIDE if self.side_by_side else phase
        self._since, self._tokens = time.monotonic(), 0

    def ended(self, purpose: Purpose, group: str, trajectory: Trajectory | None) -> None:
        """A rollout has ended, without a trajectory where the agent raised."""
        tokens = 0 if trajectory is None else sampled_tokens(trajectory)
        self._tokens += tokens
        self.sampled += tokens
        if purpose is Purpose.EVALUATE:
            return
        self._members[group] += 1
        if trajectory is not None:
            self._judged += 1
            self._reward += trajectory.reward

    def stepped(self, *, batch: int, step: int, reward: float | None, seconds: float) -> None:
        """A batch is done."""
        self.batch, self.step = batch, step
        if reward is not None:
            self.rewards.append(reward)
        self._seconds.append(seconds)
        for group in [group for group, count in self._members.items() if count >= self.group_size]:
            del self._members[group]
        self._reward, self._judged = 0.0, 0

    @property
    def groups_ready(self) -> int:
        """Groups of the batch in hand whose rollouts have all ended."""
        return sum(count >= self.group_size for count in self._members.values())

    @property
    def runs_ended(self) -> int:
        """Rollouts of the batch in hand that have ended."""
        return self._members.total()

    @property
    def reward(self) -> float | None:
        """Mean over the batch in hand so far."""
        return self._reward / self._judged if self._judged else None

    @property
    def tokens_per_second(self) -> float | None:
        """Of the rollouts that ended in this phase; of the last phase that had some before the first one ends."""
        return self._tokens / max(time.monotonic() - self._since, 1e-3) if self._tokens else self._rate

    @property
    def seconds_left(self) -> float | None:
        """Estimated; None before the first batch."""
        return fmean(self._seconds) * max(0, self.steps - self.batch) if self._seconds else None

    @property
    def seconds_in_phase(self) -> float:
        """Since it began."""
        return time.monotonic() - self._since


class WatchedAgent(RolloutAgent):
    """An agent whose rollouts are bounded by `limits` and counted in `progress`."""

    def __init__(self, agent: RolloutAgent, progress: Progress, limits: Limits) -> None:
        self._agent = agent
        self._progress = progress
        self._limits = limits

    @property
    def exclusive(self) -> bool:
        return self._agent.exclusive

    async def rollout(
        self, model: TrainableModel[Any, Any], scenario: Any, **session_options: Any
    ) -> Trajectory:
        purpose = Purpose(session_options.get("purpose", Purpose.TRAIN))
        self._note_phase(purpose)
        group = str(session_options.get("group_id", ""))
        try:
            done = await self._agent.rollout(model, scenario, limits=self._limits, **session_options)
        except Exception as error:
            if not is_infrastructure(error):  # those are run anew
                self._progress.agent_error = error
                self._ended(purpose, group, None)
            raise
        self._ended(purpose, group, done)
        return done

    def _note_phase(self, purpose: Purpose) -> None:
        phase = "evaluation" if purpose is Purpose.EVALUATE else "rollouts"
        if self._progress.phase != phase:
            self._progress.enter(phase)

    def _ended(self, purpose: Purpose, group: str, trajectory: Trajectory | None) -> None:
        progress = self._progress
        progress.ended(purpose, group, trajectory)
        if progress.phase == "rollouts" and progress.groups_ready >= progress.groups:
            progress.enter("training")
