"""The control API's requests and responses (`/api/v1`). Client and server share these classes.

Routes (role that may call it):
    GET    /api/v1/health                                   any key         -> Health
    GET    /api/v1/openapi.json                             any key
    POST   /api/v1/models            RegisterModel          train           -> ModelInfo      (idempotent)
    GET    /api/v1/models                                   infer           -> ModelList
    GET    /api/v1/models/{project}/{name}                  infer           -> ModelInfo
    GET    /api/v1/models/{project}/{name}/checkpoints      infer           -> CheckpointList
    DELETE /api/v1/models/{project}/{name}/checkpoints      train  DeleteCheckpoints -> DeletedCheckpoints
    POST   /api/v1/models/{project}/{name}/log              train  LogRequest        -> Logged
    GET    /api/v1/models/{project}/{name}/history          infer           -> HistoryRows
    POST   /api/v1/models/{project}/{name}/fork             train  ForkModel         -> ModelInfo      (idempotent)
    POST   /api/v1/models/{project}/{name}/rollback         train  RollBack          -> ModelInfo      (idempotent)
    POST   /api/v1/rollouts          OpenRollout            rollout         -> RolloutOpened
    GET    /api/v1/rollouts/{id}                            rollout         -> RolloutInfo
    GET    /api/v1/rollouts/{id}/upstream_calls             rollout         -> UpstreamCalls
    GET    /api/v1/rollouts/{id}/explain                    rollout         -> Explanation    (?tokens=true)
    POST   /api/v1/rollouts/{id}/reward   SetReward         rollout         -> RolloutInfo    (idempotent)
    POST   /api/v1/rollouts/{id}/finish   FinishRollout     rollout         -> RolloutInfo    (idempotent)
    POST   /api/v1/jobs              SubmitTrain            train           -> JobInfo        (Idempotency-Key)
    POST   /api/v1/jobs/sft          SubmitSft              train           -> JobInfo        (Idempotency-Key)
    GET    /api/v1/jobs/{id}                                train           -> JobInfo
    GET    /api/v1/jobs/{id}/events                         train           SSE of JobEvent; `Last-Event-ID` resumes
    POST   /api/v1/jobs/{id}/cancel                         train           -> JobInfo
    POST   /api/v1/keys              CreateKey              admin           -> CreatedKey     (wire_keys)
    GET    /api/v1/keys                                     admin           -> KeyList
    PATCH  /api/v1/keys/{id}         ChangeKey              admin           -> KeyInfo        (idempotent)
    POST   /api/v1/keys/{id}/rotate  RotateKey              admin           -> CreatedKey
    DELETE /api/v1/keys/{id}                                admin           -> KeyInfo        (idempotent)
    GET    /api/v1/views/...                                                    (wire_views; views/key: OwnKey of wire_keys)
Inference: POST /v1/chat/completions, POST /v1/responses, GET /v1/responses/{id} and GET /v1/models, also under
    /r/{rollout}/v1/.
    A call's rollout: the URL's, else the header `X-ART-Rollout` (an id that is new opens a rollout: purpose train,
    the caller's sampling; role rollout), else the key's, else the one open conversation it continues. Further headers:
    X-ART-Project, X-ART-Scenario, X-ART-Group, X-ART-Member (a number), X-ART-Agent, X-ART-Auxiliary (true or false),
    X-ART-Timeout (seconds), X-ART-Purpose (`evaluate`: what the call opens is never trained).
    `Idempotency-Key` replays an answer inside a rollout.
Errors: {"error": {"code", "message", "cause", "hint"}} on the control API; OpenAI's shape plus `code` on /v1.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from art.config.model import ModelConfig
from art.config.train import TrainConfig
from art.types.policy import Limits, Purpose, RolloutStatus, Sampling
from art.types.tokens import CallRecord
from art.types.upstreams import UpstreamCall

Int64 = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
"""What the store's columns take."""
Step = Annotated[int, Field(ge=0, le=2**63 - 1)]
Reward = Annotated[float, Field(strict=True)]
"""A JSON number: neither "1" nor true is one."""
_Key = Annotated[str, Field(max_length=200)]
_Name = Annotated[str, Field(max_length=1000)]
"""Of a scenario or a group: it stands in lists and addresses."""
_Text = Annotated[str, Field(max_length=100_000)]
Metrics = Annotated[dict[_Key, float | Int64 | bool], Field(max_length=10_000)]
Metadata = Annotated[dict[_Key, float | Int64 | _Text | bool | None], Field(max_length=1000)]
"""Facts about a rollout, a trajectory or a group; long texts belong in its messages or logs."""


