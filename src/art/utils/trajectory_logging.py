"""Groups of trajectories as files, written whole and read back equal.

    write_trajectory_groups_parquet(groups, "val.parquet")
    groups = read_trajectory_groups_parquet("val.parquet")

The columns are those that programs for openpipe-art read. Beside them stand those that make a file lossless: every message
and choice as it is (log-probabilities, token ids and the mark of the recorded call with it), further histories, exceptions,
versions, times. Choices come back as openai's `Choice` where they were such, messages as dicts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from art.errors import InvalidInput
from art.trajectories import History, PydanticException, Trajectory, TrajectoryGroup, as_dict, is_choice
from art.utils import parquet
from art.utils.exports import whole_file

ROWS = 256
"""Trajectories of one row group."""
_CHOICE, _DICT = "choice", "dict"
"""What an item was: openai's `Choice`, or a dict (a message, or the dump of a choice)."""


def write_trajectory_groups_parquet(trajectory_groups: Iterable[TrajectoryGroup], path: str | Path) -> None:
    """Write groups to a Parquet file, in place of one that is there; it appears whole or not at all."""
    with whole_file(Path(path)) as file, parquet.TableWriter(file, _schema()) as table:
        rows = (row for number, group in enumerate(trajectory_groups) for row in _rows(number, group))
        while batch := list(islice(rows, ROWS)):
            table.write(batch)


def read_trajectory_groups_parquet(path: str | Path) -> list[TrajectoryGroup]:
    """The groups of a file in their order. InvalidInput for a file that is none; also reads openpipe-art's own."""
    groups: dict[int, TrajectoryGroup] = {}
    file = Path(path)
    for number, row in enumerate(parquet.read_rows(file)):
        try:
            index = int(row["group_index"])
            if index not in groups:
                groups[index] = _group(row)
            if row.get("is_trajectory", True) is not False:
                groups[index].trajectories.append(_trajectory(row))
        except (KeyError, TypeError, ValueError, ValidationError) as error:
            raise InvalidInput(
                f"row {number} of {file} is no trajectory", cause=f"{type(error).__name__}: {error}"
            ) from error
    return [groups[index] for index in sorted(groups)]


# -- one group as data


def group_to_data(group: TrajectoryGroup) -> dict[str, Any]:
    """A group as JSON data, from which `group_from_data` makes it again."""
    return {
        "trajectories": [_data(trajectory) for trajectory in group.trajectories],
        "exceptions": [error.model_dump() for error in group.exceptions],
        "metadata": dict(group.metadata),
        "metrics": dict(group.metrics),
        "logs": list(group.logs),
    }


def group_from_data(data: Mapping[str, Any]) -> TrajectoryGroup:
    """A group from `group_to_data`, or from a line of openpipe-art's trajectory files."""
    return TrajectoryGroup(
        [_from_data(item) for item in data.get("trajectories", ())],
        exceptions=[PydanticException.model_validate(error) for error in data.get("exceptions", ())],
        metadata=data.get("metadata") or {},
        metrics=data.get("metrics") or {},
        logs=list(data.get("logs") or ()),
    )


_PLAIN = (
    "reward",
    "metrics",
    "metadata",
    "logs",
    "initial_policy_version",
    "final_policy_version",
    "rollout_id",
    "selects_rollout",
)


def _data(trajectory: Trajectory) -> dict[str, Any]:
    return {
        **{name: getattr(trajectory, name) for name in _PLAIN},
        "start_time": trajectory.start_time.isoformat(),
        **_history_data(trajectory.messages_and_choices, trajectory.tools),
        "additional_histories": [
            _history_data(history.messages_and_choices, history.tools)
            for history in trajectory.additional_histories
        ],
    }


def _from_data(data: Mapping[str, Any]) -> Trajectory:
    values = {name: data[name] for name in _PLAIN if data.get(name) is not None}
    if data.get("start_time") is not None:
        values["start_time"] = datetime.fromisoformat(data["start_time"])
    histories = [
        History(messages_and_choices=_items(more), tools=more.get("tools"))
        for more in data.get("additional_histories") or ()
    ]
    return Trajectory(
        messages_and_choices=_items(data), tools=data.get("tools"), additional_histories=histories, **values
    )


def _history_data(items: Sequence[Any], tools: Sequence[Any] | None) -> dict[str, Any]:
    return {
        "messages_and_choices": [as_dict(item) for item in items],
        "kinds": [_CHOICE if isinstance(item, BaseModel) and is_choice(item) else _DICT for item in items],
        "tools": None if tools is None else [as_dict(tool) for tool in tools],
    }


