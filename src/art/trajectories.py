"""Trajectories: a rollout as data, groups of them, and the messages inside.

Class names and fields are those programs for openpipe-art use. A trajectory built by hand selects the calls
that the server recorded (each choice carries its call's id in its `art` field); tokens and
log-probabilities always come from the server's record.
"""

from __future__ import annotations

import math
import time
import traceback as traceback_module
from collections.abc import AsyncIterator, Awaitable, Generator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from art.errors import InvalidInput, InvalidReward
from art.rollouts.collect import collect_group

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
    from openai.types.chat.chat_completion import Choice

    Message: TypeAlias = ChatCompletionMessageParam | dict[str, Any]
    MessageOrChoice: TypeAlias = Message | Choice
    Tool: TypeAlias = ChatCompletionToolParam | dict[str, Any]
else:
    # openai is loaded by the program that makes such objects, never by importing art.
    Message: TypeAlias = Any
    MessageOrChoice: TypeAlias = Any
    Tool: TypeAlias = Any

Messages: TypeAlias = list[Message]
MessagesAndChoices: TypeAlias = list[MessageOrChoice]
Tools: TypeAlias = list[Tool]
MetadataValue: TypeAlias = float | int | str | bool | None


def check_reward(value: object, where: str = "reward") -> float:
    """`value` as a finite float; InvalidReward says where it was met otherwise."""
    if value is None:
        cause = "it is None"
    else:
        try:
            number = float(cast(Any, value))
        except OverflowError:
            cause = f"it is an {type(value).__name__} that no float holds"
        except (TypeError, ValueError):
            cause = f"it is {value!r}, a {type(value).__name__}"
        else:
            if math.isfinite(number):
                return number
            cause = f"it is {number}"
    raise InvalidReward(
        f"{where} must be a finite number",
        cause=cause,
        hint="return a number for every run; a run that could not be judged should raise, not score NaN",
    )


Reward = Annotated[float, BeforeValidator(check_reward)]


def is_choice(item: object) -> bool:
    """True for an openai `Choice` or its dump: it has a message and a finish_reason."""
    if isinstance(item, Mapping):
        return "message" in item and "role" not in item
    return hasattr(item, "message") and hasattr(item, "finish_reason")


def as_dict(item: object) -> dict[str, Any]:
    """A message or choice as plain JSON data, every extra field kept."""
    if isinstance(item, Mapping):
        return {key: _plain(value) for key, value in item.items()}
    if isinstance(item, BaseModel):
        return item.model_dump(mode="json", exclude_none=not is_choice(item))
    raise InvalidInput(
        f"a {type(item).__name__} is neither a message nor a choice",
        hint="messages_and_choices holds dicts with a role, and openai Choice objects",
    )


def _plain(value: object) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_none=True)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def get_messages(messages_and_choices: Iterable[object]) -> list[dict[str, Any]]:
    """Chat messages as an API takes them: a choice becomes its assistant message, content None becomes ""."""
    messages = []
    for item in messages_and_choices:
        data = as_dict(item)
        if not is_choice(item):
            messages.append({**data, "content": ""} if data.get("content") is None else data)
            continue
        message = data["message"]
        turn = {"role": "assistant", "content": message.get("content") or ""}
        if message.get("tool_calls"):
            turn["tool_calls"] = message["tool_calls"]
        messages.append(turn)
    return messages


class History(BaseModel):
    """One message list of a trajectory: a sub-agent's, or the part before a compaction."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    messages_and_choices: MessagesAndChoices = Field(default_factory=list)
    tools: Tools | None = None

    def messages(self) -> list[dict[str, Any]]:
        """The list as chat messages (`get_messages`)."""
        return get_messages(self.messages_and_choices)


class Trajectory(BaseModel):
    """One run of the agent: what was said, and what it was worth.

    `reward` may be set later; None, NaN and infinity are refused at once (InvalidReward).
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    messages_and_choices: MessagesAndChoices = Field(default_factory=list)
    tools: Tools | None = None
    additional_histories: list[History] = Field(default_factory=list)
    reward: Reward = 0.0
    initial_policy_version: int | None = None
    final_policy_version: int | None = None
    metrics: dict[str, float | int | bool] = Field(default_factory=dict)
    metadata: dict[str, MetadataValue] = Field(default_factory=dict)
    logs: list[str] = Field(default_factory=list)
    start_time: datetime = Field(default_factory=lambda: datetime.now(UTC), exclude=True)
    rollout_id: str | None = None
    """The server's rollout; set by `gather` and `art.rollout`."""
    selects_rollout: bool = False
    """True: all recorded calls of `rollout_id` are this trajectory's, whatever the messages say."""
    sampled_tokens: int | None = Field(default=None, exclude=True)
    """Of its recorded calls, as the server counted them when the rollout ended; None where that is not known."""

    if not TYPE_CHECKING:  # a declared __setattr__ would make every misspelt attribute type-check

        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, check_reward(value) if name == "reward" else value)

    def log(self, message: str) -> None:
        """Add a line to the trajectory's log."""
        self.logs.append(message)

    def finish(self) -> Trajectory:
        """Record the run's duration (seconds) as `metrics["duration"]`."""
        self.metrics["duration"] = (datetime.now(UTC) - self.start_time).total_seconds()
        return self

    @asynccontextmanager
    async def track_duration(self, name: str) -> AsyncIterator[None]:
        """Add the seconds spent inside to `metrics[f"{name}_duration"]`."""
        start = time.monotonic()
        try:
            yield
        finally:
            key = f"{name}_duration"
            self.metrics[key] = self.metrics.get(key, 0.0) + time.monotonic() - start

    def messages(self) -> list[dict[str, Any]]:
        """The main history as chat messages (`get_messages`)."""
        return get_messages(self.messages_and_choices)

    def for_logging(self) -> dict[str, Any]:
        """Plain data for a log line: messages instead of choices, without token arrays."""
        return {
            "reward": self.reward,
            "metrics": dict(self.metrics),
            "metadata": dict(self.metadata),
            "messages": self.messages(),
            "tools": self.tools,
            "additional_histories": [history.messages() for history in self.additional_histories],
            "logs": list(self.logs),
        }

    def _repr_html_(self) -> str:
        from art.notebook import trajectory_html

        return trajectory_html(self)

    def __str__(self) -> str:
        return f"Trajectory(reward={self.reward}, metrics={self.metrics}, metadata={self.metadata})"


