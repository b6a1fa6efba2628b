"""What a run is made of besides its model: the agent, its reward, its scenarios, found by what the settings name."""

from __future__ import annotations

import os
import shutil
import sys
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from art.config.resolved import folder_of
from art.config.run import IMPORT_PATH
from art.config.trackers import chosen
from art.errors import ArtError, ConfigError, InvalidInput
from art.rollouts.agent import RolloutAgent
from art.rollouts.command import PROGRAM_SECONDS, Program
from art.rollouts.isolated import load
from art.rollouts.program_agent import ProgramAgent
from art.rollouts.program_groups import read_scenarios
from art.rollouts.wrap import as_agent, wrap

if TYPE_CHECKING:
    from art.config.load import Loaded

IN_ONE_PROCESS = 64
"""Rollouts at the same time where they only wait for the model: as many as an engine decodes at once."""
PROCESSES = 8
"""The same where each rollout is a process with memory of its own."""


@dataclass(frozen=True)
class Parts:
    """All that is run."""

    agent: RolloutAgent
    scenarios: list[Any]
    held_out: list[Any]
    """For evaluation; may be empty."""
    concurrency: int
    trackers: list[dict[str, Any]]
    """As `art.fit(trackers=...)` takes them."""
    notes: list[str]
    """What was chosen for the user, and why."""


def load_parts(loaded: Loaded) -> Parts:
    """Import and read everything. ConfigError and InvalidInput say which setting names what cannot be had."""
    run = loaded.run
    folder = folder_of(loaded)
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    agent = _program(loaded, folder) if run.command else _imported(loaded)
    apart = bool(run.command) or run.isolate
    notes = []
    concurrency = run.concurrency
    if agent.exclusive:
        if (concurrency or 1) > 1:
            raise ConfigError(
                f"run.concurrency={concurrency} cannot be",
                cause="the agent is told where its model is by means that all its runs share",
                hint="let it take `client` or `base_url`, set run.isolate, or leave run.concurrency out",
            )
        concurrency = 1
        notes.append("concurrency 1: the agent is told where its model is by means that all its runs share")
    elif concurrency is None:
        concurrency = PROCESSES if apart else IN_ONE_PROCESS
        why = (
            "each rollout is a process" if apart else "the rollouts share this process and wait for the model"
        )
        notes.append(f"concurrency {concurrency}: {why}")
    held_out = loaded.evaluation.scenarios
    return Parts(
        agent=agent,
        scenarios=_scenarios("run.scenarios", run.scenarios),
        held_out=_scenarios("evaluation.scenarios", held_out) if held_out else [],
        concurrency=concurrency,
        trackers=_trackers(loaded),
        notes=notes,
    )


def _trackers(loaded: Loaded) -> list[dict[str, Any]]:
    """Those that are asked for, once it is known that they can be had."""
    trackers = chosen(loaded.run.trackers, loaded.run.tracker)
    if trackers:
        from art.integrations.registry import ready

        ready(trackers)
    return trackers


def _imported(loaded: Loaded) -> RolloutAgent:
    run = loaded.run
    assert run.agent is not None, "require_runnable looked"
    reward = None if run.reward is None else _load("run.reward", run.reward)
    if run.isolate:
        _load("run.agent", run.agent)  # what cannot be imported shows here, not in each process
        return wrap(run.agent, reward, isolate="process")
    return as_agent(_load("run.agent", run.agent), reward)


def _program(loaded: Loaded, folder: Path) -> RolloutAgent:
    run = loaded.run
    command = list(run.command)
    found = _executable(command[0], folder)
    if found is None:
        raise ConfigError(
            f"there is no program {command[0]!r}",
            cause=f"run.command names it; PATH and {folder} were looked in",
            hint="a file of the folder is ./name, and must be executable",
        )
    program = Program(
        command=[found, *command[1:]],
        environment={**os.environ, "PATH": _path()},
        reward_command=run.reward_command,
        timeout=PROGRAM_SECONDS if run.timeout is None else run.timeout,
        folder=folder,
    )
    return ProgramAgent(program)


def _path() -> str:
    """PATH as if the environment of the Python that runs us were active: its `art` may be called without that."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def _executable(name: str, folder: Path) -> str | None:
    if "/" in name:
        place = (folder / name).resolve()
        return str(place) if os.access(place, os.X_OK) and place.is_file() else None
    return shutil.which(name, path=_path())


def _load(setting: str, path: str) -> Any:
    try:
        return load(path)
    except ArtError as error:
        raise ConfigError(f"{setting}: {error.message}", cause=error.cause, hint=error.hint) from error
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise ConfigError(
            f"{setting}: importing {path} failed",
            cause=f"{type(error).__name__}: {error} ({place.filename}, line {place.lineno})",
            hint=f"python -c 'import {path.partition(':')[0]}' in the file's folder shows all of it",
        ) from error


def _scenarios(setting: str, text: str) -> list[Any]:
    if IMPORT_PATH.fullmatch(text) is None:
        return read_scenarios(Path(text))
    found = _load(setting, text)
    if callable(found):
        found = found()
    if isinstance(found, str | bytes) or not isinstance(found, Iterable):
        raise InvalidInput(
            f"{setting}: {text} gives a {type(found).__name__}",
            hint="a list of scenarios, or a function that returns one",
        )
    scenarios = list(found)
    if not scenarios:
        raise InvalidInput(f"{setting}: {text} gives no scenario")
    return scenarios
