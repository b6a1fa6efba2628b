"""Rollouts in SQL: opening, rewards, endings, and the outcomes of training."""

from __future__ import annotations

import time

from art.errors import Conflict, NotFound
from art.store import call_rows, rollout_facts
from art.store.damage import reads
from art.store.records import Outcomes, RewardChange, RolloutFilter, RolloutRow
from art.store.sql import Conn, Row, dumps, insert, loads, one
from art.types.policy import Fate, RolloutStatus
from art.types.tokens import CallRecord

LATE = "the rollout was submitted before the call ended"
MEASURED = "the rollout was evaluated before the call ended"
_JSON = ("limits", "metrics", "metadata", "agent_rewards")


@reads("the rollout {rollout_id}")
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
        hint="art ls rollouts lists those there are, in the server's folder (--path)",
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


WAITING = (RolloutStatus.RUNNING, RolloutStatus.FINISHED)
"""A rollout of which nothing has been decided yet."""
FAILED = (RolloutStatus.AGENT_ERROR, RolloutStatus.INFRA_ERROR)
AGAIN = "trained before, into step "


def set_outcomes(conn: Conn, outcomes: Outcomes, *, waiting_only: bool = False) -> None:
    """Statuses and fates together. Naming what does not exist changes nothing.

    What was trained stays so, whatever is decided of it later; with `waiting_only` everything that was decided does.
    """
    now = time.time()
    for change in outcomes.rollouts:
        row = find_rollout(conn, change.rollout_id)
        if row is None or not _replaces(change.status, row.status, waiting_only=waiting_only):
            continue
        conn.execute(
            "UPDATE rollouts SET status = ?, reason = ?, ended_at = COALESCE(ended_at, ?) WHERE rollout_id = ?",
            (change.status.value, _with_the_end(change.reason, row), now, change.rollout_id),
        )
    conn.executemany(
        "UPDATE choices SET fate = :fate, reason = :reason, trained_tokens = :trained_tokens"
        " WHERE call_id = :call_id AND choice = :choice AND (fate = 'pending' OR NOT :waiting)"
        " AND (fate != 'trained' OR :fate = 'trained')",
        [{**fate.model_dump(mode="json"), "waiting": waiting_only} for fate in outcomes.choices],
    )


def _replaces(new: RolloutStatus, old: RolloutStatus, *, waiting_only: bool) -> bool:
    """Whether a decision changes a status, or its reason."""
    if old in WAITING:
        return True
    if waiting_only or new in WAITING:
        return False
    if old is RolloutStatus.TRAINED:
        return new is RolloutStatus.TRAINED
    return new is not old or old not in (*FAILED, RolloutStatus.EVALUATED)  # whose first reason stays


def _with_the_end(reason: str, row: RolloutRow) -> str:
    """The reason of a new status; that an agent had failed is kept, though its rollout is trained."""
    if row.status in FAILED:
        reason = "; ".join(filter(None, (reason, f"ended as {row.status.value}: {row.reason}".rstrip(": "))))
    return reason or (row.reason if row.status is RolloutStatus.TRAINED else "")


def set_trained(conn: Conn, outcomes: Outcomes, step: int, *, batch: int) -> list[str]:
    """The outcomes of the train call `batch`, which ended at `step`, and what a person should know of them.

    A choice names every step it went into: the newest as its `trained_step`, those before in its reason.
    """
    before: dict[tuple[str, int], tuple[int, str]] = {}
    rollouts: dict[int, set[str]] = {}
    trained = [fate for fate in outcomes.choices if fate.fate is Fate.TRAINED]
    for fate in trained:
        row = one(
            conn,
            "SELECT trained_step, reason, rollout_id FROM choices JOIN calls USING (call_id)"
            " WHERE call_id = ? AND choice = ? AND fate = 'trained' AND trained_step IS NOT NULL",
            fate.call_id,
            fate.choice,
        )
        if row is not None:
            before[fate.call_id, fate.choice] = row["trained_step"], row["reason"]
            rollouts.setdefault(row["trained_step"], set()).add(row["rollout_id"])
    set_outcomes(conn, outcomes)
    for fate in trained:
        earlier, reason = before.get((fate.call_id, fate.choice), (None, fate.reason))
        if earlier is not None:
            reason = f"{reason}, {earlier}" if reason.startswith(AGAIN) else f"{AGAIN}{earlier}"
        conn.execute(
            "UPDATE choices SET trained_step = ?, reason = ? WHERE call_id = ? AND choice = ?",
            (step, reason, fate.call_id, fate.choice),
        )
    _settle_late(conn, outcomes)
    rollout_facts.trained(conn, outcomes.rollouts, batch)
    return [
        f"{len(names)} {'rollout was' if len(names) == 1 else 'rollouts were'} trained in step {earlier} already"
        for earlier, names in sorted(rollouts.items())
    ]


def late_fate(status: RolloutStatus) -> tuple[Fate, str] | None:
    """The fate of a choice that is recorded when its rollout has been decided already; None while it waits."""
    if status in (*WAITING, *FAILED):
        return None
    return (Fate.EVALUATION, MEASURED) if status is RolloutStatus.EVALUATED else (Fate.FILTERED, LATE)


def decided(call: CallRecord, status: RolloutStatus) -> CallRecord:
    """The call as it is recorded in a rollout that stands at `status`."""
    late = late_fate(status)
    if late is None:
        return call
    choices = [
        choice.model_copy(update={"fate": late[0], "reason": late[1]})
        if choice.fate is Fate.PENDING
        else choice
        for choice in call.choices
    ]
    return call.model_copy(update={"choices": choices})


def _settle_late(conn: Conn, outcomes: Outcomes) -> None:
    """Choices that were recorded between the submission of the batch and its end: nobody will decide on them later."""
    for change in outcomes.rollouts:
        found = late_fate(change.status)
        if found is not None:
            conn.execute(
                "UPDATE choices SET fate = ?, reason = ? WHERE fate = 'pending'"
                " AND call_id IN (SELECT call_id FROM calls WHERE rollout_id = ?)",
                (found[0].value, found[1], change.rollout_id),
            )
