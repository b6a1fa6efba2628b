"""What was logged of a project's models, as one polars frame: a row a trajectory."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from art.backends.local import default_path
from art.errors import ConfigError
from art.trajectories import Trajectory, TrajectoryGroup
from art.utils.console import say
from art.utils.trajectory_logging import group_from_data, read_trajectory_groups_parquet

if TYPE_CHECKING:
    from polars import DataFrame


@dataclass(frozen=True)
class _Logged:
    """A group where it was logged."""

    model: str
    split: str
    step: int
    group: TrajectoryGroup


async def load_trajectories(
    project: str, models: Iterable[str] | None = None, debug: bool = False, art_path: str | Path | None = None
) -> DataFrame:
    """The trajectories that were logged of a project's models (`None`: all of them), as a frame.

    Columns: `model`, `split`, `step`, `reward`, `group_number`, `messages`, `logs`; `metric_*` and `group_metric_*` as
    numbers, `metadata_*` and `group_metadata_*` as texts. Looked through are the store of a server in `art_path` (as of
    now, running or not), files of models without a server, and `trajectories/{split}/{step}.parquet` of openpipe-art. An
    empty frame where nothing was logged. ConfigError without polars.
    """
    return await asyncio.to_thread(_load, project, None if models is None else set(models), debug, art_path)


def _load(project: str, models: set[str] | None, debug: bool, art_path: str | Path | None) -> DataFrame:
    try:
        import polars
    except ImportError as error:
        raise ConfigError(
            "art.utils.benchmarking needs polars",
            cause=str(error),
            hint="pip install 'agent-reinforcement-trainer[benchmarking]'",
        ) from error
    root = default_path(Path.cwd()) if art_path is None else Path(art_path)
    found = [*_from_store(root / "server" / "art.db", project), *_from_files(root / project / "models")]
    chosen = [logged for logged in found if models is None or logged.model in models]
    if debug:
        say(f"{project}: {sum(len(logged.group) for logged in chosen)} trajectories in {len(chosen)} groups")
    rows = [
        _row(logged, number, trajectory)
        for number, logged in enumerate(chosen, start=1)
        for trajectory in logged.group
    ]
    return polars.DataFrame(_columns(rows), strict=False, infer_schema_length=None)


def _from_store(file: Path, project: str) -> Iterator[_Logged]:
    """Groups of a server's store."""
    if not file.is_file():
        return
    query = (
        "SELECT name, split, step, history_id, group_index, reward, body FROM logged_trajectories WHERE project = ?"
        " ORDER BY history_id, group_index, trajectory_index"
    )
    with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as conn:
        groups: dict[tuple[str, str, int, int, int], list[dict[str, Any]]] = {}
        for name, split, step, row, place, reward, text in conn.execute(query, (project,)):
            body = {**json.loads(text), "reward": reward}
            groups.setdefault((name, split, step, row, place), []).append(body)
    for (name, split, step, _, _), bodies in groups.items():
        own = bodies[0].get("group") or {}
        yield _Logged(name, split, step, group_from_data({**own, "trajectories": bodies}))


def _from_files(models: Path) -> Iterator[_Logged]:
    """Groups of models without a server, and of openpipe-art's folders."""
    for folder in sorted(models.glob("*/trajectories")):
        name = folder.parent.name
        for file in sorted(folder.glob("*.jsonl")):
            for line in file.read_text(encoding="utf-8").splitlines():
                data = json.loads(line)
                yield _Logged(name, data.get("split", file.stem), int(data["step"]), group_from_data(data))
        for file in sorted(folder.glob("*/*.parquet")):
            if file.stem.isdecimal():
                for group in read_trajectory_groups_parquet(file):
                    yield _Logged(name, file.parent.name, int(file.stem), group)


def _row(logged: _Logged, number: int, trajectory: Trajectory) -> dict[str, Any]:
    return {
        "model": logged.model,
        "split": logged.split,
        "step": logged.step,
        "reward": float(trajectory.reward),
        "group_number": number,
        "messages": [_message(message) for message in trajectory.messages()],
        "logs": list(trajectory.logs),
        **{f"metric_{name}": float(value) for name, value in trajectory.metrics.items()},
        **{f"metadata_{name}": _text(value) for name, value in trajectory.metadata.items()},
        **{f"group_metric_{name}": float(value) for name, value in logged.group.metrics.items()},
        **{f"group_metadata_{name}": _text(value) for name, value in logged.group.metadata.items()},
    }


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _message(message: Mapping[str, Any]) -> dict[str, str | None]:
    """Of one form for all: what is no text stands as JSON."""
    found: dict[str, str | None] = {"role": str(message.get("role", ""))}
    for name in ("content", "tool_calls", "tool_call_id"):
        value = message.get(name)
        found[name] = value if value is None or isinstance(value, str) else json.dumps(value)
    return found


def _columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}
