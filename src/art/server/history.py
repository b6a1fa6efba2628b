"""`model.log`: what a program reports about a step, as one row of figures and the trajectories behind it."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from art.server.files import append_line
from art.server.given_choice import GivenChoice
from art.server.ownership import OwnRecords
from art.server.selection import choices_of
from art.store.records import LoggedTrajectory, ModelRow, Outcomes, RolloutChange
from art.store.store import Store
from art.types.jobs import ChoiceFate
from art.types.metrics import full_name
from art.types.policy import Fate, RolloutStatus
from art.types.wire import GroupIn, Logged, LogRequest, TrajectoryIn

EVALUATED = "logged as evaluation"
DISCARDED = "discarded"
"""Split of rollouts that were meant for training and left out of it by the program."""
TOO_OLD = "sampled too many steps ago when it came to training"


async def record(store: Store, model: ModelRow, request: LogRequest) -> Logged:
    """Store a log request and append its row to history.jsonl. Idempotent: a repeated one counts nothing twice."""
    row = {**_age(model, request), **figures(request)}
    logged: list[LoggedTrajectory] = []
    outcomes = Outcomes()
    own = OwnRecords(store, model.project, model.name)
    for number, group in enumerate(request.groups):
        for index, trajectory in enumerate(group.trajectories):
            rollouts = await _rollouts_of(own, trajectory)
            logged.append(
                LoggedTrajectory(
                    project=model.project,
                    name=model.name,
                    split=request.split,
                    step=request.step,
                    group=number,
                    index=index,
                    rollout_id=next(iter(rollouts), None),
                    reward=trajectory.reward,
                    body=slim(trajectory, group),
                )
            )
            if request.split != "train":
                await _settle(store, rollouts, outcomes, discarded=request.split == DISCARDED)
    kept = await store.run_log.add(
        row,
        project=model.project,
        name=model.name,
        step=request.step,
        recorded_at=request.recorded_at,
        trajectories=logged,
        outcomes=outcomes,
    )
    if kept.new:
        await asyncio.to_thread(append_line, Path(model.model_dir) / "history.jsonl", kept.data)
    return Logged(rollouts=len(logged), row=kept.data)


def _age(model: ModelRow, request: LogRequest) -> dict[str, float]:
    """Seconds from the model's registration to the row, by the clocks of server and program; empty for an unreadable time."""
    try:
        recorded = datetime.fromisoformat(request.recorded_at)
    except ValueError:
        return {}
    if recorded.tzinfo is None:
        return {}
    return {"time/wall_clock_sec": max(0.0, recorded.timestamp() - model.created_at)}


def figures(request: LogRequest) -> dict[str, Any]:
    """The history row: averages over the trajectories, then the metrics that were given."""
    trajectories = [item for group in request.groups for item in group.trajectories]
    failures = sum(len(group.exceptions) for group in request.groups)
    found: dict[str, float] = {}
    if trajectories or failures:
        found["exception_rate"] = failures / (len(trajectories) + failures)
    if trajectories:
        found["reward"] = statistics.fmean(item.reward for item in trajectories)
        spreads = [
            statistics.pstdev(item.reward for item in group.trajectories)
            for group in request.groups
            if len(group.trajectories) > 1
        ]
        found["reward_std_dev"] = statistics.fmean(spreads) if spreads else 0.0
        found.update(_means(item.metrics for item in trajectories))
    groups = _means(group.metrics for group in request.groups)
    found.update({f"group_{name}": value for name, value in groups.items()})
    found.update(request.metrics)
    named = {full_name(name, request.split): value for name, value in found.items()}
    return {"training_step": request.step, "step": request.step, "recorded_at": request.recorded_at, **named}


def _means(items: Any) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for metrics in items:
        for name, value in metrics.items():
            values.setdefault(name, []).append(float(value))
    return {name: statistics.fmean(found) for name, found in values.items()}


def slim(trajectory: TrajectoryIn, group: GroupIn) -> dict[str, Any]:
    """The trajectory as it is stored: log-probabilities and token ids of recorded choices lie in the call."""
    body = trajectory.model_dump(mode="json", exclude={"reward"}, exclude_defaults=True)
    for choice in _recorded(body):
        choice["logprobs"] = None
        choice.pop("token_ids", None)
    body["group"] = group.model_dump(mode="json", exclude={"trajectories"}, exclude_defaults=True)
    return body


def _recorded(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for history in (body, *body.get("additional_histories", ())):
        yield from (item for item in history.get("messages_and_choices", ()) if "art" in item)


async def _rollouts_of(own: OwnRecords, trajectory: TrajectoryIn) -> list[str]:
    """The model's rollouts a trajectory comes from, as far as its choices or it itself say so."""
    found: dict[str, None] = {}
    if trajectory.rollout_id is not None and await own.rollout(trajectory.rollout_id) is not None:
        found[trajectory.rollout_id] = None
    for choice in choices_of(trajectory):
        mark = GivenChoice.read(choice).art
        if mark is not None and (call := await own.call(mark.call_id)) is not None:
            found[call.rollout_id] = None
    return list(found)


async def _settle(store: Store, rollouts: list[str], outcomes: Outcomes, *, discarded: bool) -> None:
    """Rollouts that were only measured are `evaluated`, discarded ones `stale`; one that was trained stays so."""
    status, fate, reason = RolloutStatus.EVALUATED, Fate.EVALUATION, EVALUATED
    if discarded:
        status, fate, reason = RolloutStatus.STALE, Fate.STALE, TOO_OLD
    for rollout_id in rollouts:
        row = await store.get_rollout(rollout_id)
        if row.status not in (RolloutStatus.RUNNING, RolloutStatus.FINISHED):
            continue
        outcomes.rollouts.append(RolloutChange(rollout_id=rollout_id, status=status, reason=reason))
        outcomes.choices += await _fates(store, rollout_id, fate, reason)


async def evaluation_fates(store: Store, rollout_id: str) -> list[ChoiceFate]:
    """The fate `evaluation` for every choice of a rollout that is still pending."""
    return await _fates(store, rollout_id, Fate.EVALUATION, EVALUATED)


async def _fates(store: Store, rollout_id: str, fate: Fate, reason: str) -> list[ChoiceFate]:
    return [
        ChoiceFate(call_id=call.call_id, choice=choice.index, fate=fate, reason=reason)
        for call in await store.calls_of(rollout_id)
        for choice in call.choices
        if choice.fate is Fate.PENDING
    ]
