"""The rows of the store as typed records, without SQL."""

from __future__ import annotations

import time
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from art.config.model import ModelConfig
from art.config.train import TrainConfig
from art.types.jobs import CheckpointInfo, ChoiceFate, ResolvedBaseModel, SftSpec, TrainGroup
from art.types.policy import Limits, Purpose, RolloutStatus, Sampling
from art.types.wire import JobInfo, TrajectoryOutcome
from art.types.wire_keys import Quotas

Metadata = dict[str, float | int | str | bool | None]
Metrics = dict[str, float | int | bool]


class Role(StrEnum):
    """What a key may do; each role includes the ones before it."""

    INFER = "infer"
    """Call models; with a rollout id, only inside that rollout."""
    ROLLOUT = "rollout"
    """Open rollouts, set rewards."""
    TRAIN = "train"
    """Register models, submit jobs, delete checkpoints."""
    ADMIN = "admin"
    """Everything, keys included."""

    def includes(self, other: Role) -> bool:
        order = list(Role)
        return order.index(self) >= order.index(other)


class ModelRow(BaseModel):
    """A registered model. `project/name` is unique."""

    project: str
    name: str
    config: ModelConfig
    base: ResolvedBaseModel
    model_dir: str
    """Absolute: `<path>/<project>/models/<name>`."""
    step: int = 0
    """Latest published step."""
    batch: int = 0
    """Train calls so far, counted also when they published nothing."""
    created_at: float = Field(default_factory=time.time)
    notes: list[str] = Field(default_factory=list)


class CheckpointRow(BaseModel):
    """A published step and what its training reported."""

    info: CheckpointInfo
    metrics: dict[str, float] = Field(default_factory=dict)
    job_id: str | None = None
    parent_step: int | None = None
    """The step that its job began with; None where no job made it."""


class RolloutRow(BaseModel):
    """One run of an agent, without its calls."""

    rollout_id: str
    project: str
    model: str
    """The model's name inside the project."""
    step: int
    """Pinned when the session was opened."""
    purpose: Purpose = Purpose.TRAIN
    sampling: Sampling = "training"
    status: RolloutStatus = RolloutStatus.RUNNING
    reason: str = ""
    implicit: bool = False
    """True when no client opened it: calls without a session that were kept together by their history."""
    reward: float | None = None
    scenario_id: str | None = None
    group_id: str | None = None
    member: int = 0
    run_seed: int = 0
    seed_key: str = ""
    """As the client gave it (wire.OpenRollout)."""
    seed_identity: str = ""
    """Rollouts with the same one are told apart by `repeat` (server/sampling.py)."""
    repeat: int = 0
    """Filled in by the store."""
    limits: Limits = Field(default_factory=lambda: Limits())
    metrics: Metrics = Field(default_factory=dict)
    metadata: Metadata = Field(default_factory=dict)
    auxiliary: Literal["detect", "train"] = "detect"
    """`train`: no call counts as one on the side."""
    agent_rewards: dict[str, float] = Field(default_factory=dict)
    """By agent label, for calls without a reward of their own."""
    key_id: str | None = None
    """The key that opened it."""
    created_at: float = Field(default_factory=time.time)
    ended_at: float | None = None


class RolloutFilter(BaseModel):
    """Which rollouts `list_rollouts` returns; None does not restrict."""

    project: str | None = None
    model: str | None = None
    status: RolloutStatus | None = None
    group_id: str | None = None
    key_id: str | None = None
    limit: int = Field(1000, ge=1, le=100_000)
    """Newest first."""


class CallText(BaseModel):
    """The text of a call: what it added to its parent's conversation, and what was answered."""

    tail: list[dict[str, Any]] = Field(default_factory=list)
    """Messages since the parent call (all of them for a call without a parent)."""
    tools: list[dict[str, Any]] | None = None
    completions: list[dict[str, Any]] = Field(default_factory=list)
    """One assistant message per choice, by index."""
    outlines: list[list[tuple[str, int, int]]] = Field(default_factory=list)
    """Per choice, in which order it said what (`server.runs.Outline`)."""
    cached_tokens: int = 0
    """Prompt tokens that the engine did not compute again."""
    parent_choice: int = 0
    """The choice of the parent call that it continues."""
    kept: dict[str, Any] = Field(default_factory=dict)
    """What the call's dialect needs in order to answer for it later."""
    dropped: bool = False
    """The project keeps no content: roles and numbers are all there is."""


