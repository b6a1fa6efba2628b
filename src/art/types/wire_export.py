"""What an export holds: a run's rollouts as they were recorded, and its trajectories as they were logged.

One record a line in JSONL, one a row in Parquet. Nothing is rounded and nothing is left out but what the server itself
does not keep, and what it keeps encrypted (`withheld` says so). Numbers that JSON has no words for are written
`"NaN"`, `"Infinity"` and `"-Infinity"`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

FORMAT = 1
"""Of the records. A reader refuses a higher one."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="strings")


class ExportedChoice(_Record):
    """One sampled answer."""

    index: int
    finish_reason: str
    message: dict[str, Any] = Field(default_factory=dict)
    """As an assistant's message in OpenAI's form."""
    token_count: int
    token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    """As sampled, in nats, one a token."""
    trainable: list[bool] | None = None
    """False for tokens that a grammar forced; None where all may be trained."""
    trained_logprobs: list[float] | None = None
    """The trainer's, before the first update of the step that trained the answer; None where it kept none."""
    spans: list[dict[str, Any]] = Field(default_factory=list)
    """`{start, end, version}`: who sampled which tokens."""
    fate: str
    reason: str = ""
    reward: float | None = None
    """Of its own; None takes its agent's or the rollout's."""
    weight: float = 1.0
    advantage: float | None = None
    trained_tokens: int = 0
    trained_step: int | None = None


class ExportedCall(_Record):
    """One request to the model and its answers."""

    call_id: str
    parent_call_id: str | None = None
    parent_choice: int = 0
    """The answer of the parent call that it goes on from."""
    number: int
    branch: int
    agent: str | None = None
    dialect: str
    version: str
    auxiliary: bool = False
    auxiliary_reason: str = ""
    sampling_asked: dict[str, Any] = Field(default_factory=dict)
    sampling_used: dict[str, Any] = Field(default_factory=dict)
    prompt_token_count: int
    reused_token_count: int = 0
    prompt_token_ids: list[int] | None = None
    tail: list[dict[str, Any]] = Field(default_factory=list)
    """The messages that it added to its parent's conversation; all of them for a call without a parent."""
    tools: list[dict[str, Any]] | None = None
    started_at: float
    first_token_at: float | None = None
    finished_at: float | None = None
    choices: list[ExportedChoice] = Field(default_factory=list)
    withheld: str = ""
    """Why its tokens are not here."""


class ExportedRollout(_Record):
    """One rollout as the server recorded it."""

    kind: Literal["rollout"] = "rollout"
    format: int = FORMAT
    project: str
    model: str
    rollout_id: str
    step: int
    purpose: str
    status: str
    reason: str = ""
    """Of its status; for `agent_error` what the agent raised."""
    reward: float | None = None
    scenario_id: str | None = None
    group_id: str | None = None
    member: int = 0
    run_seed: int = 0
    sampling: str = "training"
    metrics: dict[str, Any] = Field(default_factory=dict)
    metadata: dict[str, Any] = Field(default_factory=dict)
    agent_rewards: dict[str, float] = Field(default_factory=dict)
    limits: dict[str, Any] = Field(default_factory=dict)
    flag: str | None = None
    note: str = ""
    """A person's."""
    created_at: float
    ended_at: float | None = None
    calls: list[ExportedCall] = Field(default_factory=list)


class ExportedLog(_Record):
    """One trajectory as a program logged it: its own messages, metrics and logs, and its group's exceptions."""

    kind: Literal["logged"] = "logged"
    format: int = FORMAT
    project: str
    model: str
    rollout_id: str | None = None
    """The record that it was made of."""
    split: str
    step: int
    group: int
    """Its group's place in the log call."""
    index: int
    reward: float
    body: dict[str, Any] = Field(default_factory=dict)
    """A `wire.TrajectoryIn` without what the calls hold, and under `group` a `wire.GroupIn` without its trajectories."""
    created_at: float


Record = Annotated[ExportedRollout | ExportedLog, Field(discriminator="kind")]
RECORD: TypeAdapter[ExportedRollout | ExportedLog] = TypeAdapter(Record)


class ExportEnd(_Record):
    """The last line of an export over HTTP: without it the stream was cut short."""

    kind: Literal["end"] = "end"
    records: int


class WrittenExport(BaseModel):
    """What `art export` has written."""

    model_config = ConfigDict(extra="forbid")

    file: str
    run: str
    format: Literal["jsonl", "parquet"]
    records: int
    bytes: int
