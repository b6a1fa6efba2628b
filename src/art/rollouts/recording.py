"""What the calls of our own clients said, put together as a trajectory.

A recording belongs to a gather member, an `art.rollout` block or a capture; a call belongs to the innermost
one around it. The clients' response hook hands over each answer as it came over the wire. Until somebody
asks for the trajectory, answers are kept compressed and unread; from then on the trajectory grows with them.
"""

from __future__ import annotations

import json
import logging
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from art.utils.console import Notices

if TYPE_CHECKING:
    from art.trajectories import History, Trajectory

log = logging.getLogger(__name__)
notices = Notices()

MAX_CALLS = 1024
"""Of one message: a streamed call says at which place it stands, and no answer is to fill the memory with empty ones."""
COMPRESSION = 1
"""zlib level. A streamed answer repeats its keys with every token: even the fastest level makes it ten times smaller."""


class Recording:
    """The calls of one rollout or capture, in the order in which they were answered. Thread-safe."""

    def __init__(self, rollout_id: str | None = None) -> None:
        self.rollout_id = rollout_id
        self._owner: object = None
        self._kept: list[tuple[bytes, bytes]] = []
        self._trajectory: Trajectory | None = None
        self._siblings: dict[int, list[Any]] = {}
        """The choices of a call by the id of the one that stands in a history."""
        self._elsewhere: set[str] = set()
        self._counts: dict[str, int] = {}
        self._lock = threading.RLock()

    def belongs(self, model: object) -> bool:
        """Whether calls to `model` are recorded: a trajectory is one model's, the first one's that is called."""
        with self._lock:
            if self._owner is None:
                self._owner = model
            return self._owner == model

    def note_elsewhere(self, dialect: str) -> None:
        """A call in a dialect whose answers are no chat choices: the server has it, the trajectory cannot."""
        with self._lock:
            self._elsewhere.add(dialect)

    def add(self, request: bytes, answer: bytes) -> None:
        """A chat completion: the request's body and the whole answer, JSON or server-sent events."""
        with self._lock:
            if self._trajectory is not None:
                self._place(request, answer)
            else:
                kept = zlib.compress(request, COMPRESSION), zlib.compress(answer, COMPRESSION)
                self._kept.append(kept)

    def count(self, name: str, number: int = 1) -> None:
        """Add to a metric of the trajectory."""
        with self._lock:
            self._counts[name] = self._counts.get(name, 0) + number
            if self._trajectory is not None:
                self._trajectory.metrics[name] = self._counts[name]

    @property
    def counts(self) -> dict[str, int]:
        """What was counted so far."""
        with self._lock:
            return dict(self._counts)

    @property
    def trajectory(self) -> Trajectory:
        """The calls so far; the same object each time, and later calls are added to it."""
        from art.trajectories import Trajectory

        with self._lock:
            if self._trajectory is None:
                self._trajectory = Trajectory(metrics=dict(self._counts))
                for request, answer in self._kept:
                    self._place(zlib.decompress(request), zlib.decompress(answer))
                self._kept.clear()
            notices.show(
                f"calls to {dialect} are not in auto_trajectory, which holds chat completions; "
                "session.trajectory of art.rollout has them"
                for dialect in sorted(self._elsewhere)
            )
            return self._trajectory

    def _place(self, request: bytes, answer: bytes) -> None:
        from openai.types.chat import ChatCompletion

        asked, choices = _json(request), completed_choices(answer)
        if asked is None or not choices:
            log.debug("a call was not taken into the trajectory: its answer holds no finished choice")
            return
        messages = [message for message in asked.get("messages") or [] if isinstance(message, dict)]
        made = ChatCompletion.construct(choices=choices).choices
        history, known = self._history_of(messages, asked.get("tools"))
        history.messages_and_choices.extend([*messages[known:], made[0]])
        history.tools = asked.get("tools")
        if len(made) > 1:
            self._siblings[id(made[0])] = made

    def _history_of(
        self, messages: Sequence[Mapping[str, Any]], tools: object
    ) -> tuple[Trajectory | History, int]:
        """The history that the call continues, and how many of its messages that history holds already."""
        from art.trajectories import History

        assert self._trajectory is not None
        asked = [canonical(message) for message in messages]
        found: tuple[Trajectory | History, int] | None = None
        histories: list[Trajectory | History] = [self._trajectory, *self._trajectory.additional_histories]
        for history in histories:
            items = history.messages_and_choices
            if items and _dumped(history.tools) != _dumped(tools):
                continue
            known = self._known(items, asked)
            if known is not None and (found is None or known > found[1]):
                found = history, known
        if found is not None:
            return found
        branch = History()
        self._trajectory.additional_histories.append(branch)
        return branch, 0

    def _known(self, items: list[Any], asked: Sequence[str]) -> int | None:
        """The number of items when they are the beginning of `asked`, else None. A last choice that has siblings
        gives way to the one that the conversation goes on with."""
        from art.trajectories import get_messages

        have = [canonical(message) for message in get_messages(items)]
        if have == list(asked[: len(have)]):
            return len(have)
        last = len(have) - 1
        if last < 0 or have[:last] != list(asked[:last]) or len(asked) <= last:
            return None
        siblings = self._siblings.get(id(items[last]), [])
        for sibling in siblings:
            if canonical(get_messages([sibling])[0]) == asked[last]:
                del self._siblings[id(items[last])]
                items[last] = sibling
                return len(have)
        return None