class Wire(BaseModel):
    """Requests refuse unknown fields and numbers that are none; a misspelt option is no surprise but an error."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


# -- health


class WorkerHealth(BaseModel):
    name: str
    pid: int | None
    alive: bool
    restarts: int
    last_heartbeat_age: float | None
    """Seconds."""
    stats: dict[str, Any] = Field(default_factory=dict)


class Health(BaseModel):
    status: Literal["ok", "degraded"]
    version: str
    pid: int
    started_at: float
    path: str
    workers: list[WorkerHealth] = Field(default_factory=list)
    deterministic: bool = False
    """Seeded runs repeat themselves bit by bit (docs/deterministic.md)."""


# -- models


class RegisterModel(Wire):
    project: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    config: ModelConfig


class ForkModel(RegisterModel):
    """Another model, to start as a copy of a step of the path's: its latest, or its latest up to `not_after_step`."""

    not_after_step: Step | None = None


class RollBack(Wire):
    """An earlier step that becomes the latest again. Later ones stay, and the next one published comes after them."""

    step: Step


class ModelInfo(BaseModel):
    project: str
    name: str
    config: ModelConfig
    base_model_path: str
    parameters: int
    context_length: int
    step: int
    """Latest published step."""
    batch: int
    """Train calls so far, counted also when they published nothing."""
    inference_name: str
    """`project/name`."""
    model_dir: str
    notes: list[str] = Field(default_factory=list)


class ModelList(BaseModel):
    models: list[ModelInfo]


class Checkpoint(BaseModel):
    step: int
    path: str
    created_at: float
    metrics: dict[str, float] = Field(default_factory=dict)
    parent_step: int | None = None
    """The step it was trained from; None for the first one."""
    leased: bool = False
    """Open rollouts or running calls use it; it is not deleted meanwhile."""


class CheckpointList(BaseModel):
    checkpoints: list[Checkpoint]


class DeleteCheckpoints(Wire):
    """`steps` to delete; the latest and leased ones are refused."""

    steps: list[Int64]


class DeletedCheckpoints(BaseModel):
    deleted: list[int]
    missing: list[int]


# -- trajectories


class History(BaseModel):
    """One message list of a trajectory: messages as dicts, choices as dumped openai `Choice`s."""

    messages_and_choices: list[dict[str, Any]] = Field(default_factory=list)
    tools: list[dict[str, Any]] | None = None


class TrajectoryIn(Wire):
    """A trajectory as the client hands it over for training or logging."""

    messages_and_choices: list[dict[str, Any]] = Field(default_factory=list)
    tools: list[dict[str, Any]] | None = None
    additional_histories: list[History] = Field(default_factory=list)
    reward: Reward
    """Must be finite; NaN and None are refused where they arise."""
    metrics: Metrics = Field(default_factory=dict)
    metadata: Metadata = Field(default_factory=dict)
    logs: list[str] = Field(default_factory=list)
    start_time: str | None = None
    initial_policy_version: int | None = None
    final_policy_version: int | None = None
    rollout_id: str | None = None
    selects_rollout: bool = False
    """True: every non-auxiliary call of `rollout_id` is selected (sessions: wrap, fit, art.rollout).
    False: the choices in the histories select their calls."""


class ExceptionIn(Wire):
    type: str
    message: str
    traceback: str = ""


class GroupIn(Wire):
    trajectories: list[TrajectoryIn]
    exceptions: list[ExceptionIn] = Field(default_factory=list)
    metadata: Metadata = Field(default_factory=dict)
    metrics: Metrics = Field(default_factory=dict)
    logs: list[str] = Field(default_factory=list)


