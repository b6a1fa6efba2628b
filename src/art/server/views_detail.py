"""One rollout, one group, one choice's tokens: what the dashboard shows of them."""

from __future__ import annotations

import asyncio

from art.errors import InvalidInput, NotFound, TokensDeleted
from art.server.auxiliary import judged
from art.server.endpoint import ApiCall, ApiRoute
from art.server.explain import TRAINABLE, explain, withheld
from art.server.ownership import visible_rollout
from art.server.said import divergence, last_call, main_path, message_of, sampled_message
from art.server.token_page import empty_page, token_page
from art.store.explanations import explanation_of
from art.store.records import CallText, Role
from art.store.remarks import Conversation
from art.store.trained_rows import TrainedChoice, array_name
from art.types.explain import ExplainedCall
from art.types.policy import Fate
from art.types.tokens import CallRecord, ChoiceRecord
from art.types.wire_views import (
    CallChoice,
    CallNode,
    GroupDetail,
    Member,
    TokenPage,
    TrajectoryDetail,
)

MOST_MEMBERS = 128
"""Of a group that are shown side by side."""
TOKENS, MOST_TOKENS = 2_000, 50_000
"""Of a page where nothing else is asked for, and at most."""


async def get_trajectory(call: ApiCall) -> TrajectoryDetail:
    """Its calls as a tree with what was said in each, what becomes of every choice, and a person's note."""
    gateway = call.gateway
    row = await visible_rollout(gateway.store, call.param("rollout_id"), call.principal)
    found = await gateway.store.remarks.conversation(row.rollout_id)
    explained = await explain(gateway.store, found.row)
    logged = found.logged
    records = {item.call_id: item for item in found.calls}
    return TrajectoryDetail(
        rollout=found.line,
        next=explained.next,
        calls=[
            _node(item, records[item.call_id], found) for item in explained.calls if item.call_id in records
        ],
        note=found.note,
        explanation=explanation_of(logged.logs, logged.metadata),
        logs=logged.logs,
        metadata={**logged.metadata, **found.row.metadata},
        agent_rewards=found.row.agent_rewards,
        upstream_calls=explained.upstream_calls,
        limits=found.row.limits.model_dump(mode="json", exclude_none=True),
    )


async def get_group(call: ApiCall) -> GroupDetail:
    """Its rollouts side by side, and where they begin to differ. NotFound when the run has no such group."""
    project, name, group_id = call.param("project"), call.param("name"), call.param("group_id")
    group, found = await call.gateway.store.remarks.group(project, name, group_id, MOST_MEMBERS)
    members = [_member(one) for one in found]
    return GroupDetail(group=group, members=members, divergence=divergence([one.messages for one in members]))


async def get_tokens(call: ApiCall) -> TokenPage:
    """`?call_id=` and `&choice=` say which, `&start=` from where (negative: the prompt's), `&limit=` how many."""
    store = call.gateway.store
    row = await visible_rollout(store, call.param("rollout_id"), call.principal)
    start, limit = _number(call, "start", 0), _number(call, "limit", TOKENS)
    if not 1 <= limit <= MOST_TOKENS:
        raise InvalidInput(f"limit={limit} is not between 1 and {MOST_TOKENS}")
    record, choice = await _choice(call, row.rollout_id)
    hidden = await withheld(store, record)
    if hidden or record.blob is None:
        return empty_page(record, choice, start=start, withheld=hidden or "its tokens were deleted")
    try:
        arrays = await store.read_arrays(record.blob)
    except TokensDeleted as error:
        return empty_page(record, choice, start=start, withheld=error.message)
    trained = (await store.remarks.trained(row.rollout_id)).get((record.call_id, choice.index))
    theirs = None
    if trained is not None and trained.blob is not None:
        kept = await store.read_arrays(trained.blob)
        theirs = kept.get(array_name(record.call_id, choice.index))
    tokenizer = await call.gateway.tokenizers.of(record.version)
    return await asyncio.to_thread(
        token_page,
        record,
        choice,
        arrays,
        bytes_of=None if tokenizer is None else tokenizer.token_bytes,
        start=start,
        limit=limit,
        learns=await _learns(call, record, choice),
        trained=trained,
        trained_logprobs=theirs,
    )