class PydanticException(BaseModel):
    """An exception as data, kept with its group."""

    type: str
    message: str
    traceback: str = ""

    @classmethod
    def of(cls, error: BaseException) -> PydanticException:
        """`error` with the traceback it carries."""
        lines = traceback_module.format_exception(type(error), error, error.__traceback__)
        return cls(
            type=f"{type(error).__module__}.{type(error).__qualname__}",
            message=str(error),
            traceback="".join(lines),
        )


class TrajectoryGroup(BaseModel):
    """Runs of the same scenario, compared with one another.

    `TrajectoryGroup(trajectories)` is a group at once. `TrajectoryGroup(rollout() for _ in range(8))`, with
    awaitables, gives an awaitable instead; pass it to `gather_trajectory_groups` or await it. The
    trajectories keep the order of the awaitables, and exceptions stay with the group.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    trajectories: list[Trajectory] = Field(default_factory=list)
    exceptions: list[PydanticException] = Field(default_factory=list)
    metadata: dict[str, MetadataValue] = Field(default_factory=dict)
    metrics: dict[str, float | int | bool] = Field(default_factory=dict)
    logs: list[str] = Field(default_factory=list)

    if not TYPE_CHECKING:
        # Type checkers see __init__ below; at run time a group of awaitables is a PendingGroup.

        def __new__(cls, trajectories=(), **kwargs):
            members = list(trajectories) if trajectories is not None else []
            if any(isinstance(member, Awaitable) for member in members):
                return PendingGroup(members, **kwargs)
            return super().__new__(cls)

    def __init__(
        self,
        trajectories: Iterable[Trajectory | BaseException] | Iterable[Awaitable[Trajectory]] = (),
        *,
        exceptions: Iterable[BaseException | PydanticException | dict[str, Any]] = (),
        metadata: dict[str, MetadataValue] | None = None,
        metrics: dict[str, float | int | bool] | None = None,
        logs: list[str] | None = None,
    ) -> None:
        members = list(cast("Iterable[Trajectory | BaseException]", trajectories))
        errors = [member for member in members if isinstance(member, BaseException)]
        super().__init__(
            trajectories=[member for member in members if not isinstance(member, BaseException)],
            exceptions=[
                PydanticException.of(error) if isinstance(error, BaseException) else error
                for error in [*errors, *exceptions]
            ],
            metadata=metadata or {},
            metrics=metrics or {},
            logs=logs or [],
        )

    if TYPE_CHECKING:

        def __await__(self) -> Generator[Any, None, TrajectoryGroup]: ...

    def log(self, message: str) -> None:
        """Add a line to the group's log."""
        self.logs.append(message)

    def _repr_html_(self) -> str:
        from art.notebook import group_html

        return group_html(self)

    def __iter__(self) -> Iterator[Trajectory]:  # type: ignore[override]
        return iter(self.trajectories)

    def __len__(self) -> int:
        return len(self.trajectories)


class PendingGroup:
    """A group whose trajectories have yet to run. Await it once."""

    def __init__(
        self,
        members: list[Awaitable[Trajectory] | Trajectory],
        *,
        exceptions: Iterable[BaseException | PydanticException] = (),
        metadata: dict[str, MetadataValue] | None = None,
        metrics: dict[str, float | int | bool] | None = None,
        logs: list[str] | None = None,
    ) -> None:
        self.members = members
        self._num_trajectories = len(members)
        self._exceptions = list(exceptions)
        self._metadata = metadata
        self._metrics = metrics
        self._logs = logs

    def __await__(self) -> Generator[Any, None, TrajectoryGroup]:
        return self._collect().__await__()

    async def _collect(self) -> TrajectoryGroup:
        return TrajectoryGroup(
            await collect_group(self.members),
            exceptions=self._exceptions,
            metadata=self._metadata,
            metrics=self._metrics,
            logs=self._logs,
        )
