"""An agent that runs in a process of its own: `art.wrap(agent, reward, isolate="process")`.

For agents that cannot share a process: they keep their client in a global, change directory, or crash. The child
gets the session's environment before it imports the agent, so a client made at import finds the server too. Task
and result cross as JSON in a private folder; the child (`art.rollouts.child`) is killed with all it started when
the rollout is cancelled.
"""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Self

from art import errors
from art.errors import AgentFailed, ConfigError, InfraError, InvalidInput
from art.rollouts.environment import child_environment
from art.rollouts.process import run_process
from art.rollouts.recording import count
from art.rollouts.signature import SessionValues
from art.trajectories import Trajectory

REQUEST, RESULT = "request.json", "result.json"
_GIVEN = ("base_url", "api_key", "model_name", "rollout_id", "env")
"""What of the session crosses to the child."""


@dataclass(frozen=True)
class IsolatedAgent:
    """The agent behind an import path, run by a fresh process for each task."""

    path: str
    """`package.module:name`."""
    entry: str | None = None
    """The method that takes the task; None looks for one."""

    @classmethod
    def of(cls, agent: Any, entry: str | None) -> Self:
        """From an import path, a class or a function. ConfigError when another process could not find it."""
        return cls(_checked(agent) if isinstance(agent, str) else _path_of(agent), entry)

    @property
    def label(self) -> str:
        """The agent's name, for messages."""
        return self.path.partition(":")[2].rpartition(".")[2]

    async def run(self, task: Any, session: SessionValues | None) -> Any:
        """What the agent returns for `task`.

        AgentFailed with the agent's exception, or when its process died; ART's own errors as they are.
        """
        request = {
            "agent": self.path,
            "entry": self.entry,
            "python_path": sys.path,
            "task": task,
            "session": None if session is None else {name: getattr(session, name) for name in _GIVEN},
        }
        try:
            text = json.dumps(request)
        except (TypeError, ValueError) as error:
            raise InvalidInput(
                f"a task for {self.label} cannot be sent to its process",
                cause=f"it is no JSON: {error}",
                hint="use plain values, or run the agent in this process (isolate=None)",
            ) from error
        with tempfile.TemporaryDirectory(prefix="art-agent-") as folder:  # readable for this user alone
            _write(folder, text)
            ended = await run_process(
                (sys.executable, "-m", "art.rollouts.child", folder),
                environment=child_environment({} if session is None else session.env),
                stdin=subprocess.DEVNULL,
            )
            said = _read(folder)
        if said is None:
            why = ended.failure or f"it ended with exit status {ended.status}"
            raise AgentFailed(f"{self.label} gave no result", cause=f"in its process: {why}")
        for name, number in said.get("counts", {}).items():
            count(name, number)
        return self._result(said)

    def _result(self, said: dict[str, Any]) -> Any:
        if "art_error" in said:
            raise errors.from_dict(said["art_error"])
        if "error" in said:
            kind = InfraError if said["infrastructure"] else AgentFailed
            raise kind(f"{self.label} raised {said['error']}", cause=said["traceback"])
        return Trajectory.model_validate(said["trajectory"]) if "trajectory" in said else said["value"]


def _write(folder: str, request: str) -> None:
    Path(folder, REQUEST).write_text(request)


def _read(folder: str) -> dict[str, Any] | None:
    """What the child said; None when it did not come so far."""
    try:
        said: dict[str, Any] = json.loads(Path(folder, RESULT).read_text())
    except FileNotFoundError:
        return None
    return said


def load(path: str) -> Any:
    """The object behind `package.module:name`. ConfigError when there is none."""
    module, _, name = _checked(path).partition(":")
    try:
        found: Any = import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(f"the agent {path!r} cannot be imported", cause=str(error)) from error
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise ConfigError(f"the agent {path!r} does not exist", cause=str(error)) from error
    return found


def _checked(path: str) -> str:
    module, _, name = path.partition(":")
    if not all(part.isidentifier() for part in [*module.split("."), *name.split(".")]):
        raise ConfigError(f"{path!r} is no import path", hint='write it like "package.module:Agent"')
    return path


def _path_of(agent: Any) -> str:
    name = getattr(agent, "__qualname__", "")
    module = getattr(agent, "__module__", None)
    if not (inspect.isclass(agent) or inspect.isfunction(agent)) or not module:
        raise ConfigError(
            f"a {type(agent).__name__} cannot move to another process",
            hint='wrap its class, a function, or an import path: art.wrap("package.module:Agent", isolate="process")',
        )
    if module == "__main__" or "<" in name:
        where = "the program's main file" if module == "__main__" else "a function"
        raise ConfigError(
            f"another process cannot import {name}",
            cause=f"it is defined in {where}",
            hint="put the agent at the top level of a module of its own",
        )
    return f"{module}:{name}"
