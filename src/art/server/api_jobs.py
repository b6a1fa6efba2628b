"""Training jobs over HTTP."""

from __future__ import annotations

import hashlib
import math
from collections.abc import AsyncGenerator

from starlette.responses import Response, StreamingResponse

from art.errors import Forbidden, InvalidInput, InvalidReward
from art.server.batch import Batch
from art.server.body import whole_number
from art.server.endpoint import ApiCall, ApiRoute
from art.server.jobs import Jobs
from art.server.sft import IDEMPOTENCY_KEY, submit_sft
from art.store.job_rows import no_job
from art.store.records import JobRow, Role
from art.types import wire
from art.types.wire_sft import SubmitSft

LAST_EVENT_ID = "Last-Event-ID"


async def submit(call: ApiCall) -> wire.JobInfo:
    """Select the recorded calls now, so that what cannot be right is refused at once, then queue."""
    request = call.body(wire.SubmitTrain)
    gateway = call.gateway
    check_loss(call, request.config.loss_fn)
    entry = gateway.versions.entry(request.project, request.name)
    batch = Batch(gateway.store, request.project, request.name, request.config)
    for number, group in enumerate(request.groups):
        check_rewards(number, group)
        await batch.add(number, group)
    spec = await batch.finish()
    key = call.request.headers.get(IDEMPOTENCY_KEY)
    digest = hashlib.sha256(await call.request.body()).hexdigest()
    info = await gateway.jobs.submit(
        entry.row, spec, rewards=batch.rewards, idempotency=(key, digest) if key else None
    )
    for change in batch.rewards:
        gateway.sessions.close(change.rollout_id)
    return info


def check_loss(call: ApiCall, name: str) -> None:
    """Forbidden for a loss by import path where the key may not run code of its choice on this machine."""
    who = call.principal
    if (
        ":" not in name
        or call.gateway.settings.import_losses
        or (who.role is Role.ADMIN and who.project is None)
    ):
        return
    raise Forbidden(
        f"this key may not name a loss by import path (loss_fn={name!r})",
        cause="it would import a module in the trainer, and is left to administrators of all projects",
        hint="set import_losses = true under [server], or install the loss as a plug-in (entry point art.losses)",
    )


def check_rewards(number: int, group: wire.GroupIn) -> None:
    """InvalidReward naming the trajectory."""
    for index, trajectory in enumerate(group.trajectories):
        if not math.isfinite(trajectory.reward):
            raise InvalidReward(
                f"trajectory {index} of group {number} has the reward {trajectory.reward}",
                hint="a reward is a finite number; leave out a trajectory that has none",
            )


async def get_job(call: ApiCall) -> wire.JobInfo:
    return (await _job(call)).info


async def cancel(call: ApiCall) -> wire.JobInfo:
    job = await _job(call)
    return await call.gateway.jobs.cancel(job.info.job_id)


async def events(call: ApiCall) -> Response:
    """Server-sent events from the one after `Last-Event-ID` on; comments keep a silent stream alive."""
    given = call.request.headers.get(LAST_EVENT_ID, "0")
    last = whole_number(given)
    if last is None:
        raise InvalidInput(
            f"{LAST_EVENT_ID} is {given[:80]!r}", hint="it is the id of an event: a whole number"
        )
    job = await _job(call)
    return StreamingResponse(
        sse(call.gateway.jobs, job.info.job_id, last),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def sse(jobs: Jobs, job_id: str, after: int) -> AsyncGenerator[str, None]:
    """The stream's lines."""
    async for event in jobs.events(job_id, after):
        if event is None:
            yield ": keep-alive\n\n"
        else:
            yield f"id: {event.id}\nevent: {event.type}\ndata: {event.model_dump_json()}\n\n"


async def _job(call: ApiCall) -> JobRow:
    """The job. NotFound when there is none, and in the same words when it is another project's."""
    job = await call.gateway.store.get_job(call.param("job_id"))
    if call.principal.project not in (None, job.info.project):
        raise no_job(job.info.job_id)
    return job


_JOB = "/api/v1/jobs/{job_id}"

ROUTES = [
    ApiRoute(
        "POST", "/api/v1/jobs", Role.TRAIN, submit, "Submit one train call; the same Idempotency-Key is the same job",
        request=wire.SubmitTrain, response=wire.JobInfo, changes=True, headers=(IDEMPOTENCY_KEY,),
    ),
    ApiRoute(
        "POST", "/api/v1/jobs/sft", Role.TRAIN, submit_sft,
        "Submit one call of supervised fine-tuning; the same Idempotency-Key is the same job",
        request=SubmitSft, response=wire.JobInfo, changes=True, headers=(IDEMPOTENCY_KEY,),
    ),
    ApiRoute("GET", _JOB, Role.TRAIN, get_job, "One job", response=wire.JobInfo),
    ApiRoute(
        "GET", f"{_JOB}/events", Role.TRAIN, events, "A job's events as they come (JobEvent)",
        media_type="text/event-stream", headers=(LAST_EVENT_ID,),
    ),
    ApiRoute(
        "POST", f"{_JOB}/cancel", Role.TRAIN, cancel, "Cancel a job; one that has ended stays as it is",
        response=wire.JobInfo, changes=True,
    ),
]  # fmt: skip