async def _choice(call: ApiCall, rollout_id: str) -> tuple[CallRecord, ChoiceRecord]:
    """The choice that the query names. NotFound for one that is not the rollout's."""
    asked = call.request.query_params
    call_id, index = asked.get("call_id", ""), _number(call, "choice", 0)
    record = await call.gateway.store.get_call(call_id)
    if record is None or record.rollout_id != rollout_id:
        raise NotFound(
            f"the rollout {rollout_id} has no call {call_id[:200]!r}",
            hint=f"GET /api/v1/views/rollouts/{rollout_id} lists them",
        )
    for choice in record.choices:
        if choice.index == index:
            return record, choice
    raise NotFound(f"the call {call_id} has no choice {index}", cause=f"it has {len(record.choices)}")


async def _learns(call: ApiCall, record: CallRecord, choice: ChoiceRecord) -> bool:
    """Whether the choice was trained, or would be by a train call now."""
    if choice.fate is not Fate.PENDING:
        return choice.fate is Fate.TRAINED
    gateway = call.gateway
    row = await gateway.store.get_rollout(record.rollout_id)
    for item in (await explain(gateway.store, row)).calls:
        if item.call_id == record.call_id:
            return any(one.index == choice.index and one.fate == TRAINABLE for one in item.choices)
    return False


def _number(call: ApiCall, name: str, default: int) -> int:
    given = call.request.query_params.get(name)
    if given is None:
        return default
    digits = given.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 12):
        raise InvalidInput(f"{name}={given[:80]!r} is no whole number")
    return int(given)


def _member(found: Conversation) -> Member:
    calls = judged(found.calls, found.row.auxiliary)
    last = last_call(calls)
    return Member(
        rollout=found.line,
        messages=main_path(calls, found.texts),
        branch=0 if last is None else last.branch,
        branches=max(1, len({call.branch for call in calls if not call.auxiliary})),
        explanation=explanation_of(found.logged.logs, found.logged.metadata),
    )


def _node(item: ExplainedCall, record: CallRecord, found: Conversation) -> CallNode:
    text = found.texts.get(record.call_id, CallText())
    first = record.first_token_at
    choices = {choice.index: choice for choice in record.choices}
    return CallNode(
        **item.model_dump(include=set(CallNode.model_fields) - {"choices", "sampling", "tail", "tools"}),
        parent_choice=text.parent_choice,
        seconds_to_first_token=None if first is None else round(first - record.started_at, 3),
        sampling=item.sampling_used,
        tail=[message_of(said) for said in text.tail],
        tools=[str(tool.get("function", {}).get("name", "")) for tool in text.tools or ()],
        choices=[
            CallChoice(
                **explained.model_dump(include=set(CallChoice.model_fields)),
                message=sampled_message(record, text, explained.index),
                advantage=_advantage(found.trained.get((record.call_id, explained.index))),
            )
            for explained in item.choices
            if explained.index in choices
        ],
    )


def _advantage(trained: TrainedChoice | None) -> float | None:
    return None if trained is None else trained.advantage


ROUTES = [
    ApiRoute(
        "GET", "/api/v1/views/rollouts/{rollout_id}", Role.ROLLOUT, get_trajectory,
        "One rollout: its calls as a tree, with what was said and what became of it", response=TrajectoryDetail,
    ),
    ApiRoute(
        "GET", "/api/v1/views/rollouts/{rollout_id}/tokens", Role.ROLLOUT, get_tokens,
        "Tokens of one choice: ?call_id=&choice=&start=&limit=", response=TokenPage,
    ),
    ApiRoute(
        "GET", "/api/v1/views/runs/{project}/{name}/groups/{group_id:path}", Role.ROLLOUT, get_group,
        "One group: its rollouts side by side", response=GroupDetail,
    ),
]  # fmt: skip
