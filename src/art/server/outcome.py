"""A job's options with every value, and what its outcome means for the trajectories it was given."""

from __future__ import annotations

from collections.abc import Sequence

from art.config.train import ResolvedTrainConfig, default_learning_rate
from art.store.records import JobRow, JobSpec, ModelRow, Outcomes, RolloutChange
from art.trainer.protocol import RolloutOutcome, TrainOutcome
from art.types.policy import RolloutStatus
from art.types.wire import JobResult, TrajectoryOutcome


def resolve_config(spec: JobSpec, model: ModelRow) -> ResolvedTrainConfig:
    """The job's options with every automatic value filled in."""
    values = spec.config.model_dump()
    if values["learning_rate"] is None:
        values["learning_rate"] = default_learning_rate(
            model.base.parameters, whole=model.config.adapter is None
        )
    return ResolvedTrainConfig(**values)


def merged(parts: Sequence[RolloutOutcome]) -> tuple[RolloutStatus, str]:
    """The outcome of a trajectory that took part in several comparisons: trained if one of them trained it."""
    if not parts:
        return RolloutStatus.FINISHED, "the trainer said nothing about it"
    if len(parts) == 1:
        return parts[0].status, parts[0].reason
    trained = [part for part in parts if part.status is RolloutStatus.TRAINED]
    others = [part for part in parts if part not in trained]
    reasons = [f"{part.group_id.partition('/')[2] or 'the rollout'}: {part.reason}" for part in others]
    return (trained or others)[0].status, "; ".join(reasons)


def conclude(job: JobRow, outcome: TrainOutcome, notes: Sequence[str] = ()) -> tuple[JobResult, Outcomes]:
    """What the job answers, and what becomes true in the store together with it."""
    told: dict[str, list[RolloutOutcome]] = {}
    for said in outcome.rollouts:
        told.setdefault(said.rollout_id, []).append(said)
    statuses: dict[str, RolloutChange] = {}
    trajectories: list[TrajectoryOutcome] = []
    for selected in job.spec.trajectories:
        item = selected.outcome
        if item is None:
            status, reason = merged(told.get(selected.label or "", []))
            item = TrajectoryOutcome(
                group=selected.group,
                index=selected.index,
                rollout_id=selected.rollout_ids[0] if selected.rollout_ids else None,
                status=status,
                reason=reason,
            )
        trajectories.append(item)
        for rollout_id in selected.rollout_ids:
            before = statuses.get(rollout_id)
            # A rollout in several trajectories is trained when one of them is.
            if before is None or before.status is not RolloutStatus.TRAINED:
                statuses[rollout_id] = RolloutChange(
                    rollout_id=rollout_id, status=item.status, reason=item.reason
                )
    assert job.batch is not None
    result = JobResult(
        step=outcome.step,
        published=outcome.published,
        reason=outcome.reason,
        batch=job.batch,
        checkpoint_path=outcome.checkpoint.path if outcome.checkpoint is not None else None,
        metrics=outcome.metrics,
        trajectories=trajectories,
        notes=[*job.spec.notes, *notes, *outcome.notes],
    )
    fates = [*job.spec.fates, *outcome.fates]
    return result, Outcomes(rollouts=list(statuses.values()), choices=fates)
