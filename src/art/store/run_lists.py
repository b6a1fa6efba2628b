"""Runs in a list, and one run as a whole. A run is a model's history."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from art.config.model import ModelConfig
from art.config.train import TrainConfig, chosen_by_size
from art.errors import NotFound
from art.store import fate_rows, remark_rows, series
from art.store.damage import reads
from art.store.pages import cursor_of, key_of
from art.store.sql import Conn, Row, loads
from art.types.wire_views import RunDetail, RunLine, RunList

SPARKLINE = 60
"""Points of a run's reward in the list."""
CALL = "train_call"
"""Part of a run's configuration: the options of its newest train call."""
REWARD, EVALUATED, COST = "train/reward", "val/reward", "costs/cum/all"

_SUMS = """SELECT project, model, status, COUNT(*) AS count, SUM(sampled_tokens) AS tokens,
    MAX(created_at + COALESCE(seconds, 0)) AS newest FROM rollout_facts {where} GROUP BY project, model, status"""


@dataclass(slots=True)
class _Sums:
    """Of a run's rollouts."""

    statuses: dict[str, int] = field(default_factory=dict)
    tokens: int = 0
    newest: float = 0.0


def runs(conn: Conn, *, project: str | None = None, limit: int = 50, cursor: str | None = None) -> RunList:
    """Newest change first; those of `project`, or of all."""
    where, values = ("WHERE project = ?", [project]) if project is not None else ("", [])
    models = conn.execute(f"SELECT * FROM models {where}", values).fetchall()
    sums = _sums(conn, where, values)
    changed = _changed(conn, where, values)
    order = sorted(
        ((_updated(row, sums, changed), row["project"], row["name"], row) for row in models),
        key=lambda found: (-found[0], found[1], found[2]),
    )
    if cursor is not None:
        at, owner, name = key_of("runs", cursor, parts=3)
        last = (-at if isinstance(at, int | float) else 0.0, owner, name)
        order = [found for found in order if (-found[0], found[1], found[2]) > last]
    shown = order[:limit]
    training = _training(conn)
    lines = [_line(conn, row, sums, at=at, training=training) for at, _, _, row in shown]
    following = cursor_of("runs", *shown[-1][:3]) if len(order) > limit else None
    return RunList(runs=lines, next=following)


def run(conn: Conn, project: str, name: str) -> RunDetail:
    """One run; NotFound when there is no such model."""
    row = conn.execute("SELECT * FROM models WHERE project = ? AND name = ?", (project, name)).fetchone()
    if row is None:
        raise no_run(project, name)
    sums = _sums(conn, "WHERE project = ? AND model = ?", [project, name])
    changed = _changed(conn, "WHERE project = ? AND name = ?", [project, name])
    line = _line(conn, row, sums, at=_updated(row, sums, changed), training=_training(conn))
    config, origin = loads(row["config"]), dict[str, str]()
    asked = remark_rows.get_run_config(conn, project, name)
    if asked is not None:
        config, origin = {**config, "run": asked.config}, asked.origin
    settings, set_by = _newest_call(conn, row)
    if settings:
        config[CALL] = settings
        origin = {**origin, **{f"{CALL}.{option}": who for option, who in set_by.items()}}
    return RunDetail(
        run=line,
        figures=series.figures(conn, project, name),
        statuses=sums[project, name].statuses,
        fates=fate_rows.fates(conn, project, name),
        notes=loads(row["notes"]),
        config=config,
        config_origin=origin,
    )


def _newest_call(conn: Conn, model: Row) -> tuple[dict[str, Any], dict[str, str]]:
    """What the newest train call trained with, and who set each option; empty where there was none."""
    found = conn.execute(
        "SELECT json_extract(spec, '$.config') FROM batches JOIN jobs USING (job_id) WHERE kind = 'train'"
        " AND batches.project = ? AND batches.name = ? ORDER BY batches.batch DESC LIMIT 1",
        (model["project"], model["name"]),
    ).fetchone()
    if found is None:
        return {}, {}
    settings, usual = loads(found[0]), TrainConfig()
    defaults = usual.model_dump(mode="json")
    set_by = {
        option: "default" if option in defaults and value == defaults[option] else "the train call"
        for option, value in settings.items()
    }
    whole = ModelConfig.model_validate(loads(model["config"])).adapter is None
    parameters = loads(model["base"])["parameters"]
    config = usual.model_copy(
        update={option: value for option, value in settings.items() if option in defaults}
    )
    for option, value in chosen_by_size(config, parameters, whole=whole).items():
        settings[option], set_by[option] = value, "chosen by the model's size"
    return settings, set_by


