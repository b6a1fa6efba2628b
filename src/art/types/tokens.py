"""Token records: what the engine was given and sampled, as the trainer will see it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from art.types.policy import Fate, SamplingParams


class ArtField(BaseModel):
    """The `art` field beside `token_ids` on every choice and on the last chunk of a stream."""

    call_id: str
    choice: int
    version: str
    """The adapter that sampled it: `project/name@step`."""


class BlobRef(BaseModel):
    """Where one call's token arrays lie: a safetensors buffer inside a rollout's blob file."""

    model_config = ConfigDict(frozen=True)

    path: str
    """Relative to the store's blob folder."""
    offset: int
    length: int
    crc32: int
    sealed: bool = False
    """Encrypted, and destroyed once it was trained: the call's text was redacted, or not kept."""


class VersionSpan(BaseModel):
    """Tokens [start, end) of a completion were sampled by `version`."""

    start: int
    end: int
    version: str


class ChoiceRecord(BaseModel):
    """One choice of a call, without its arrays (they lie in the call's blob as `c{index}.*`)."""

    index: int
    finish_reason: str
    token_count: int
    spans: list[VersionSpan] = Field(default_factory=list)
    fate: Fate = Fate.PENDING
    reason: str = ""
    reward: float | None = None
    """A reward of its own; None takes its agent's or the rollout's."""
    weight: float = 1.0
    trained_tokens: int = 0
    trained_step: int | None = None
    """The step it was trained into."""


class CallRecord(BaseModel):
    """One request to the model and its completion, as stored."""

    call_id: str
    rollout_id: str
    parent_call_id: str | None = None
    branch: int = 0
    number: int = 0
    """0 for the rollout's first call."""
    agent: str | None = None
    """Agent label given by the caller, for per-agent credit."""
    dialect: str = "openai.chat"
    version: str = ""
    purpose: str = "train"
    auxiliary: bool = False
    """Work on the side (a title, a summary): left out unless a trajectory names it."""
    auxiliary_reason: str = ""
    auxiliary_asked: bool | None = None
    """What the caller said about it; None leaves it to the rules of `server/auxiliary`."""
    tool_count: int = 0
    system_number: int = 0
    """Which of the rollout's system prompts it has, 0 for the first one seen."""
    opening_number: int = 0
    """Which of the rollout's openings (system prompt and first message behind it) it has."""
    sampling_asked: dict[str, object] = Field(default_factory=dict)
    sampling_used: SamplingParams = Field(default_factory=lambda: SamplingParams())
    prompt_token_count: int = 0
    reused_token_count: int = 0
    """Prompt tokens taken from token memory instead of being rendered anew."""
    started_at: float = 0.0
    first_token_at: float | None = None
    finished_at: float | None = None
    choices: list[ChoiceRecord] = Field(default_factory=list)
    blob: BlobRef | None = None