class RolloutChange(BaseModel):
    """A new status of a rollout."""

    rollout_id: str
    status: RolloutStatus
    reason: str = ""
    advantage: float | None = None
    """That a step which trained it used."""
    group: int | None = None
    """Number of its group in the train call that it took part in."""


class Outcomes(BaseModel):
    """Statuses and fates that become true together."""

    rollouts: list[RolloutChange] = Field(default_factory=list)
    choices: list[ChoiceFate] = Field(default_factory=list)


class RewardChange(BaseModel):
    """Rewards of a rollout: its own, and those of its calls (by id, or id/choice) and agents (by label)."""

    rollout_id: str
    reward: float | None = None
    """None leaves what is there."""
    calls: dict[str, float] = Field(default_factory=dict)
    agents: dict[str, float] = Field(default_factory=dict)
    auxiliary: dict[str, bool] = Field(default_factory=dict)
    """By call id: whether it is a call on the side."""
    metrics: Metrics = Field(default_factory=dict)
    metadata: Metadata = Field(default_factory=dict)


class SelectedTrajectory(BaseModel):
    """Where one handed-over trajectory went."""

    group: int
    index: int
    label: str | None = None
    """`rollout_id` of the TrainTrajectory that stands for it; None when it was left out."""
    rollout_ids: list[str] = Field(default_factory=list)
    """Rollouts whose calls it selects."""
    outcome: TrajectoryOutcome | None = None
    """Decided before training: left out, and why."""


class JobSpec(BaseModel):
    """What a training job trains: selected, checked, independent of the request that brought it."""

    config: TrainConfig
    groups: list[TrainGroup] = Field(default_factory=list)
    sft: SftSpec | None = None
    """Of a job of supervised fine-tuning, which has no groups."""
    trajectories: list[SelectedTrajectory] = Field(default_factory=list)
    fates: list[ChoiceFate] = Field(default_factory=list)
    """Fates decided by the selection (filtered, duplicate)."""
    notes: list[str] = Field(default_factory=list)
    raised: int = 0
    """Rollouts of the batch that raised before they were trajectories."""
    scenarios: list[str] = Field(default_factory=list)
    """Digests of the scenarios that the batch was handed over with."""


class JobRow(BaseModel):
    """A job with its specification and the place it was given in the model's history."""

    info: JobInfo
    spec: JobSpec
    batch: int | None = None
    """Number of the batch, fixed when the job first starts, so that a repeated attempt is the same batch."""
    parent_step: int | None = None
    cancel_requested: bool = False


class KeyRow(BaseModel):
    """An API key; the secret itself is never stored."""

    key_id: str
    sha256: str
    """Hex digest of the whole token, which holds 256 random bits."""
    role: Role
    project: str | None = None
    rollout_id: str | None = None
    label: str = ""
    created_at: float = Field(default_factory=time.time)
    expires_at: float | None = None
    revoked_at: float | None = None
    quotas: Quotas = Quotas()
    account: str = ""
    """Whose quotas its calls use up: the first of the keys that replaced one another."""
    opened_by: str | None = None
    """Of a rollout's key: the key that opened the rollout. It ends with that one, and uses up its quotas."""


class AuditRow(BaseModel):
    """One change, who made it and what it touched."""

    id: int = 0
    """Given by the store."""
    time: float = Field(default_factory=time.time)
    key_id: str | None
    action: str
    target: str
    detail: dict[str, Any] = Field(default_factory=dict)


class LoggedTrajectory(BaseModel):
    """A trajectory as `model.log` handed it over."""

    project: str
    name: str
    split: str
    step: int
    group: int
    index: int
    rollout_id: str | None = None
    reward: float
    body: dict[str, Any] = Field(default_factory=dict)
    created_at: float = Field(default_factory=time.time)


class IdempotencyRow(BaseModel):
    """A request that was answered before."""

    model_config = ConfigDict(frozen=True)

    scope: str
    key: str
    digest: str
    """sha256 of the request's body: the same key with another body is a conflict."""
    ref: str
    """What it created."""


JobEventType = Literal[
    "queued", "started", "progress", "restarted", "succeeded", "failed", "cancelled", "note"
]
