"""A job's options with every value, and what its outcome means for the trajectories it was given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from art.config.train import ResolvedTrainConfig, TrainConfig, chosen_by_size
from art.store.records import JobRow, JobSpec, ModelRow, Outcomes, RolloutChange
from art.trainer.protocol import RolloutOutcome, TrainOutcome
from art.types.policy import RolloutStatus
from art.types.wire import JobResult, TrajectoryOutcome


def resolve_config(spec: JobSpec, model: ModelRow) -> ResolvedTrainConfig:
    """The job's options with every automatic value filled in."""
    return ResolvedTrainConfig(**{**spec.config.model_dump(), **_chosen(spec.config, model)})


def _chosen(config: TrainConfig, model: ModelRow) -> dict[str, float]:
    return chosen_by_size(config, model.base.parameters, whole=model.config.adapter is None)


STATUSES = (
    RolloutStatus.TRAINED,
    RolloutStatus.ZERO_VARIANCE,
    RolloutStatus.STALE,
    RolloutStatus.OVERLONG,
    RolloutStatus.NO_CALLS,
    RolloutStatus.AGENT_ERROR,
    RolloutStatus.INFRA_ERROR,
    RolloutStatus.FINISHED,
)
"""What can become of a trajectory in a step; `finished` ones were left out by a rule of its configuration."""


def automatic_choices(job: JobRow, model: ModelRow) -> list[str]:
    """Values of the job's options that the server chose, with their reasons."""
    if not job.spec.groups:
        return []
    size = f"{model.base.parameters / 1e6:.3g}"
    return [
        f"{option} {value:g}: chosen for a model of {size} million parameters"
        for option, value in _chosen(job.spec.config, model).items()
        if value  # of what is left off there is nothing to tell
    ]


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


def advantage_of(parts: Sequence[RolloutOutcome]) -> float | None:
    """What the trainer used for a rollout as a whole; None where it was compared in parts alone."""
    whole = [part for part in parts if "/" not in part.group_id]
    return whole[0].advantage if len(whole) == 1 else None


def status_counts(trajectories: Sequence[TrajectoryOutcome], raised: int) -> dict[str, float]:
    """A step's trajectories by what became of them, every status each time, and the rollouts that raised before."""
    found = Counter(item.status for item in trajectories)
    counts = {f"data/step_num_{status.value}": float(found.pop(status, 0)) for status in STATUSES}
    counts |= {f"data/step_num_{status.value}": float(count) for status, count in found.items()}
    return {**counts, "data/step_num_exceptions": float(raised)}


def why_nothing(trajectories: Sequence[TrajectoryOutcome], raised: int) -> str:
    """Why nothing of a batch could be trained, in one line: each status with its count and its commonest reason."""
    parts = []
    for status, count in Counter(item.status for item in trajectories).most_common():
        reasons = Counter(item.reason for item in trajectories if item.status is status and item.reason)
        reason = next((text for text, _ in reasons.most_common(1)), "")
        others = f", and {len(reasons) - 1} more" if len(reasons) > 1 else ""
        parts.append(f"{count} {status.value}" + (f" ({reason}{others})" if reason else ""))
    parts += [f"{raised} raised an exception"] if raised else []
    text = "; ".join(parts) or "the batch has no rollouts"
    return f"no signal: {text}".replace("\n", " ")


def conclude(job: JobRow, outcome: TrainOutcome, notes: Sequence[str] = ()) -> tuple[JobResult, Outcomes]:
    """What the job answers, and what becomes true in the store together with it."""
    told: dict[str, list[RolloutOutcome]] = {}
    for said in outcome.rollouts:
        told.setdefault(said.rollout_id, []).append(said)
    statuses: dict[str, RolloutChange] = {}
    trajectories: list[TrajectoryOutcome] = []
    for selected in job.spec.trajectories:
        item = selected.outcome
        advantage = advantage_of(told.get(selected.label or "", []))
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
                    rollout_id=rollout_id,
                    status=item.status,
                    reason=item.reason,
                    advantage=advantage if item.status is RolloutStatus.TRAINED else None,
                    group=selected.group,
                )
    assert job.batch is not None
    metrics, reason = dict(outcome.metrics), outcome.reason
    if job.spec.sft is None:
        metrics |= status_counts(trajectories, job.spec.raised)
        reason = reason if outcome.published else why_nothing(trajectories, job.spec.raised)
    result = JobResult(
        step=outcome.step,
        published=outcome.published,
        reason=reason,
        batch=job.batch,
        checkpoint_path=outcome.checkpoint.path if outcome.checkpoint is not None else None,
        metrics=metrics,
        trajectories=trajectories,
        notes=[*job.spec.notes, *notes, *outcome.notes],
    )
    fates = [*job.spec.fates, *outcome.fates]
    return result, Outcomes(rollouts=list(statuses.values()), choices=fates)