class LogRequest(Wire):
    """`model.log`: trajectories and metrics of one split at one step."""

    split: str = Field("val", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    step: Step
    groups: list[GroupIn] = Field(default_factory=list)
    metrics: Annotated[dict[_Key, float], Field(max_length=10_000)] = Field(default_factory=dict)
    recorded_at: str = Field(max_length=100)


class Logged(BaseModel):
    rollouts: int
    row: dict[str, Any] = Field(default_factory=dict)
    """The history row as it is kept: what was sent, under full names, and the sums over the run."""


class HistoryRows(BaseModel):
    rows: list[dict[str, Any]]


# -- rollouts


class OpenRollout(Wire):
    model: str
    """`project/name[@step]`; latest is pinned now."""
    rollout_id: str | None = None
    """Given by the client so that a repeated request opens nothing twice."""
    purpose: Purpose = Purpose.TRAIN
    sampling: Sampling | None = None
    """None: `training` for purpose train, `caller` for evaluate."""
    scenario_id: _Name | None = None
    group_id: _Name | None = None
    member: Int64 = 0
    """Index within the group; part of the per-call seed."""
    run_seed: Int64 = 0
    seed_key: _Key = ""
    """The rollout's place in its run, where scenario and member do not say it (a scenario that comes twice in a batch).
    A rollout that is run again because ART failed it gets the same one, and draws the same."""
    limits: Limits = Field(default_factory=lambda: Limits())
    metadata: Metadata = Field(default_factory=dict)
    auxiliary: Literal["detect", "train"] = "detect"
    """`detect`: calls on the side (titles, summaries) are recognised and left out. `train`: none is."""


class RolloutOpened(BaseModel):
    rollout_id: str
    model: str
    """Pinned: `project/name@step`."""
    base_url: str
    """`http://host:port/r/<id>/v1` at the server's own address. A client that reaches the server by another one
    (a tunnel's port, a proxy) puts `/r/<id>/v1` behind that."""
    api_key: str
    """Scoped to this rollout; shown once."""
    step: int


class SetReward(Wire):
    """The reward of a rollout, of its calls or of its agents. Answered 2xx means kept."""

    reward: Reward | None = None
    """Of every call that has no reward of its own."""
    calls: Annotated[dict[_Key, Reward], Field(max_length=10_000)] = Field(default_factory=dict)
    """By call id, or `<call id>/<choice>` for one choice of several."""
    agents: Annotated[dict[_Key, Reward], Field(max_length=1000)] = Field(default_factory=dict)
    """By agent label (`X-ART-Agent`), for calls without a reward of their own."""
    auxiliary: Annotated[dict[_Key, bool], Field(max_length=10_000)] = Field(default_factory=dict)
    """By call id: whether it is a call on the side, whatever the rules say."""
    metrics: Metrics = Field(default_factory=dict)
    metadata: Metadata = Field(default_factory=dict)


class FinishRollout(Wire):
    status: Literal["finished", "evaluated", "agent_error", "infra_error"] = "finished"
    reason: str = ""


class RolloutInfo(BaseModel):
    rollout_id: str
    project: str
    model: str
    step: int
    purpose: Purpose
    status: RolloutStatus
    reason: str = ""
    reward: float | None = None
    scenario_id: str | None = None
    group_id: str | None = None
    member: int = 0
    metrics: dict[str, float | int | bool] = Field(default_factory=dict)
    metadata: dict[str, float | int | str | bool | None] = Field(default_factory=dict)
    created_at: float = 0.0
    ended_at: float | None = None
    agent_rewards: dict[str, float] = Field(default_factory=dict)
    failed_calls: int = 0
    """While it is open: calls that a failure of ART ended. An agent that gave up then is not to blame."""
    calls: list[CallRecord] = Field(default_factory=list)
    upstream_calls: list[UpstreamCall] = Field(default_factory=list)
    messages: list[dict[str, Any]] = Field(default_factory=list)
    """The main branch as chat messages; assistant messages carry their choice as `choice`."""


# -- jobs


class SubmitTrain(Wire):
    """One train call. `Idempotency-Key` makes a repeated submission the same job."""

    project: str
    name: str
    groups: list[GroupIn]
    config: TrainConfig = Field(default_factory=lambda: TrainConfig())


JobStatus = Literal["queued", "running", "succeeded", "failed", "cancelled"]


class TrajectoryOutcome(BaseModel):
    """What became of one trajectory of the batch, in the order it was handed over."""

    group: int
    index: int
    rollout_id: str | None
    status: RolloutStatus
    reason: str = ""


class JobResult(BaseModel):
    step: int
    published: bool
    reason: str = ""
    batch: int
    checkpoint_path: str | None = None
    metrics: dict[str, float] = Field(default_factory=dict)
    trajectories: list[TrajectoryOutcome] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)


class JobInfo(BaseModel):
    job_id: str
    project: str
    name: str
    kind: Literal["train", "sft"] = "train"
    status: JobStatus
    created_at: float
    started_at: float | None = None
    ended_at: float | None = None
    attempts: int = 0
    """How often the trainer took it up."""
    result: JobResult | None = None
    error: dict[str, str] | None = None


class JobEvent(BaseModel):
    """One line of a job's event stream; `id` counts from 1 within the job."""

    id: int
    type: Literal["queued", "started", "progress", "restarted", "succeeded", "failed", "cancelled", "note"]
    time: float
    data: dict[str, Any] = Field(default_factory=dict)
