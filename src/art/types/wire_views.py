"""What the dashboard, `art ls`, `show`, `tail` and `compare` read: `/api/v1/views/...`.

A run is a model's history, `project/name`. Times are seconds since 1970, token positions count from 0, and every list
that can be long is a page: `next` is the cursor of the page behind it, None at the end.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from art.types.policy import Purpose, RolloutStatus
from art.types.wire_metrics import MetricInfo as MetricInfo
from art.types.wire_metrics import MetricList as MetricList
from art.types.wire_reward import Points as Points
from art.types.wire_reward import RewardCheck as RewardCheck
from art.types.wire_reward import RewardLink as RewardLink
from art.types.wire_reward import RewardWarning as RewardWarning
from art.types.wire_scenarios import ScenarioLine as ScenarioLine
from art.types.wire_scenarios import ScenarioList as ScenarioList
from art.types.wire_server_view import Note as Note
from art.types.wire_server_view import QueueInfo as QueueInfo
from art.types.wire_server_view import RunConfig as RunConfig
from art.types.wire_server_view import SavedView as SavedView
from art.types.wire_server_view import SavedViews as SavedViews
from art.types.wire_server_view import ServerView as ServerView


class RunLine(BaseModel):
    """One run in a list."""

    project: str
    name: str
    base_model: str
    state: Literal["training", "sampling", "idle"]
    """A job of it runs; a rollout of it runs; neither."""
    step: int
    batch: int
    created_at: float
    updated_at: float
    """Of its newest rollout, job or log."""
    rollouts: int
    running: int
    """Rollouts that have not ended."""
    sampled_tokens: int
    reward_first: float | None = None
    reward_last: float | None = None
    """Mean training reward of the first and the newest logged step."""
    val_reward_last: float | None = None
    cost_usd: float | None = None
    """`costs/cum/all`; None where nothing was counted."""
    rewards: list[float] = Field(default_factory=list)
    """Training reward by step, thinned to at most 60 points, for a sparkline."""


class RunList(BaseModel):
    runs: list[RunLine]
    """Newest `updated_at` first."""
    next: str | None = None


class Figure(BaseModel):
    """One metric of a run, in short."""

    name: str
    last: float
    last_step: int
    count: int
    """Of steps that have it."""
    state: Literal["ok", "warning"] = "ok"
    """Its newest value against the band of its MetricInfo."""


class RunDetail(BaseModel):
    run: RunLine
    figures: list[Figure]
    statuses: dict[str, int]
    """Rollouts by status."""
    fates: dict[str, int]
    """Choices by fate."""
    notes: list[str]
    config: dict[str, Any]
    """Of the model as the server keeps it, the resolved configuration of its newest `art run` under `run`, and the options of
    its newest train call under `train_call`."""
    config_origin: dict[str, str] = Field(default_factory=dict)
    """Of `run`: dotted name to who set it; of `train_call` too, whose names begin so."""


class Series(BaseModel):
    """One metric over a run, thinned by buckets that keep their smallest and largest values."""

    step: list[int]
    time: list[float]
    value: list[float]
    low: list[float] | None = None
    high: list[float] | None = None
    """A band: reward -/+ its spread, an evaluation's 95 % interval."""


class SeriesSet(BaseModel):
    series: dict[str, Series]
    """By metric; one that the run lacks is left out."""


class StepLine(BaseModel):
    """One train call of a run."""

    batch: int
    step: int
    """Of the checkpoint it published; of its parent when it published none."""
    parent_step: int
    """That it was trained on top of; most of its rollouts were sampled at it."""
    published: bool
    reason: str = ""
    """Why it published nothing."""
    time: float
    seconds: float | None = None
    groups: int
    rollouts: int
    reward: float | None = None
    reward_std_dev: float | None = None
    statuses: dict[str, int]
    """Its rollouts by status."""
    warnings: list[str] = Field(default_factory=list)
    """Names of its figures that are past their band."""
    metrics: dict[str, float]


class StepList(BaseModel):
    steps: list[StepLine]
    """Newest first."""
    next: str | None = None


class GroupMember(BaseModel):
    """A rollout of a group, in short."""

    rollout_id: str
    reward: float | None = None
    status: RolloutStatus


class GroupLine(BaseModel):
    """Rollouts of one scenario that were compared with one another."""

    group_id: str
    scenario_id: str | None = None
    scenario_label: str = ""
    """What to call a scenario whose id is a digest: the beginning of what its rollout was asked. Empty where the id will do."""
    step: int
    """That served its first rollout."""
    batch: int | None = None
    """The newest train call that took it, whatever it published; `groups?batch=` lists one call's."""
    size: int
    reward_mean: float | None = None
    reward_std_dev: float | None = None
    reward_min: float | None = None
    reward_max: float | None = None
    statuses: dict[str, int]
    created_at: float
    members: list[GroupMember] = Field(default_factory=list)
    """By reward, highest first, those without one last; at most 64."""
    preview: str = ""
    """The beginning of what its first rollout was asked."""


class GroupList(BaseModel):
    groups: list[GroupLine]
    """Newest first."""
    next: str | None = None


