"""The train calls of a seeded run as the store keeps them, and what becomes of their rollouts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from art.config.train import TrainConfig
from art.store import upstream_rows
from art.store.records import (
    JobRow,
    JobSpec,
    ModelRow,
    Outcomes,
    RolloutChange,
    RolloutRow,
    SelectedTrajectory,
)
from art.store.sql import Conn, insert
from art.testing.seeded.figures import Member
from art.types.jobs import ChoiceFate
from art.types.policy import Fate, RolloutStatus
from art.types.upstreams import UpstreamCall
from art.types.wire import JobInfo, TrajectoryOutcome

FATES = {RolloutStatus.TRAINED: Fate.TRAINED, RolloutStatus.STALE: Fate.STALE}


def told(groups: Sequence[Sequence[Member]]) -> list[TrajectoryOutcome]:
    """What a result says of the trajectories of a batch."""
    return [
        TrajectoryOutcome(
            group=number,
            index=index,
            rollout_id=member.rollout_id,
            status=member.status,
            reason=member.reason,
        )
        for number, group in enumerate(groups)
        for index, member in enumerate(group)
    ]


def ended_job(
    model: ModelRow,
    groups: Sequence[Sequence[Member]],
    *,
    batch: int,
    parent: int,
    began: float,
    ended: float,
    seed: int,
) -> JobRow:
    """A job that succeeded, still without its result."""
    digest = hashlib.md5(f"{model.name}/{batch}/{seed}".encode(), usedforsecurity=False)
    info = JobInfo(
        job_id=f"job_{digest.hexdigest()}",
        project=model.project,
        name=model.name,
        status="succeeded",
        created_at=began - 0.5,
        started_at=began,
        ended_at=ended,
        attempts=1,
    )
    selected = [
        SelectedTrajectory(
            group=number, index=index, label=member.rollout_id, rollout_ids=[member.rollout_id]
        )
        for number, group in enumerate(groups)
        for index, member in enumerate(group)
    ]
    spec = JobSpec(config=TrainConfig(), trajectories=selected)
    return JobRow(info=info, spec=spec, batch=batch, parent_step=parent)


def add_events(conn: Conn, job: JobRow) -> None:
    """Its events, at their times."""
    times = {"queued": job.info.created_at, "started": job.info.started_at, "succeeded": job.info.ended_at}
    for number, (kind, at) in enumerate(times.items(), start=1):
        row = {"job_id": job.info.job_id, "id": number, "type": kind, "time": at, "data": "{}"}
        insert(conn, "job_events", row)


def outcomes(members: Sequence[Member]) -> Outcomes:
    """Statuses of rollouts and fates of choices."""
    return Outcomes(
        rollouts=[
            RolloutChange(
                rollout_id=member.rollout_id,
                status=member.status,
                reason=member.reason,
                advantage=member.advantage,
            )
            for member in members
        ],
        choices=[
            ChoiceFate(
                call_id=call,
                choice=index,
                fate=FATES.get(member.status, Fate.FILTERED),
                reason=member.reason,
                trained_tokens=tokens if member.status is RolloutStatus.TRAINED else 0,
            )
            for member in members
            for call, index, tokens in member.choices
        ],
    )


def ask_upstream(conn: Conn, row: RolloutRow, question: str) -> None:
    """A call of another model, at the end of a rollout."""
    assert row.ended_at is not None
    call = UpstreamCall(
        call_id=f"up-{row.rollout_id}",
        rollout_id=row.rollout_id,
        upstream="judge",
        model="judge-large",
        route="chat/completions",
        outcome="answered",
        status=200,
        usage={"prompt_tokens": 120, "completion_tokens": 30},
        started_at=row.ended_at - 0.6,
        first_byte_at=row.ended_at - 0.2,
        finished_at=row.ended_at - 0.1,
    )
    asked = {"messages": [{"role": "user", "content": f"Is this answered? {question}"}]}
    answer = {
        "choices": [{"message": {"role": "assistant", "content": "Judged on the record of the order."}}]
    }
    upstream_rows.add(
        conn, call, project=row.project, key_id="admin", text={"request": asked, "answer": answer}
    )
