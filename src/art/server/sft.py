"""Supervised fine-tuning on the gateway's side: examples are rendered when they arrive, then queued as a job.

Rendering at once means that what cannot be written by the model's template is refused at once, and that a job
taken up after a restart trains the very same tokens.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import Sequence
from pathlib import Path

from art.config.sft import resolve
from art.config.train import TrainConfig
from art.errors import ArtError, InvalidInput
from art.server.body import reading
from art.server.endpoint import ApiCall
from art.server.versions import ModelEntry
from art.store.records import JobRow, JobSpec, ModelRow, SelectedTrajectory
from art.tokens.sft_samples import SftSequence, read_conversation, render, to_arrays
from art.trainer.protocol import SftJob
from art.types import wire
from art.types.jobs import SftSpec
from art.types.policy import RolloutStatus
from art.types.wire_sft import SftExample, SubmitSft

IDEMPOTENCY_KEY = "Idempotency-Key"


async def submit_sft(call: ApiCall) -> wire.JobInfo:
    """Render the examples and queue a job of kind `sft`. InvalidInput names the example that cannot be trained."""
    request = call.body(SubmitSft)
    gateway = call.gateway
    entry = gateway.versions.entry(request.project, request.name)
    order = list(range(len(request.examples))) if request.order is None else request.order
    if not 0 <= min(order) <= max(order) < len(request.examples):
        raise InvalidInput(
            "`order` names an example that is not there",
            cause=f"it reaches from {min(order)} to {max(order)}; there are {len(request.examples)} examples",
        )
    config, notes = resolve(
        request.config,
        examples=len(order),
        parameters=entry.row.base.parameters,
        whole=entry.row.config.adapter is None,
    )
    # Beside the event loop: a file of examples takes seconds to tokenise, and calls go on meanwhile.
    rendered = await asyncio.to_thread(_render_all, entry, request.examples)
    limit = min(request.config.max_sequence_length or entry.context_length, entry.context_length)
    overlong = {number: size for number, size in enumerate(map(_longest, rendered)) if size > limit}
    kept = [one for number, found in enumerate(rendered) if number not in overlong for one in found]
    path = f"{request.project}/sft-{uuid.uuid4().hex}.blob"
    spec = JobSpec(
        config=TrainConfig(),
        sft=SftSpec(
            config=config,
            blob=await gateway.store.add_job_arrays(path, to_arrays(kept, order)),
            examples=len(order),
            left_out=sum(number in overlong for number in order),
        ),
        trajectories=[
            _left_out(index, overlong[number], limit)
            for index, number in enumerate(order)
            if number in overlong
        ],
        notes=notes,
    )
    key = call.request.headers.get(IDEMPOTENCY_KEY)
    digest = hashlib.sha256(await call.request.body()).hexdigest()
    return await gateway.jobs.submit(entry.row, spec, rewards=[], idempotency=(key, digest) if key else None)


def _render_all(entry: ModelEntry, examples: Sequence[SftExample]) -> list[list[SftSequence]]:
    """Per example, its sequences."""
    rendered = []
    for number, example in enumerate(examples):
        try:
            with reading("its text"):
                rendered.append(_render(entry, example, number))
        except ArtError as error:
            raise InvalidInput(
                f"example {number}: {error.message}", cause=error.cause, hint=error.hint
            ) from error
    return rendered


def _render(entry: ModelEntry, example: SftExample, number: int) -> list[SftSequence]:
    found: list[SftSequence] = []
    roles: list[str] = []
    for given in example.conversations:
        conversation = read_conversation(given.messages, given.tools)
        roles += [message.role for message in conversation.messages]
        if not any(conversation.trained):
            continue
        if conversation.tools and entry.proof.tools_refused:
            raise InvalidInput(
                f"{entry.wire_name} takes no tools",
                cause=f"its chat template holds no tool results: {entry.proof.tools_refused}",
                hint="leave `tools` out, or give the model another chat_template",
            )
        found += render(
            entry.renderer,
            conversation,
            stops=entry.proof.stop_token_ids,
            history=entry.row.config.history,
            example=number,
        )
    if not found:
        raise InvalidInput(
            "no message of it can be trained",
            cause=f"its messages are of role {', '.join(dict.fromkeys(roles))}; those of the assistant are trained, "
            "unless they say trainable: false",
            hint="give the answers as messages of role assistant",
        )
    return found


def _longest(sequences: Sequence[SftSequence]) -> int:
    return max(len(one.token_ids) for one in sequences)


def _left_out(index: int, size: int, limit: int) -> SelectedTrajectory:
    outcome = wire.TrajectoryOutcome(
        group=0,
        index=index,
        rollout_id=None,
        status=RolloutStatus.OVERLONG,
        reason=f"a sequence of {size} tokens; the limit is {limit}",
    )
    return SelectedTrajectory(group=0, index=index, outcome=outcome)


def sft_job(job: JobRow, model: ModelRow, blob_dir: Path, *, last: int) -> SftJob:
    """What the trainer gets of a started job.

    `last`: the model's highest step so far, which is its parent unless `latest` was rolled back.
    """
    assert job.spec.sft is not None, "a job of kind sft has its examples"
    assert job.batch is not None, "a started job has its place"
    assert job.parent_step is not None, "a started job has its place"
    return SftJob(
        job_id=job.info.job_id,
        project=model.project,
        name=model.name,
        batch=job.batch,
        base=model.base,
        model_dir=model.model_dir,
        blob_dir=str(blob_dir),
        parent_step=job.parent_step,
        step=max(last, job.parent_step) + 1,
        lora=model.config.adapter,
        sft=job.spec.sft,
        history=model.config.history,
        seed=model.config.lora.seed,
    )