class RolloutLine(BaseModel):
    """One rollout in a list."""

    rollout_id: str
    project: str
    model: str
    step: int
    group_id: str | None = None
    scenario_id: str | None = None
    scenario_label: str = ""
    """As of a group."""
    member: int
    purpose: Purpose
    status: RolloutStatus
    reason: str = ""
    reward: float | None = None
    advantage: float | None = None
    """Of its group, as the newest step that trained it used it."""
    batch: int | None = None
    """The newest train call that took it."""
    calls: int
    prompt_tokens: int
    """Of its longest prompt."""
    sampled_tokens: int
    tool_calls: int
    tool_errors: int
    """Tool results that say they are an error."""
    created_at: float
    seconds: float | None = None
    flag: str | None = None
    metrics: dict[str, float] = Field(default_factory=dict)
    preview: str = ""
    """The beginning of its last answer."""
    answer_tokens: int | None = None
    """Sampled tokens of its last answer, reasoning included; None where it has none."""
    hit: str = ""
    """Where a search found it: some words around the place; what matched stands between the characters U+0002 and U+0003."""


class RolloutList(BaseModel):
    rollouts: list[RolloutLine]
    next: str | None = None
    total: int
    """That match, counted up to 10,000."""
    more: bool = False
    """There are more than `total`."""
    reward_mean: float | None = None
    """Over those that match and have a reward; None where there are more than `total`."""
    metrics: list[str] = Field(default_factory=list)
    """Names of what the program logs with its rollouts, as the newest of the run have them."""


class Message(BaseModel):
    """One message as a person reads it."""

    role: str
    text: str = ""
    reasoning: str = ""
    tool_calls: list[dict[str, Any]] = Field(default_factory=list)
    """`{id, name, arguments}`; arguments as text."""
    tool_call_id: str | None = None
    name: str | None = None
    error: bool = False
    """A tool result that says it is an error."""
    call_id: str | None = None
    choice: int | None = None
    """Of a sampled message: where its tokens are."""


class Member(BaseModel):
    """A rollout of a group, with the messages that lead to its last answer."""

    rollout: RolloutLine
    messages: list[Message]
    explanation: str = ""
    """Of a judge, as it was logged with the trajectory."""
    branch: int = 0
    """Of its last answer. The others, from the first on, stand in the rollout's tree of calls."""
    branches: int = 1
    """How many it has, without those on the side."""


class Divergence(BaseModel):
    """The first place at which not all rollouts of a group say the same."""

    message: int
    """Index into `messages`."""
    character: int
    """Into that message's reasoning, text and tool calls (`name(arguments)`), in this order, joined by line feeds; what is
    empty is left out."""


class GroupDetail(BaseModel):
    group: GroupLine
    members: list[Member]
    """By reward, highest first; those without one last."""
    divergence: Divergence | None = None


class CallChoice(BaseModel):
    index: int
    message: Message
    finish_reason: str
    token_count: int
    fate: str
    reason: str
    """Why it was trained, will be, or was not."""
    reward: float | None = None
    reward_of: str = ""
    advantage: float | None = None
    trained_step: int | None = None
    trained_tokens: int = 0


class CallNode(BaseModel):
    """A call in the tree of a rollout's branches."""

    call_id: str
    number: int
    parent: int | None = None
    """Number of the call it goes on from."""
    parent_choice: int = 0
    branch: int
    agent: str | None = None
    dialect: str
    version: str
    auxiliary: bool = False
    auxiliary_reason: str = ""
    prompt_tokens: int
    reused_tokens: int
    started_at: float
    seconds: float | None = None
    seconds_to_first_token: float | None = None
    sampling: dict[str, Any]
    overrides: list[str]
    tail: list[Message]
    """What it added to its parent's conversation; everything for a call without a parent."""
    tools: list[str] = Field(default_factory=list)
    """Names of the tools it was offered."""
    choices: list[CallChoice]
    withheld: str = ""
    """Why its text is not shown."""


class TrajectoryDetail(BaseModel):
    rollout: RolloutLine
    next: str = ""
    """What has to happen before it is trained; empty when nothing will."""
    calls: list[CallNode]
    note: Note = Field(default_factory=Note)
    explanation: str = ""
    """Of a judge, as it was logged with the trajectory."""
    logs: list[str] = Field(default_factory=list)
    metadata: dict[str, Any] = Field(default_factory=dict)
    agent_rewards: dict[str, float] = Field(default_factory=dict)
    upstream_calls: int = 0
    limits: dict[str, Any] = Field(default_factory=dict)


class TokenPage(BaseModel):
    """Tokens of one choice, one entry a token in every list. Compact, since there may be 30,000."""

    call_id: str
    choice: int
    start: int
    """Of the first entry, in the completion; negative for prompt tokens (-1 stands just before it)."""
    total: int
    """Completion tokens."""
    ids: list[int]
    text: list[str]
    """What each token adds to the text; the bytes of a split character stand with its last token."""
    logprob: list[float | None]
    """As sampled; None for prompt tokens."""
    trained_logprob: list[float | None] | None = None
    """The trainer's, before its first update; None where it was not trained."""
    mask: list[bool]
    """Trained, or (while pending) trainable."""
    version: list[int | None]
    """The step that sampled it."""
    advantage: float | None = None
    """One for the whole choice."""
    withheld: str = ""
    """Why no token is listed: their call was redacted, or its tokens are gone."""


class ScenarioStep(BaseModel):
    step: int
    purpose: Purpose
    reward_mean: float | None = None
    rollouts: list[RolloutLine]


class ScenarioDetail(BaseModel):
    scenario_id: str
    scenario_label: str = ""
    """As of a group."""
    steps: list[ScenarioStep]
    """Oldest first."""


class Extremes(BaseModel):
    best: list[RolloutLine]
    worst: list[RolloutLine]
    """Of a group in which all rewards are equal the newest rollout stands for all."""
    points: Points
    correlation_tokens: float | None = None
    """Pearson's r of reward and sampled tokens over the points; None where one of them does not vary."""
    correlation_tool_errors: float | None = None
    links: list[RewardLink] = Field(default_factory=list)
    """These two, and the program's metrics."""
