"""Rollouts as trackers get them: what the server recorded of each, with or without what was said."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from art.trajectories import Trajectory, TrajectoryGroup, as_dict, is_choice
from art.types.tokens import CallRecord
from art.types.wire import RolloutInfo


@dataclass(frozen=True, kw_only=True)
class ToolSeen:
    """One tool call that the model made, and its result."""

    name: str
    tool_call_id: str = ""
    arguments: str = ""
    """Content: empty without it."""
    result: str = ""
    """Content: empty without it."""
    started: float
    ended: float
    """Seconds since 1970: from the end of the call that asked for it to the begin of the one that got its result."""


@dataclass(frozen=True, kw_only=True)
class CallSeen:
    """One call to the model."""

    call_id: str
    version: str
    """`project/name@step`, or the name of a model that no server of ours serves."""
    agent: str = ""
    dialect: str = "openai.chat"
    auxiliary: bool = False
    started: float
    ended: float
    input_tokens: int | None = None
    output_tokens: int | None = None
    finish_reasons: tuple[str, ...] = ()
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    fate: str = ""
    input: tuple[dict[str, Any], ...] = ()
    """Content: the conversation it was given, where it lies on the main branch."""
    output: dict[str, Any] | None = None
    """Content: the message it answered."""
    tools: tuple[ToolSeen, ...] = ()

    @property
    def model(self) -> str:
        """`project/name`."""
        return self.version.partition("@")[0]


@dataclass(frozen=True, kw_only=True)
class RolloutSeen:
    """One run of the agent."""

    rollout_id: str
    scenario_id: str = ""
    group: int
    """Its group's number within the batch; rollouts of one group are compared with one another."""
    member: int
    status: str = ""
    reward: float
    metrics: Mapping[str, float]
    started: float
    ended: float
    calls: tuple[CallSeen, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Content."""
    logs: tuple[str, ...] = ()
    """Content."""

    def without_content(self) -> RolloutSeen:
        """The same, with nothing that was said."""
        calls = tuple(
            replace(
                call,
                input=(),
                output=None,
                tools=tuple(replace(tool, arguments="", result="") for tool in call.tools),
            )
            for call in self.calls
        )
        return replace(self, calls=calls, metadata={}, logs=())


@dataclass(frozen=True, kw_only=True)
class RolloutBatch:
    """The rollouts behind one row."""

    step: int
    split: str
    time: float
    rollouts: tuple[RolloutSeen, ...]
    exceptions: tuple[str, ...] = ()
    """Types of the exceptions that stand in the place of a rollout."""


@dataclass(frozen=True)
class Noted:
    """What is known of a trajectory at the moment it is logged; the rest is the server's record."""

    rollout_id: str | None
    group: int
    member: int
    reward: float
    metrics: dict[str, float]
    scenario_id: str
    started: float
    own: Trajectory | None
    """The trajectory itself, for a model that no server of ours records."""


def noted(groups: Sequence[TrajectoryGroup], *, recorded: bool) -> list[Noted]:
    """The trajectories of groups. `recorded`: a server has them, so nothing of what was said is taken from here."""
    return [
        Noted(
            rollout_id=trajectory.rollout_id,
            group=number,
            member=member,
            reward=trajectory.reward,
            metrics={name: float(value) for name, value in trajectory.metrics.items()},
            scenario_id=_scenario(trajectory, group),
            started=trajectory.start_time.timestamp(),
            own=None if recorded else trajectory.model_copy(deep=True),
        )
        for number, group in enumerate(groups)
        for member, trajectory in enumerate(group)
    ]


def _scenario(trajectory: Trajectory, group: TrajectoryGroup) -> str:
    return str(trajectory.metadata.get("scenario_id") or group.metadata.get("scenario_id") or "")


def exception_types(groups: Sequence[TrajectoryGroup]) -> tuple[str, ...]:
    """Their types alone: messages may quote what was said."""
    return tuple(error.type for group in groups for error in group.exceptions)


def seen(item: Noted, info: RolloutInfo | None) -> RolloutSeen:
    """A rollout from the server's record. Without one: figures alone, or the program's own trajectory."""
    if info is not None:
        return _recorded(item, info)
    if item.own is not None:
        return _own(item, item.own)
    return _figures(item)


def _figures(item: Noted, **more: Any) -> RolloutSeen:
    values = {
        "rollout_id": item.rollout_id or "",
        "scenario_id": item.scenario_id,
        "group": item.group,
        "member": item.member,
        "reward": item.reward,
        "metrics": item.metrics,
        "started": item.started,
        "ended": item.started + item.metrics.get("duration", 0.0),
    }
    return RolloutSeen(**{**values, **more})


# -- from the server's record


def _recorded(item: Noted, info: RolloutInfo) -> RolloutSeen:
    said = list(_turns(info.messages))
    ended = info.ended_at or max((call.finished_at or 0.0 for call in info.calls), default=info.created_at)
    return _figures(
        item,
        rollout_id=info.rollout_id,
        scenario_id=info.scenario_id or item.scenario_id,
        status=info.status.value,
        started=info.created_at,
        ended=ended,
        calls=tuple(_call(call, info, said, ended) for call in info.calls),
        metadata=info.metadata,
    )


@dataclass(frozen=True)
class _Turn:
    """An answer on the main branch: what stood before it, and the tool results that followed."""

    call_id: str
    before: tuple[dict[str, Any], ...]
    message: dict[str, Any]
    results: dict[str, str]


def _turns(messages: Sequence[Mapping[str, Any]]) -> Iterator[_Turn]:
    plain = [{name: value for name, value in message.items() if name != "choice"} for message in messages]
    for place, message in enumerate(messages):
        choice = message.get("choice")
        if not isinstance(choice, Mapping):
            continue
        results: dict[str, str] = {}
        for later in plain[place + 1 :]:
            if later.get("role") != "tool":
                break
            results[str(later.get("tool_call_id", ""))] = _text(later.get("content"))
        call_id = str((choice.get("art") or {}).get("call_id", ""))
        yield _Turn(call_id, tuple(plain[:place]), plain[place], results)


def _call(call: CallRecord, info: RolloutInfo, said: Sequence[_Turn], ended: float) -> CallSeen:
    turn = next((turn for turn in said if turn.call_id == call.call_id), None)
    finished = call.finished_at or ended
    following = min(
        (other.started_at for other in info.calls if other.parent_call_id == call.call_id), default=ended
    )
    used = call.sampling_used
    return CallSeen(
        call_id=call.call_id,
        version=call.version or f"{info.project}/{info.model}@{info.step}",
        agent=call.agent or "",
        dialect=call.dialect,
        auxiliary=call.auxiliary,
        started=call.started_at,
        ended=finished,
        input_tokens=call.prompt_token_count,
        output_tokens=sum(choice.token_count for choice in call.choices),
        finish_reasons=tuple(choice.finish_reason for choice in call.choices),
        temperature=used.temperature,
        top_p=used.top_p,
        max_tokens=used.max_tokens,
        seed=used.seed,
        fate=",".join(dict.fromkeys(choice.fate.value for choice in call.choices)),
        input=() if turn is None else turn.before,
        output=None if turn is None else turn.message,
        tools=() if turn is None else tuple(_tools(turn, finished, max(finished, following))),
    )


def _tools(turn: _Turn, started: float, ended: float) -> Iterator[ToolSeen]:
    for asked in turn.message.get("tool_calls") or ():
        function = asked.get("function") or {}
        call_id = str(asked.get("id") or "")
        yield ToolSeen(
            name=str(function.get("name") or "unknown"),
            tool_call_id=call_id,
            arguments=_text(function.get("arguments")),
            result=turn.results.get(call_id, ""),
            started=started,
            ended=ended,
        )


def _text(content: object) -> str:
    """The text of a message's content, which may be parts."""
    if content is None:
        return ""
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return content if isinstance(content, str) else str(content)


# -- from the program's own trajectory


def _own(item: Noted, trajectory: Trajectory) -> RolloutSeen:
    """Times of single calls are not known here: each has those of the rollout."""
    plain = _figures(item)
    messages: list[dict[str, Any]] = []
    for entry in trajectory.messages_and_choices:
        data = as_dict(entry)
        messages.append(
            {**data["message"], "role": "assistant", "choice": data} if is_choice(entry) else data
        )
    calls = [
        CallSeen(
            call_id=f"{plain.rollout_id or item.group}-{number}",
            version=str((turn.message.get("model")) or ""),
            started=plain.started,
            ended=plain.ended,
            finish_reasons=_reasons(messages, turn),
            input=turn.before,
            output=turn.message,
            tools=tuple(_tools(turn, plain.started, plain.ended)),
        )
        for number, turn in enumerate(_turns(messages))
    ]
    return replace(plain, calls=tuple(calls), metadata=dict(trajectory.metadata), logs=tuple(trajectory.logs))


def _reasons(messages: Sequence[Mapping[str, Any]], turn: _Turn) -> tuple[str, ...]:
    choice = messages[len(turn.before)]["choice"]
    return (str(choice.get("finish_reason") or ""),)
