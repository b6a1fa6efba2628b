"""Rollouts: opening, rewards, endings, and what was recorded."""

from __future__ import annotations

import math
from typing import Any

from art.errors import InvalidInput, InvalidReward
from art.server.auxiliary import judge, judged
from art.server.endpoint import ApiCall, ApiRoute
from art.server.explain import explain
from art.server.history import evaluation_fates
from art.server.ownership import visible_rollout
from art.store.records import CallText, Outcomes, RewardChange, Role, RolloutRow
from art.store.store import Store
from art.types import wire
from art.types.explain import Explanation
from art.types.policy import RolloutStatus
from art.types.tokens import CallRecord
from art.types.upstreams import UpstreamCalls

NEVER_CALLED = "the agent never called the model, so there is nothing to train"


async def open_rollout(call: ApiCall) -> wire.RolloutOpened:
    return await call.gateway.sessions.open(call.body(wire.OpenRollout), call.principal)


async def get_rollout(call: ApiCall) -> wire.RolloutInfo:
    row = await _row(call)
    info = await _info(call.gateway.store, row)
    return info.model_copy(update={"failed_calls": call.gateway.sessions.failed_calls(row.rollout_id)})


async def get_explanation(call: ApiCall) -> Explanation:
    """Every call, its branch and versions, and whether it will be trained, was trained, or why not."""
    row = await _row(call)
    wanted = call.request.query_params.get("tokens", "false").lower()
    if wanted not in ("true", "false"):
        raise InvalidInput(f"tokens={wanted[:80]!r} is neither true nor false")
    gateway = call.gateway
    tokenizers = gateway.tokenizers if wanted == "true" else None
    return await explain(gateway.store, row, tokenizers=tokenizers)


async def get_upstream_calls(call: ApiCall) -> UpstreamCalls:
    """What the rollout's agent asked other models, and what they answered."""
    row = await _row(call)
    return UpstreamCalls(calls=await call.gateway.store.upstream_texts_of(row.rollout_id, row.project))


async def set_reward(call: ApiCall) -> wire.RolloutInfo:
    """Once this is answered, the reward and the rollout's tokens are on the disk."""
    request = call.body(wire.SetReward)
    row = await _row(call)
    if request.reward is None and not (request.calls or request.agents or request.auxiliary):
        raise InvalidReward(
            f"no reward of {row.rollout_id} is given",
            hint="a number as reward, or rewards of calls or agents",
        )
    for reward in (request.reward, *request.calls.values(), *request.agents.values()):
        if reward is not None and not math.isfinite(reward):
            raise InvalidReward(
                f"a reward of {row.rollout_id} is {reward}", hint="a reward is a finite number"
            )
    change = RewardChange(rollout_id=row.rollout_id, **request.model_dump())
    row = await call.gateway.store.set_reward(change)
    if request.auxiliary or request.calls:
        await _keep_verdicts(call.gateway.store, row)
    return await _info(call.gateway.store, row)


async def finish_rollout(call: ApiCall) -> wire.RolloutInfo:
    """A rollout that has ended keeps its status. One without calls is `no_calls`, whatever its reward."""
    request = call.body(wire.FinishRollout)
    store = call.gateway.store
    row = await _row(call)
    status, reason = RolloutStatus(request.status), request.reason
    async with call.gateway.sessions.ending(
        row.rollout_id
    ):  # a call in flight counts as soon as it is recorded
        calls = await _keep_verdicts(store, row)
        if status is RolloutStatus.FINISHED and all(item.auxiliary for item in calls):
            status, reason = RolloutStatus.NO_CALLS, NEVER_CALLED
        row = await call.gateway.sessions.finish(row.rollout_id, status, reason)
    if row.status is RolloutStatus.EVALUATED:
        await store.set_outcomes(Outcomes(choices=await evaluation_fates(store, row.rollout_id)))
    return await _info(store, row)


async def _row(call: ApiCall) -> RolloutRow:
    return await visible_rollout(call.gateway.store, call.param("rollout_id"), call.principal)


async def _keep_verdicts(store: Store, row: RolloutRow) -> list[CallRecord]:
    """Write down which calls are on the side; the rollout's calls with it."""
    calls = await store.calls_of(row.rollout_id)
    found = judge(calls, row.auxiliary)
    kept = {call.call_id: call.auxiliary_reason or None for call in calls}
    changed = {call_id: reason for call_id, reason in found.items() if reason != kept[call_id]}
    if changed:
        await store.judge(row.rollout_id, changed)
    return judged(calls, row.auxiliary)


async def _info(store: Store, row: RolloutRow) -> wire.RolloutInfo:
    calls = judged(await store.calls_of(row.rollout_id), row.auxiliary)
    values = row.model_dump(include=set(wire.RolloutInfo.model_fields))
    return wire.RolloutInfo(
        **values,
        calls=calls,
        upstream_calls=await store.upstream_calls_of(row.rollout_id, row.project),
        messages=await main_branch(store, calls),
    )


async def main_branch(store: Store, calls: list[CallRecord]) -> list[dict[str, Any]]:
    """The messages that lead to the last call of the main branch; answers carry their choice.

    The main branch is that of the first call that is not on the side.
    """
    by_id = {call.call_id: call for call in calls}
    ours = [call for call in calls if not call.auxiliary]
    call = next((call for call in reversed(ours) if call.branch == ours[0].branch), None)
    path: list[tuple[CallRecord, CallText, int]] = []
    continued = 0
    while call is not None:
        text = await store.text_of(call.call_id)
        path.insert(0, (call, text, continued))
        continued = text.parent_choice
        call = by_id.get(call.parent_call_id or "")
    messages: list[dict[str, Any]] = []
    for call, text, continued in path:
        messages += text.tail
        for choice in [item for item in call.choices if item.index == continued]:
            message = text.completions[choice.index] if choice.index < len(text.completions) else {}
            messages.append({**message, "choice": _choice(call, choice.index, choice.finish_reason, message)})
    return messages


def _choice(call: CallRecord, index: int, finish_reason: str, message: dict[str, Any]) -> dict[str, Any]:
    mark = {"call_id": call.call_id, "choice": index, "version": call.version}
    return {"index": index, "finish_reason": finish_reason, "message": message, "art": mark}


_ROLLOUT = "/api/v1/rollouts/{rollout_id}"

ROUTES = [
    ApiRoute(
        "POST", "/api/v1/rollouts", Role.ROLLOUT, open_rollout, "Open a rollout; idempotent by rollout_id",
        request=wire.OpenRollout, response=wire.RolloutOpened, changes=True,
    ),
    ApiRoute("GET", _ROLLOUT, Role.ROLLOUT, get_rollout, "One rollout", response=wire.RolloutInfo),
    ApiRoute(
        "GET", f"{_ROLLOUT}/upstream_calls", Role.ROLLOUT, get_upstream_calls,
        "Calls that were passed on to upstreams", response=UpstreamCalls,
    ),
    ApiRoute(
        "GET", f"{_ROLLOUT}/explain", Role.ROLLOUT, get_explanation,
        "What becomes of every call, and why; ?tokens=true with the tokens", response=Explanation,
    ),
    ApiRoute(
        "POST", f"{_ROLLOUT}/reward", Role.ROLLOUT, set_reward, "Set the reward; may be repeated and come late",
        request=wire.SetReward, response=wire.RolloutInfo, changes=True,
    ),
    ApiRoute(
        "POST", f"{_ROLLOUT}/finish", Role.ROLLOUT, finish_rollout, "End a rollout; idempotent",
        request=wire.FinishRollout, response=wire.RolloutInfo, changes=True,
    ),
]  # fmt: skip
