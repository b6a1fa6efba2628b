"""What a trainer is: recorded calls + rewards + weights -> a published checkpoint.

Torch-free: the gateway imports this module. The gateway holds a `Trainer` (server/trainers.py) that speaks
`art.ipc` to a worker process (`python -m art.trainer.worker`).

Methods over the channel:
    resolve_base_model  {"name", "quantization"}  -> ResolvedBaseModel
    prepare_model       PrepareModel    -> CheckpointInfo            (publishes the first step)
    train               TrainJob        -> events Progress, result TrainOutcome   (idempotent by job_id)
    train_sft           SftJob          -> events Progress, result TrainOutcome   (idempotent by job_id)
    delete_checkpoint   {"path"}        -> {}
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, Field

from art.config.model import LoraConfig, Quantization
from art.config.train import ResolvedTrainConfig
from art.types.jobs import (
    CheckpointInfo,
    ChoiceFate,
    ChoiceRef,
    ResolvedBaseModel,
    RolloutOutcome,
    SftSpec,
    TrainGroup,
    TrainTrajectory,
)

__all__ = [
    "SET_ASIDE",
    "CheckpointInfo",
    "ChoiceFate",
    "ChoiceRef",
    "PrepareModel",
    "Progress",
    "ResolvedBaseModel",
    "RolloutOutcome",
    "SftJob",
    "TrainGroup",
    "TrainJob",
    "TrainOutcome",
    "TrainTrajectory",
    "Trainer",
]

SET_ASIDE = "set_aside"
"""Folder beside `checkpoints` for steps that were written and never recorded; nothing reads it."""


class PrepareModel(BaseModel):
    """Make a model trainable: publish its step 0."""

    project: str
    name: str
    base: ResolvedBaseModel
    model_dir: str
    """`<path>/<project>/models/<name>`, absolute."""
    lora: LoraConfig | None = Field(default_factory=lambda: LoraConfig())
    """None: all weights are trained."""
    initial_adapter: str | None = None
    """Folder of an existing PEFT adapter that becomes step 0."""
    fork_of: str | None = None
    """Folder of another model's checkpoint that becomes the first step, with its number, optimizer and random state."""
    history: str = "keep"
    """The model's history policy, written into each manifest."""
    seed: int = 0


class Job(BaseModel):
    """What both kinds of job say: whose step it makes of which, and where everything lies."""

    job_id: str
    """Idempotency: a checkpoint whose manifest names this job is returned, not trained again."""
    project: str
    name: str
    batch: int
    base: ResolvedBaseModel
    model_dir: str
    blob_dir: str
    parent_step: int
    step: int
    """The step to publish."""
    lora: LoraConfig | None
    """None: all weights are trained."""
    history: str = "keep"
    """The model's history policy, written into the manifest."""
    seed: int = 0


class TrainJob(Job):
    """One batch. The trainer computes samples, advantages, packing and loss from this alone."""

    config: ResolvedTrainConfig
    groups: list[TrainGroup]


class SftJob(Job):
    """One call of supervised fine-tuning: its updates publish one step."""

    sft: SftSpec


class Progress(BaseModel):
    """A sign of life of a training job."""

    phase: str
    """"samples", "lookback" (where an option asks for one more pass), "forward", "update", "publish"."""
    done: int
    total: int
    metrics: dict[str, float] = Field(default_factory=dict)


class TrainOutcome(BaseModel):
    """What a batch did."""

    model_config = ConfigDict(extra="forbid")

    step: int
    """The published step; the parent's when nothing was published."""
    published: bool
    reason: str = ""
    """Why nothing was published; empty otherwise."""
    checkpoint: CheckpointInfo | None = None
    metrics: dict[str, float] = Field(default_factory=dict)
    rollouts: list[RolloutOutcome] = Field(default_factory=list)
    fates: list[ChoiceFate] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)
    """Automatic choices with their reasons."""


class Trainer(Protocol):
    """The gateway's view. A dead worker raises WorkerDied in every pending call."""

    async def resolve_base_model(
        self, name: str, *, quantization: Quantization | None = None
    ) -> ResolvedBaseModel: ...

    async def prepare_model(self, request: PrepareModel) -> CheckpointInfo: ...

    async def train(
        self, job: TrainJob | SftJob, on_progress: Callable[[Progress], None]
    ) -> TrainOutcome: ...

    async def delete_checkpoint(self, path: str) -> None: ...

    def stats(self) -> dict[str, Any]: ...
