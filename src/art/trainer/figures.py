"""The figures of a training step, and the check that all of them are numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from art.algorithms import advantages
from art.errors import TrainingFailed
from art.trainer.batch import Batch, Member
from art.trainer.forward import Policy
from art.trainer.parity import parity_metrics
from art.trainer.step import Tally


def batch_metrics(batch: Batch) -> dict[str, float]:
    """Figures known before training. A rollout that takes part in several comparisons is one trajectory, and its
    reward is the mean of theirs, by weight."""
    rollouts: dict[str, list[Member]] = {}
    for member in batch.members:
        rollouts.setdefault(member.trajectory.rollout_id, []).append(member)
    trained = {member.trajectory.rollout_id for member in batch.trained}
    rewards = torch.tensor([mean_reward(parts) for parts in rollouts.values()], dtype=torch.float64)
    scenarios = {scenario_of(member) for member in batch.members}
    metrics = {
        "data/step_num_scenarios": float(len(scenarios)),
        "data/step_num_trajectories": float(len(rollouts)),
        "data/step_num_groups_submitted": float(
            batch.groups - len({m.group_id for m in batch.members}) + len(scenarios)
        ),
        "data/step_num_groups_trainable": float(len({scenario_of(member) for member in batch.trained})),
        "data/step_num_dropped_trajectories": float(len(rollouts) - len(trained)),
        "data/step_num_gradient_steps": 0.0,
        "data/step_trainer_tokens": 0.0,
    }
    if len(rewards):
        mean, deviation = advantages.mean_and_deviation(rewards)
        metrics["train/reward"] = mean
        metrics["train/reward_std_dev"] = deviation
    if any(member.penalty for member in batch.members):
        metrics["train/overlong_penalty"] = sum(member.penalty for member in batch.members) / len(
            batch.members
        )
    return metrics


def scenario_of(member: Member) -> str:
    """The group that was handed over; its comparisons are named behind a slash."""
    return member.group_id.partition("/")[0]


def mean_reward(parts: Sequence[Member]) -> float:
    """The reward of one rollout."""
    if len(parts) == 1:
        return parts[0].reward
    total = sum(member.trajectory.weight for member in parts)
    scale = advantages.magnitude(torch.tensor([member.reward for member in parts], dtype=torch.float64))
    mean = sum(member.reward / scale * member.trajectory.weight for member in parts) / (total or 1.0)
    return mean * scale


def step_metrics(tally: Tally) -> dict[str, float]:
    """Figures of the updates. Token fractions are over all trained tokens."""
    penalty = {} if tally.mean_kl is None else {"loss/kl_policy_ref": tally.mean_kl}
    return {
        "loss/train": tally.loss,
        "loss/entropy": tally.entropy / tally.targets,
        "loss/clip_fraction": tally.clipped / tally.targets,
        "loss/truncated_fraction": tally.truncated / tally.targets,
        "loss/grad_norm": sum(tally.grad_norms) / len(tally.grad_norms),
        "loss/learning_rate": sum(tally.step_sizes) / len(tally.step_sizes),
        "data/step_num_gradient_steps": float(len(tally.grad_norms)),
        "data/step_num_datums": float(tally.rows),
        "data/step_trainer_tokens": float(tally.computed),
        "data/step_trained_tokens": float(tally.targets),
        **penalty,
        **parity_metrics(torch.cat(tally.differences)),
    }


def check_finite(metrics: dict[str, float], policy: Policy) -> None:
    """TrainingFailed for a step whose figures or weights are not numbers: it must not be published."""
    wrong = [f"{name} is {value}" for name, value in metrics.items() if not math.isfinite(value)]
    wrong += [
        f"the adapter's {name} holds numbers that are not finite"
        for name, parameter in policy.parameters.items()
        if not torch.isfinite(parameter).all()
    ]
    if wrong:
        raise TrainingFailed(
            "the training step gave numbers that are not finite; nothing was published",
            cause="; ".join(wrong[:3]),
            hint="lower learning_rate, or scale the rewards down",
        )
