"""What happens to a job as a whole: submitted, started, cancelled, completed. Each runs in one transaction."""

from __future__ import annotations

import time
from collections.abc import Sequence

from art.errors import Conflict, NotFound, Overloaded
from art.store import job_rows, rollout_rows, total_rows
from art.store.records import IdempotencyRow, JobRow, Outcomes, RewardChange
from art.store.sql import Conn, Row, one
from art.types.policy import RolloutStatus
from art.types.wire import JobResult

MAX_OPEN_JOBS = 256
"""Of one project, queued or running. A program waits for its job before it makes the next batch, so this is many programs."""


def submit(
    conn: Conn, job: JobRow, rewards: Sequence[RewardChange], idempotency: IdempotencyRow | None
) -> JobRow:
    """Queue a job, with the rewards it came with; the earlier one of a repeated request.

    Overloaded when too many jobs of the project are open.
    """
    if idempotency is not None:
        ref = job_rows.claim(conn, idempotency)
        if ref != job.info.job_id:
            return job_rows.get_job(conn, ref)
    _check_room(conn, job.info.project)
    for item in rewards:
        rollout_rows.set_reward(conn, item)
        rollout_rows.finish_rollout(conn, item.rollout_id, RolloutStatus.FINISHED, "")
    job_rows.put_job(conn, job)
    job_rows.add_event(conn, job.info.job_id, "queued", {})
    return job


def _check_room(conn: Conn, project: str) -> None:
    found = one(
        conn,
        "SELECT COUNT(*) AS count FROM jobs WHERE project = ? AND status IN (?, ?)",
        project,
        *job_rows.OPEN,
    )
    if found is not None and found["count"] >= MAX_OPEN_JOBS:
        raise Overloaded(
            f"{found['count']} jobs of the project {project} are open",
            hint="wait for some of them, or cancel those that nobody waits for",
        )


def start(conn: Conn, job_id: str, event: str) -> JobRow:
    """Mark a job running, in its place: the batch number and the parent step that it keeps over restarts.

    A place that the model's history has passed meanwhile is no place any more: the job gets a new one, as if it
    started for the first time. Conflict when it has ended.
    """
    job = job_rows.get_job(conn, job_id)
    info = job.info
    if info.status not in job_rows.OPEN:
        raise Conflict(f"the job {job_id} has ended", cause=f"its status is {info.status}")
    model = one(
        conn, "SELECT step, batch FROM models WHERE project = ? AND name = ?", info.project, info.name
    )
    if model is None:
        raise NotFound(f"the model {info.project}/{info.name} is not registered")
    _place(conn, job, model)
    info.status = "running"
    info.started_at = info.started_at or time.time()
    job_rows.put_job(conn, job)
    job_rows.add_event(conn, job_id, event, {"attempt": info.attempts + 1, "batch": job.batch})
    return job


def _place(conn: Conn, job: JobRow, model: Row) -> None:
    published = one(
        conn,
        "SELECT step FROM checkpoints WHERE project = ? AND name = ? AND job_id = ? AND deleted_at IS NULL",
        job.info.project,
        job.info.name,
        job.info.job_id,
    )
    if (
        job.batch is None or job.batch <= model["batch"]
    ):  # not counted yet, and not to be counted as another's
        job.batch = model["batch"] + 1
    # A step that is recorded keeps its parent: only the end of its job is missing.
    if job.parent_step is None or (published is None and job.parent_step != model["step"]):
        job.parent_step = model["step"]


def cancel(conn: Conn, job_id: str) -> JobRow:
    """A queued job is cancelled at once; for a running one the wish is recorded. One that has ended stays so."""
    job = job_rows.get_job(conn, job_id)
    if job.info.status == "queued":
        return job_rows.end_job(conn, job_id, status="cancelled", result=None, error=None)
    if job.info.status in job_rows.OPEN:
        job.cancel_requested = True
        job_rows.put_job(conn, job)
    return job


def complete(conn: Conn, job_id: str, result: JobResult, outcomes: Outcomes) -> JobRow:
    """Success: result with the run's sums, statuses, fates, batch counter and event. A job that has ended stays as it is."""
    job = job_rows.get_job(conn, job_id)
    if job.info.status not in job_rows.OPEN:
        return job
    notes = rollout_rows.set_trained(conn, outcomes, result.step, batch=result.batch)
    rollouts = list(dict.fromkeys(id for item in job.spec.trajectories for id in item.rollout_ids))
    place, parent = (job.info.project, job.info.name), job.parent_step or 0
    met = total_rows.meet(conn, *place, rollouts, job.spec.scenarios)
    metrics = total_rows.add_batch(conn, *place, result.metrics, rollout_ids=rollouts, parent=parent) | met
    done = result.model_copy(update={"notes": [*result.notes, *notes], "metrics": metrics})
    job_rows.count_batch(conn, job, done)
    return job_rows.end_job(conn, job_id, status="succeeded", result=done, error=None)
