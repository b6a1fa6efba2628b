"""Rollouts in SQL: opening, rewards, endings, and the outcomes of training."""

from __future__ import annotations

import time

from art.errors import Conflict, NotFound
from art.store import call_rows
from art.store.records import Outcomes, RewardChange, RolloutFilter, RolloutRow
from art.store.sql import Conn, Row, dumps, insert, loads, one
from art.types.policy import RolloutStatus

_JSON = ("limits", "metrics", "metadata", "agent_rewards")


def _rollout(row: Row) -> RolloutRow:
    return RolloutRow.model_validate({**dict(row), **{name: loads(row[name]) for name in _JSON}})


def open_rollout(conn: Conn, rollout: RolloutRow) -> RolloutRow:
    """Insert a rollout; one with this id is returned as it stands (Conflict when it is another model's)."""
    row = one(conn, "SELECT * FROM rollouts WHERE rollout_id = ?", rollout.rollout_id)
    if row is not None:
        existing = _rollout(row)
        if (existing.project, existing.model) != (rollout.project, rollout.model):
            raise Conflict(
                f"the rollout {rollout.rollout_id} belongs to another model",
                cause=f"it was asked for again with {rollout.project}/{rollout.model}",
                hint="give every rollout an id of its own",
            )
        return existing
    if rollout.seed_identity:
        rollout = rollout.model_copy(update={"repeat": _earlier(conn, rollout)})
    values = rollout.model_dump(mode="json")
    for name in _JSON:
        values[name] = dumps(values[name])
    insert(conn, "rollouts", values)
    return rollout


def _earlier(conn: Conn, rollout: RolloutRow) -> int:
    """Rollouts before this one that would draw the same. Those that ART failed are being run again."""
    counted = one(
        conn,
        "SELECT COUNT(*) AS count FROM rollouts WHERE project = ? AND model = ? AND seed_identity = ? AND status != ?",
        rollout.project,
        rollout.model,
        rollout.seed_identity,
        RolloutStatus.INFRA_ERROR.value,
    )
    return 0 if counted is None else int(counted["count"])


def find_rollout(conn: Conn, rollout_id: str) -> RolloutRow | None:
    row = one(conn, "SELECT * FROM rollouts WHERE rollout_id = ?", rollout_id)
    return None if row is None else _rollout(row)


def get_rollout(conn: Conn, rollout_id: str) -> RolloutRow:
    """The rollout; NotFound when there is none."""
    found = find_rollout(conn, rollout_id)
    if found is None:
        raise no_rollout(rollout_id)
    return found


def no_rollout(rollout_id: str) -> NotFound:
    """The answer for a rollout that is not there, or not for who asks."""
    return NotFound(
        f"there is no rollout {rollout_id}",
        hint="open it with POST /api/v1/rollouts, or check the server's folder (--path)",
    )


def list_rollouts(conn: Conn, wanted: RolloutFilter) -> list[RolloutRow]:
    """Newest first, at most `wanted.limit`."""
    values = wanted.model_dump(mode="json", exclude={"limit"}, exclude_none=True)
    where = " AND ".join(f"{name} = :{name}" for name in values) or "1"
    found = conn.execute(
        f"SELECT * FROM rollouts WHERE {where} ORDER BY created_at DESC, rowid DESC LIMIT :limit",
        {**values, "limit": wanted.limit},
    )
    return [_rollout(row) for row in found]


def set_reward(conn: Conn, change: RewardChange) -> RolloutRow:
    """Keep the rewards; metrics and metadata are merged into what is there. May be repeated and may come late.

    NotFound for a call that is not the rollout's; nothing is kept then.
    """
    row = get_rollout(conn, change.rollout_id)
    call_rows.set_rewards(conn, change.rollout_id, change.calls)
    call_rows.set_auxiliary(conn, change.rollout_id, change.auxiliary)
    conn.execute(
        "UPDATE rollouts SET reward = ?, agent_rewards = ?, metrics = ?, metadata = ? WHERE rollout_id = ?",
        (
            row.reward if change.reward is None else change.reward,
            dumps({**row.agent_rewards, **change.agents}),
            dumps({**row.metrics, **change.metrics}),
            dumps({**row.metadata, **change.metadata}),
            change.rollout_id,
        ),
    )
    return get_rollout(conn, change.rollout_id)


def finish_rollout(conn: Conn, rollout_id: str, status: RolloutStatus, reason: str) -> RolloutRow:
    """End a running rollout. One that has ended keeps its status: an ending is never overwritten."""
    row = get_rollout(conn, rollout_id)
    if row.status is RolloutStatus.RUNNING:
        conn.execute(
            "UPDATE rollouts SET status = ?, reason = ?, ended_at = ? WHERE rollout_id = ?",
            (status.value, reason, time.time(), rollout_id),
        )
    return get_rollout(conn, rollout_id)


def interrupt_running(conn: Conn, reason: str) -> int:
    """At start: no agent of a rollout that was running is connected any more."""
    done = conn.execute(
        "UPDATE rollouts SET status = ?, reason = ?, ended_at = ? WHERE status = ?",
        (RolloutStatus.INFRA_ERROR.value, reason, time.time(), RolloutStatus.RUNNING.value),
    )
    return done.rowcount


def set_outcomes(conn: Conn, outcomes: Outcomes) -> None:
    """Statuses and fates together. Naming what does not exist changes nothing."""
    now = time.time()
    conn.executemany(
        "UPDATE rollouts SET status = ?, reason = ?, ended_at = COALESCE(ended_at, ?) WHERE rollout_id = ?",
        [(change.status.value, change.reason, now, change.rollout_id) for change in outcomes.rollouts],
    )
    conn.executemany(
        "UPDATE choices SET fate = ?, reason = ?, trained_tokens = ? WHERE call_id = ? AND choice = ?",
        [
            (fate.fate.value, fate.reason, fate.trained_tokens, fate.call_id, fate.choice)
            for fate in outcomes.choices
        ],
    )


def set_trained_step(conn: Conn, outcomes: Outcomes, step: int) -> None:
    """The step that the trained choices went into."""
    conn.executemany(
        "UPDATE choices SET trained_step = ? WHERE call_id = ? AND choice = ? AND fate = 'trained'",
        [(step, fate.call_id, fate.choice) for fate in outcomes.choices],
    )