def _items(data: Mapping[str, Any]) -> list[Any]:
    """Messages and choices. Where the file does not say what an item was, a choice is taken for openai's."""
    items = list(data.get("messages_and_choices") or ())
    kinds = data.get("kinds") or [_CHOICE if is_choice(item) else _DICT for item in items]
    if _CHOICE not in kinds:
        return items
    from openai.types.chat.chat_completion import Choice

    return [
        Choice.model_validate(item) if kind == _CHOICE else item
        for item, kind in zip(items, kinds, strict=True)
    ]


# -- rows


def _schema() -> Any:
    pa = parquet.require()
    message = pa.struct(
        [
            pa.field("role", pa.string()),
            pa.field("content", pa.string()),
            pa.field("tool_calls", pa.string()),
            pa.field("tool_call_id", pa.string()),
            pa.field("trainable", pa.bool_()),
        ]
    )
    text = ("group_metadata", "group_metrics", "metrics", "metadata", "tools", "group_exceptions", "whole")
    return pa.schema(
        [
            pa.field("group_index", pa.int64()),
            *(pa.field(name, pa.string()) for name in text),
            pa.field("group_logs", pa.list_(pa.string())),
            pa.field("logs", pa.list_(pa.string())),
            pa.field("reward", pa.float64()),
            pa.field("rollout_id", pa.string()),
            pa.field("initial_policy_version", pa.int64()),
            pa.field("final_policy_version", pa.int64()),
            pa.field("is_trajectory", pa.bool_()),
            pa.field("messages", pa.list_(message)),
        ]
    )


def _rows(number: int, group: TrajectoryGroup) -> Iterator[dict[str, Any]]:
    """A row a trajectory; one without a trajectory for a group that has none."""
    own = {
        "group_index": number,
        "group_metadata": json.dumps(group.metadata),
        "group_metrics": json.dumps(group.metrics),
        "group_logs": [_shown(line) for line in group.logs],
        "group_exceptions": json.dumps(
            {"exceptions": [error.model_dump() for error in group.exceptions], "logs": group.logs}
        ),
        "is_trajectory": bool(group.trajectories),
    }
    if not group.trajectories:
        yield own
    for trajectory in group.trajectories:
        data = _data(trajectory)
        yield {
            **own,
            "reward": trajectory.reward,
            "metrics": json.dumps(trajectory.metrics),
            "metadata": json.dumps(trajectory.metadata),
            "tools": json.dumps(data["tools"]),
            "logs": [_shown(line) for line in trajectory.logs],
            "rollout_id": None if trajectory.rollout_id is None else _shown(trajectory.rollout_id),
            "initial_policy_version": trajectory.initial_policy_version,
            "final_policy_version": trajectory.final_policy_version,
            "messages": [_message(item) for item in data["messages_and_choices"]],
            "whole": json.dumps(data),
        }


def _message(data: Mapping[str, Any]) -> dict[str, Any]:
    """What a person looks at of a message or choice."""
    choice = is_choice(data)
    message = (data.get("message") or {}) if choice else data
    content = message.get("content")
    if content is not None and not isinstance(content, str):
        content = json.dumps(content)
    calls = message.get("tool_calls")
    tool_call_id = message.get("tool_call_id")
    return {
        "role": _shown(str(message.get("role") or "assistant")),
        "content": None if content is None else _shown(content),
        "tool_calls": json.dumps(calls) if calls else None,
        "tool_call_id": None if tool_call_id is None else _shown(str(tool_call_id)),
        "trainable": choice,
    }


def _shown(text: str) -> str:
    """A column's text. Half a character, which no column takes, stands as a question mark; `whole` has it."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _group(row: Mapping[str, Any]) -> TrajectoryGroup:
    more = json.loads(row.get("group_exceptions") or "{}")
    return TrajectoryGroup(
        [],
        exceptions=[PydanticException.model_validate(error) for error in more.get("exceptions", ())],
        metadata=json.loads(row.get("group_metadata") or "{}"),
        metrics=json.loads(row.get("group_metrics") or "{}"),
        logs=more.get("logs", row.get("group_logs") or []),
    )


def _trajectory(row: Mapping[str, Any]) -> Trajectory:
    if row.get("whole"):
        return _from_data(json.loads(row["whole"]))
    messages = [_told(message) for message in row.get("messages") or ()]
    return Trajectory(
        messages_and_choices=messages,
        tools=json.loads(row["tools"]) if row.get("tools") else None,
        reward=row["reward"],
        metrics=json.loads(row.get("metrics") or "{}"),
        metadata=json.loads(row.get("metadata") or "{}"),
        logs=row.get("logs") or [],
    )


def _told(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message of a file that keeps nothing else of it."""
    found = {
        name: message[name] for name in ("role", "content", "tool_call_id") if message.get(name) is not None
    }
    if message.get("tool_calls"):
        found["tool_calls"] = json.loads(message["tool_calls"])
    return found
