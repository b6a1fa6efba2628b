"""Following a training job: events while they come, polling when they do not, across server restarts."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import httpx2

from art import errors
from art.errors import ArtError, DeadlineExceeded, InfraError, TrainingFailed, boundary
from art.types import wire
from art.types.wire_sft import SubmitSft

if TYPE_CHECKING:
    from art.backends.http import Connection

log = logging.getLogger(__name__)

SILENCE_SECONDS = 30.0
"""The server sends keep-alive comments more often than this; a longer silence means a dead connection."""
POLL_SECONDS = 0.5
CANCEL_SECONDS = 3.0
"""How long a cancelled `train` spends on telling the server, before it gives way."""
_FINAL = {"succeeded", "failed", "cancelled"}

OnEvent = Callable[[wire.JobEvent], None]


async def run_job(
    connection: Connection,
    request: wire.SubmitTrain | SubmitSft,
    *,
    key: str,
    deadline_seconds: float,
    on_event: OnEvent,
) -> wire.JobResult:
    """Submit a job and wait for its result.

    TrainingFailed (or the error the job ended in) when it fails, DeadlineExceeded after `deadline_seconds`.
    Cancelling this coroutine cancels the job.
    """
    job = await connection.api.submit(request, key=key)
    try:
        async with asyncio.timeout(deadline_seconds):
            job = await _follow(connection, job, on_event)
    except TimeoutError as error:
        await _cancel(connection, job.job_id)
        raise DeadlineExceeded(
            f"training job {job.job_id} took longer than {deadline_seconds:.0f} s and was cancelled",
            hint="raise train_timeout of the backend, or train on fewer tokens per step",
        ) from error
    except asyncio.CancelledError:
        await asyncio.shield(_cancel(connection, job.job_id))
        raise
    if job.status == "succeeded" and job.result is not None:
        return job.result
    raise _failure(job)


async def _follow(connection: Connection, job: wire.JobInfo, on_event: OnEvent) -> wire.JobInfo:
    last_id = 0
    while job.status not in _FINAL:
        started = time.monotonic()
        try:
            path = f"/api/v1/jobs/{job.job_id}/events"
            async with connection.events(
                path, last_event_id=last_id, silence_seconds=SILENCE_SECONDS
            ) as events:
                async for data in events:
                    with boundary("reading an event of the job"):
                        event = wire.JobEvent.model_validate(data)
                    if event.id <= last_id:
                        continue
                    last_id = event.id
                    on_event(event)
                    if event.type in _FINAL:
                        break
        except (httpx2.TransportError, InfraError) as error:
            log.info("the event stream of job %s broke off, resuming: %s", job.job_id, error)
        job = await connection.api.job(job.job_id)
        if job.status not in _FINAL:
            # A stream that ends at once must not turn into a busy loop.
            await asyncio.sleep(max(0.0, POLL_SECONDS - (time.monotonic() - started)))
    return job


async def _cancel(connection: Connection, job_id: str) -> None:
    try:
        async with asyncio.timeout(CANCEL_SECONDS):
            await connection.api.cancel_job(job_id)
    except TimeoutError:
        log.warning("job %s could not be cancelled: no answer within %.0f s", job_id, CANCEL_SECONDS)
    except (ArtError, httpx2.TransportError) as error:
        log.warning("job %s could not be cancelled: %s", job_id, error)


def _failure(job: wire.JobInfo) -> ArtError:
    if job.status == "cancelled":
        return TrainingFailed(f"training job {job.job_id} was cancelled")
    detail: dict[str, Any] = dict(job.error or {})
    if not detail:
        return TrainingFailed(f"training job {job.job_id} failed", cause="the server gave no cause")
    return errors.from_dict(detail)
