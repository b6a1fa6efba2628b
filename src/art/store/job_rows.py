"""Jobs, their events, batches and idempotency keys in SQL."""

from __future__ import annotations

import time
from typing import Any

from art.errors import Conflict, NotFound
from art.store import figure_rows
from art.store.damage import reads
from art.store.records import IdempotencyRow, JobRow, JobSpec
from art.store.sql import Conn, Row, dumps, insert, loads, one, rows
from art.types.wire import JobEvent, JobInfo, JobResult

OPEN = ("queued", "running")


@reads("the job {job_id}")
def _job(row: Row) -> JobRow:
    info = JobInfo(
        job_id=row["job_id"],
        project=row["project"],
        name=row["name"],
        kind=row["kind"],
        status=row["status"],
        created_at=row["created_at"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        attempts=row["attempts"],
        result=None if row["result"] is None else JobResult.model_validate_json(row["result"]),
        error=None if row["error"] is None else loads(row["error"]),
    )
    return JobRow(
        info=info,
        spec=JobSpec.model_validate_json(row["spec"]),
        batch=row["batch"],
        parent_step=row["parent_step"],
        cancel_requested=bool(row["cancel_requested"]),
    )


def put_job(conn: Conn, job: JobRow) -> None:
    """Insert or overwrite a job."""
    info = job.info
    values = {
        "job_id": info.job_id,
        "project": info.project,
        "name": info.name,
        "kind": info.kind,
        "status": info.status,
        "spec": job.spec.model_dump_json(),
        "batch": job.batch,
        "parent_step": job.parent_step,
        "attempts": info.attempts,
        "cancel_requested": int(job.cancel_requested),
        "created_at": info.created_at,
        "started_at": info.started_at,
        "ended_at": info.ended_at,
        "result": None if info.result is None else info.result.model_dump_json(),
        "error": None if info.error is None else dumps(info.error),
    }
    insert(conn, "jobs", values, replace=("job_id",))


def get_job(conn: Conn, job_id: str) -> JobRow:
    """The job; NotFound when there is none."""
    row = one(conn, "SELECT * FROM jobs WHERE job_id = ?", job_id)
    if row is None:
        raise no_job(job_id)
    return _job(row)


def no_job(job_id: str) -> NotFound:
    """The answer for a job that is not there, or not for who asks."""
    return NotFound(f"there is no job {job_id}", hint="check the server's folder (--path)")


def open_jobs(conn: Conn) -> list[JobRow]:
    """Queued and running jobs in the order they were submitted in, whatever the clock did meanwhile."""
    found = rows(conn, "SELECT * FROM jobs WHERE status IN (?, ?) ORDER BY rowid", *OPEN)
    return [_job(row) for row in found]


def add_event(conn: Conn, job_id: str, kind: str, data: dict[str, Any]) -> JobEvent:
    """Append an event; ids count from 1 within the job."""
    row = one(conn, "SELECT COALESCE(MAX(id), 0) + 1 AS next FROM job_events WHERE job_id = ?", job_id)
    event = JobEvent.model_validate(
        {"id": row["next"] if row else 1, "type": kind, "time": time.time(), "data": data}
    )
    insert(
        conn,
        "job_events",
        {"job_id": job_id, "id": event.id, "type": kind, "time": event.time, "data": dumps(data)},
    )
    return event


def events_after(conn: Conn, job_id: str, after: int) -> list[JobEvent]:
    """Events with an id above `after`, in order."""
    found = rows(conn, "SELECT * FROM job_events WHERE job_id = ? AND id > ? ORDER BY id", job_id, after)
    return [
        JobEvent(id=row["id"], type=row["type"], time=row["time"], data=loads(row["data"])) for row in found
    ]


def count_attempt(conn: Conn, job_id: str) -> None:
    """Count one more attempt; one that has ended stays as it is."""
    conn.execute(
        "UPDATE jobs SET attempts = attempts + 1 WHERE job_id = ? AND status IN (?, ?)", (job_id, *OPEN)
    )


def end_job(
    conn: Conn, job_id: str, *, status: str, result: JobResult | None, error: dict[str, str] | None
) -> JobRow:
    """Give a job its final status and event. A job that has ended stays as it is."""
    job = get_job(conn, job_id)
    if job.info.status not in OPEN:
        return job
    job.info = job.info.model_copy(
        update={"status": status, "result": result, "error": error, "ended_at": time.time()}
    )
    put_job(conn, job)
    data: dict[str, Any] = {}
    if result is not None:
        data = result.model_dump(mode="json")
    elif error is not None:
        data = {"error": error}
    add_event(conn, job_id, status, data)
    return job


def batch_owner(conn: Conn, job: JobRow) -> str | None:
    """The job whose batch is recorded under the number that `job` has; None when there is none."""
    row = one(
        conn,
        "SELECT job_id FROM batches WHERE project = ? AND name = ? AND batch = ?",
        job.info.project,
        job.info.name,
        job.batch,
    )
    return None if row is None else str(row["job_id"])


def count_batch(conn: Conn, job: JobRow, result: JobResult) -> None:
    """Record the batch of a job that ended well and advance the model's counter. Repeating changes nothing.

    Conflict when the number is another job's batch: a record is never overwritten.
    """
    info, now = job.info, time.time()
    owner = batch_owner(conn, job)
    if owner is not None and owner != info.job_id:
        raise Conflict(
            f"batch {job.batch} of {info.project}/{info.name} is that of {owner}",
            hint="send the batch again: it gets a number of its own",
        )
    insert(
        conn,
        "batches",
        {
            "project": info.project,
            "name": info.name,
            "batch": job.batch,
            "job_id": info.job_id,
            "parent_step": job.parent_step,
            "step": result.step,
            "published": int(result.published),
            "reason": result.reason,
            "metrics": dumps(result.metrics),
            "time": now,
        },
        replace=("project", "name", "batch"),
    )
    figure_rows.add_batch(conn, info.project, info.name, step=result.step, at=now, metrics=result.metrics)
    conn.execute(
        "UPDATE models SET batch = MAX(batch, ?) WHERE project = ? AND name = ?",
        (job.batch, info.project, info.name),
    )


def claim(conn: Conn, wanted: IdempotencyRow) -> str:
    """The ref that belongs to the key: the one given, or the earlier one of a repeated request."""
    row = one(
        conn, "SELECT digest, ref FROM idempotency WHERE scope = ? AND key = ?", wanted.scope, wanted.key
    )
    if row is None:
        insert(conn, "idempotency", {**wanted.model_dump(), "created_at": time.time()})
        return wanted.ref
    if row["digest"] != wanted.digest:
        raise Conflict(
            f"the Idempotency-Key {wanted.key!r} was used for another request",
            hint="a new request needs a new key",
        )
    return str(row["ref"])