def require_run(conn: Conn, project: str, name: str) -> None:
    """NotFound when there is no such model."""
    if (
        conn.execute("SELECT 1 FROM models WHERE project = ? AND name = ?", (project, name)).fetchone()
        is None
    ):
        raise no_run(project, name)


def no_run(project: str, name: str) -> NotFound:
    """The answer for a run that is not there."""
    return NotFound(
        f"there is no run {f'{project}/{name}'[:240]!r}",
        hint="art ls, the dashboard's Runs and GET /api/v1/views/runs list those there are",
    )


def _sums(conn: Conn, where: str, values: Sequence[Any]) -> defaultdict[tuple[str, str], _Sums]:
    found: defaultdict[tuple[str, str], _Sums] = defaultdict(_Sums)
    for row in conn.execute(_SUMS.format(where=where), values):
        one = found[row["project"], row["model"]]
        one.statuses[row["status"]] = row["count"]
        one.tokens += row["tokens"]
        one.newest = max(one.newest, row["newest"])
    return found


def _changed(conn: Conn, where: str, values: Sequence[Any]) -> dict[tuple[str, str], float]:
    """Time of the newest job, batch or log."""
    found: dict[tuple[str, str], float] = {}
    for table, column in (
        ("jobs", "COALESCE(ended_at, created_at)"),
        ("batches", "time"),
        ("run_figures", "time"),
    ):
        query = f"SELECT project, name, MAX({column}) FROM {table} {where} GROUP BY project, name"
        for project, name, at in conn.execute(query, values):
            found[project, name] = max(found.get((project, name), 0.0), at)
    return found


def _updated(
    row: Row, sums: defaultdict[tuple[str, str], _Sums], changed: dict[tuple[str, str], float]
) -> float:
    key = (row["project"], row["name"])
    newest = sums[key].newest if key in sums else 0.0
    return max(float(row["created_at"]), newest, changed.get(key, 0.0))


def _training(conn: Conn) -> set[tuple[str, str]]:
    """Runs with a job that is not done."""
    return {
        tuple(row)
        for row in conn.execute("SELECT project, name FROM jobs WHERE status IN ('queued', 'running')")
    }


def _line(
    conn: Conn,
    row: Row,
    sums: defaultdict[tuple[str, str], _Sums],
    *,
    at: float,
    training: set[tuple[str, str]],
) -> RunLine:
    project, name = row["project"], row["name"]
    mine = sums[project, name]
    running = mine.statuses.get("running", 0)
    rewards = [point.value for point in series.points_of(conn, project, name, REWARD)]
    return RunLine(
        project=project,
        name=name,
        base_model=_base_name(row),
        state="training" if (project, name) in training else "sampling" if running else "idle",
        step=row["step"],
        batch=row["batch"],
        created_at=row["created_at"],
        updated_at=at,
        rollouts=sum(mine.statuses.values()),
        running=running,
        sampled_tokens=mine.tokens,
        reward_first=rewards[0] if rewards else None,
        reward_last=rewards[-1] if rewards else None,
        val_reward_last=_newest(conn, project, name, EVALUATED),
        cost_usd=_newest(conn, project, name, COST),
        rewards=[rewards[place] for place in series.thinned(rewards, SPARKLINE)],
    )


@reads("the model {project}/{name}")
def _base_name(row: Row) -> str:
    return str(loads(row["base"])["name"])


def _newest(conn: Conn, project: str, name: str, metric: str) -> float | None:
    found = conn.execute(
        "SELECT value FROM run_figures WHERE project = ? AND name = ? AND metric = ? ORDER BY step DESC LIMIT 1",
        (project, name, metric),
    ).fetchone()
    return None if found is None else float(found[0])
