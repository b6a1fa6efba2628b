"""What is written of a step beside its tensors: its manifest, and the sequence by which its weights are known again."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from art.errors import InvalidInput, NotFound
from art.tokens.samples import SampledChoice
from art.trainer.checkpoint import CheckpointStore, Manifest
from art.trainer.forward import Policy
from art.trainer.protocol import PrepareModel, SftJob, TrainJob, TrainOutcome

PROBE_TOKENS = 64
"""Length of the self-check sequence: enough for an adapter to show, one short prefill for the engine."""


def first_manifest(request: PrepareModel, policy: Policy) -> Manifest:
    """Of step 0, whose weights the policy holds."""
    probe = first_probe(policy.vocab_size, request.base.context_length, request.seed)
    return Manifest(
        project=request.project,
        name=request.name,
        step=0,
        parent_step=None,
        batch=0,
        job_id=None,
        base=request.base,
        lora=request.lora,
        config=None,
        history=request.history,
        code_version=code_version(),
        sample_digest="",
        is_base=request.initial_adapter is None,
        probe_token_ids=probe,
        probe_logprobs=policy.probe(probe),
        created_at=0.0,
    )


def starts(store: CheckpointStore, step: int, request: PrepareModel) -> bool:
    """Whether the step that is there is whole and the one that `request` would publish.

    An initial adapter leaves no trace by which it is known again, so what came of one never is.
    """
    try:
        manifest = store.manifest(step)
        store.load_adapter(step)
    except (NotFound, InvalidInput):
        return False
    asked = (request.project, request.name, request.base.sha256, request.lora, request.history)
    made = (manifest.project, manifest.name, manifest.base.sha256, manifest.lora, manifest.history)
    if asked != made:
        return False
    if request.fork_of is None:
        return step == 0 and manifest.is_base and not manifest.forked_from and request.initial_adapter is None
    folder = Path(request.fork_of)
    source = CheckpointStore(folder.parent.parent).manifest(int(folder.name))
    return (step, manifest.forked_from, manifest.files) == (source.step, source.version, source.files)


def manifest_of(
    job: TrainJob | SftJob,
    policy: Policy,
    outcome: TrainOutcome,
    *,
    longest: SampledChoice,
    sample_digest: str,
) -> Manifest:
    """Of the step that `job` publishes; `longest` of what it was trained on is the sequence of the self-check."""
    probe = [int(token) for token in longest.path[-PROBE_TOKENS:]]
    if len(probe) < 2 or _is_sealed(job):
        probe = first_probe(policy.vocab_size, job.base.context_length, job.seed)
    return Manifest(
        project=job.project,
        name=job.name,
        step=job.step,
        parent_step=job.parent_step,
        batch=job.batch,
        job_id=job.job_id,
        base=job.base,
        lora=job.lora,
        config=job.config if isinstance(job, TrainJob) else None,
        sft=job.sft.config if isinstance(job, SftJob) else None,
        history=job.history,
        code_version=code_version(),
        sample_digest=sample_digest,
        is_base=False,
        probe_token_ids=probe,
        probe_logprobs=policy.probe(probe),
        created_at=0.0,
        metrics=outcome.metrics,
        outcome=outcome,
    )


def _is_sealed(job: TrainJob | SftJob) -> bool:
    """Whether tokens that it trains are encrypted on the disk: then none of them may stand in a manifest."""
    if isinstance(job, SftJob):
        return job.sft.blob.sealed
    trajectories = (one for group in job.groups for one in group.trajectories)
    return any(ref.blob.sealed for one in trajectories for ref in one.choices)


def first_probe(vocab_size: int, context_length: int, seed: int) -> list[int]:
    """Tokens for the self-check of a step that was trained on nothing."""
    generator = torch.Generator().manual_seed(seed)
    count = min(PROBE_TOKENS, context_length)
    return [int(token) for token in torch.randint(0, vocab_size, (count,), generator=generator)]


def code_version() -> str:
    """The installed version of ART."""
    try:
        return version("agent-reinforcement-trainer")
    except PackageNotFoundError:
        return "unknown"
