"""The figures of a seeded run's steps: what its trainer and its loop would have reported."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from art.server.outcome import status_counts
from art.types.policy import RolloutStatus
from art.types.wire import TrajectoryOutcome

DOLLARS_PER_HOUR = 1.8
"""Of the machine that is said to have trained."""


@dataclass(slots=True)
class Member:
    """One rollout of a step."""

    rollout_id: str
    scenario_id: str
    reward: float | None
    right: bool
    tokens: int
    """Sampled."""
    seconds: float
    failed: RolloutStatus | None = None
    stale: bool = False
    choices: list[tuple[str, int, int]] = field(default_factory=list)
    """(call id, choice, tokens) of what can be trained."""
    status: RolloutStatus = RolloutStatus.FINISHED
    reason: str = ""
    advantage: float | None = None


def settle(groups: Sequence[Sequence[Member]]) -> None:
    """Statuses and advantages: those of a group with a spread are trained."""
    for group in groups:
        for member in group:
            if member.failed is not None:
                member.status, member.reason = member.failed, "the tool did not answer"
            elif member.stale:
                member.status = RolloutStatus.STALE
                member.reason = "sampled 3 steps ago; max_steps_off_policy is 2"
        left = [member for member in group if member.status is RolloutStatus.FINISHED]
        rewards = [member.reward or 0.0 for member in left]
        spread = statistics.pstdev(rewards) if len(rewards) > 1 else 0.0
        for member, reward in zip(left, rewards, strict=True):
            if spread <= 1e-6:
                member.status = RolloutStatus.ZERO_VARIANCE
                member.reason = f"all rewards of its group are equal ({reward:g})"
            else:
                member.status = RolloutStatus.TRAINED
                member.advantage = (reward - statistics.fmean(rewards)) / spread


def trainer_figures(
    groups: Sequence[Sequence[Member]], outcomes: Sequence[TrajectoryOutcome], rng: Random, *, progress: float
) -> dict[str, float]:
    """What the trainer reports; `progress` goes from 0 to 1 over the run."""
    members = [member for group in groups for member in group]
    rewards = [member.reward for member in members if member.reward is not None]
    trained = [member for member in members if member.status is RolloutStatus.TRAINED]
    figures = {
        "data/step_num_scenarios": float(len({member.scenario_id for member in members})),
        "data/step_num_trajectories": float(len(members)),
        "data/step_num_groups_submitted": float(len(groups)),
        "data/step_num_groups_trainable": float(
            sum(any(member.status is RolloutStatus.TRAINED for member in group) for group in groups)
        ),
        "data/step_num_dropped_trajectories": float(len(members) - len(trained)),
        "data/step_num_gradient_steps": 1.0 if trained else 0.0,
        "train/reward": statistics.fmean(rewards) if rewards else 0.0,
        "train/reward_std_dev": statistics.pstdev(rewards) if len(rewards) > 1 else 0.0,
        **status_counts(outcomes, 0),
    }
    tokens = float(sum(count for member in trained for _, _, count in member.choices))
    seconds = 2.0 + tokens / 900 * rng.uniform(0.9, 1.2)
    figures |= {"data/step_trainer_tokens": 2.3 * tokens, "data/step_trained_tokens": tokens}
    figures["time/step_trainer_s"] = seconds
    if not trained:
        return figures
    gap = 0.012 * rng.uniform(0.7, 1.4)
    return figures | {
        "loss/train": rng.gauss(0.0, 0.04) - 0.05 * math.exp(-3 * progress),
        "loss/entropy": (0.9 - 0.55 * progress) * rng.uniform(0.93, 1.07),
        "loss/kl_policy_ref": 0.002 + 0.05 * progress * rng.uniform(0.7, 1.3),
        "loss/clip_fraction": 0.01 + 0.04 * progress * rng.random(),
        "loss/truncated_fraction": 0.002 * rng.random(),
        "loss/grad_norm": 0.4 * rng.uniform(0.5, 1.8),
        "loss/learning_rate": 1e-4,
        "data/step_num_datums": float(max(1, len(trained) // 3)),
        "parity/mean": gap,
        "parity/p99": 6 * gap,
        "parity/max": 14 * gap,
        "parity/k3": gap * gap,
        "parity/tokens": tokens,
    }


@dataclass(slots=True)
class Sums:
    """What goes on over the steps of a run."""

    counts: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    dollars: float = 0.0
    scenarios: set[str] = field(default_factory=set)

    def loop_figures(
        self, members: Sequence[Member], trainer: dict[str, float], rng: Random
    ) -> dict[str, float]:
        """What the loop around the trainer logs with a step."""
        actor = max((member.seconds for member in members), default=0.0) * rng.uniform(1.0, 1.3)
        training = trainer["time/step_trainer_s"]
        wall = max(actor, training) + 0.4
        tokens = float(sum(member.tokens for member in members))
        self.seconds += wall
        self.dollars += wall / 3600 * DOLLARS_PER_HOUR
        self.scenarios |= {member.scenario_id for member in members}
        self.counts["trajectories"] += len(members)
        failed = sum(member.failed is not None for member in members)
        return {
            "time/step_wall_s": wall,
            "time/step_actor_s": actor,
            "time/wall_clock_sec": self.seconds,
            "time/cum/wall_s": self.seconds,
            "throughput/step_trainer_idle_s": wall - training,
            "throughput/step_actor_idle_s": wall - actor,
            "throughput/step_trainer_idle_share": (wall - training) / wall,
            "throughput/step_actor_idle_share": (wall - actor) / wall,
            "throughput/step_trainer_tok_per_s": trainer["data/step_trainer_tokens"] / training,
            "throughput/step_actor_tok_per_s": tokens / actor if actor else 0.0,
            "throughput/avg_trainer_tok_per_s": trainer["data/step_trainer_tokens"] / training,
            "throughput/avg_actor_tok_per_s": tokens / actor if actor else 0.0,
            "costs/gpu": wall / 3600 * DOLLARS_PER_HOUR,
            "costs/all": wall / 3600 * DOLLARS_PER_HOUR,
            "costs/cum/all": self.dollars,
            "data/step_actor_tokens": tokens,
            "data/cum/num_trajectories": float(self.counts["trajectories"]),
            "data/cum/num_unique_scenarios": float(len(self.scenarios)),
            "train/steps_off_policy": 0.4 * rng.random(),
            "train/exception_rate": failed / max(1, len(members)),
            "train/right": statistics.fmean(member.right for member in members) if members else 0.0,
            "train/completion_tokens": tokens / max(1, len(members)),
        }