def canonical(message: Mapping[str, Any]) -> str:
    """What makes two chat messages the same: role, text, and the tool calls' names and arguments.

    Call ids, white space around the text and in the arguments, and the arguments' key order do not count;
    SDKs and agents change them when they send a message back.
    """
    content = message.get("content")
    if isinstance(content, list) and all(
        isinstance(part, dict) and isinstance(part.get("text"), str) for part in content
    ):
        content = "".join(part["text"] for part in content)
    text = content.strip() if isinstance(content, str) else content
    calls = [
        [function.get("name"), _arguments(function.get("arguments"))]
        for call in message.get("tool_calls") or []
        if isinstance(call, dict) and isinstance(function := call.get("function"), dict)
    ]
    role = "system" if message.get("role") == "developer" else message.get("role")
    return _dumped([role, text or "", calls])


def _arguments(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _dumped(value: object) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)


def _json(data: bytes | str) -> dict[str, Any] | None:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


# -- answers


def completed_choices(answer: bytes) -> list[dict[str, Any]]:
    """The choices of a chat completion that have ended, from its JSON or its chunks; [] for anything else."""
    whole = _json(answer)
    if whole is None:
        choices = _of_chunks(answer)
    else:
        choices = _objects(whole.get("choices"))
    return [choice for choice in choices if choice.get("finish_reason") and choice.get("message")]


def _of_chunks(answer: bytes) -> list[dict[str, Any]]:
    choices: dict[int, dict[str, Any]] = {}
    for line in answer.split(b"\n"):  # not splitlines: JSON may hold other line separators
        chunk = _json(line[5:]) if line.startswith(b"data:") else None
        for part in _objects((chunk or {}).get("choices")):
            index = part.get("index", 0)
            if isinstance(index, int):
                _merge(choices.setdefault(index, _empty(index)), part)
    return [choices[index] for index in sorted(choices)]


def _objects(value: object) -> list[dict[str, Any]]:
    """The objects of a list; [] for what is none."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _empty(index: int) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": None}
    return {"index": index, "finish_reason": None, "message": message, "logprobs": None}


def _merge(choice: dict[str, Any], part: Mapping[str, Any]) -> None:
    """Add one chunk's part of a choice: texts and token lists grow, everything else is replaced."""
    for name, value in part.items():
        if name == "delta":
            _merge_delta(choice["message"], value if isinstance(value, dict) else {})
        elif name == "logprobs":
            if isinstance(value, dict):
                kept = choice["logprobs"] = choice["logprobs"] or {**value, "content": []}
                kept["content"].extend(_objects(value.get("content")))
        elif name == "message":  # a chunk has none, and this one is what the deltas make
            continue
        elif isinstance(value, list) and isinstance(choice.get(name, []), list):
            choice.setdefault(name, []).extend(value)
        elif value is not None:
            choice[name] = value


def _merge_delta(message: dict[str, Any], delta: Mapping[str, Any]) -> None:
    for name, value in delta.items():
        if name == "tool_calls":
            for call in _objects(value):
                _merge_call(message.setdefault("tool_calls", []), call)
        elif isinstance(value, str) and name != "role":
            message[name] = f"{message.get(name) or ''}{value}"
        elif value is not None:
            message[name] = value


def _merge_call(calls: list[dict[str, Any]], part: Mapping[str, Any]) -> None:
    index = part.get("index", len(calls))
    if not isinstance(index, int) or not 0 <= index < MAX_CALLS:
        return
    while len(calls) <= index:
        calls.append({"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
    call = calls[index]
    call.update({name: part[name] for name in ("id", "type") if part.get(name)})
    function = part.get("function")
    for name, value in (function if isinstance(function, dict) else {}).items():
        if isinstance(value, str):
            call["function"][name] = call["function"].get(name, "") + value


# -- the innermost recording

_current: ContextVar[Recording | None] = ContextVar("art_recording", default=None)


def current_recording() -> Recording | None:
    """The innermost recording around the running code, or None."""
    return _current.get()


def count(name: str, number: int = 1) -> None:
    """Add to a metric of the trajectory that is being made here; outside of any nothing is counted."""
    recording = _current.get()
    if recording is not None:
        recording.count(name, number)


def enter_recording(recording: Recording) -> None:
    """Record into `recording` for the rest of this task. For code that owns its whole task."""
    _current.set(recording)


@contextmanager
def recording_into(recording: Recording) -> Iterator[Recording]:
    """Record into `recording` inside a `with` block."""
    token = _current.set(recording)
    try:
        yield recording
    finally:
        _current.reset(token)
