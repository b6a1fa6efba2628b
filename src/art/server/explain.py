"""What becomes of a rollout's calls, told before and after training."""

from __future__ import annotations

import asyncio
import codecs
from typing import Any

import numpy as np

from art.server.credit import WHOLE, credit_of
from art.server.sampling import resolve_sampling
from art.server.selection import Selection, Selector
from art.server.tokenizers import Tokenizers
from art.store.records import RolloutRow
from art.store.store import Store
from art.tokens.tokenizer import Tokenizer
from art.types.explain import ExplainedCall, ExplainedChoice, ExplainedToken, Explanation
from art.types.policy import Fate, Purpose, RolloutStatus
from art.types.tokens import CallRecord, ChoiceRecord

TRAINABLE = "trainable"
"""What a pending choice is called that a train call would take."""


async def explain(store: Store, row: RolloutRow, *, tokenizers: Tokenizers | None = None) -> Explanation:
    """Every call of the rollout with its fate; with `tokenizers` also the text of its tokens."""
    selector = Selector(store, row.project, row.model)
    selection = await selector.whole_rollout(row.rollout_id)
    calls = await selector.own.calls_of(row.rollout_id)
    numbers = {call.call_id: call.number for call in calls}
    explained = []
    for call in calls:
        item = _call(call, row, numbers)
        item.choices = [_choice(choice, call, calls, row, selection) for choice in call.choices]
        item.withheld = await withheld(store, call)
        tokenizer = None if tokenizers is None or item.withheld else await tokenizers.of(call.version)
        if tokenizer is not None and call.blob is not None:
            arrays = await store.read_arrays(call.blob)
            await asyncio.to_thread(_add_tokens, item, arrays, tokenizer)
        explained.append(item)
    return Explanation(
        rollout_id=row.rollout_id,
        model=f"{row.project}/{row.model}@{row.step}",
        purpose=row.purpose,
        status=row.status,
        reason=row.reason,
        reward=row.reward,
        agent_rewards=row.agent_rewards,
        sampling=row.sampling,
        auxiliary=row.auxiliary,
        next=_next(row, selection),
        calls=explained,
        upstream_calls=len(await store.upstream_calls_of(row.rollout_id, row.project)),
    )


async def withheld(store: Store, call: CallRecord) -> str:
    """Why the text of a call is not shown; empty where it may be."""
    if call.blob is not None and not call.blob.sealed:
        return ""
    dropped = (await store.text_of(call.call_id)).dropped
    said = "its content is not kept" if dropped else "its conversation was redacted"
    return f"{said}; its tokens {'were deleted' if call.blob is None else 'are encrypted until they were trained'}"


def _call(call: CallRecord, row: RolloutRow, numbers: dict[str, int]) -> ExplainedCall:
    asked = {name: value for name, value in call.sampling_asked.items() if value is not None}
    return ExplainedCall(
        call_id=call.call_id,
        number=call.number,
        parent=numbers.get(call.parent_call_id or ""),
        branch=call.branch,
        agent=call.agent,
        dialect=call.dialect,
        version=call.version,
        auxiliary=call.auxiliary,
        auxiliary_reason=call.auxiliary_reason,
        prompt_tokens=call.prompt_token_count,
        reused_tokens=call.reused_token_count,
        tool_count=call.tool_count,
        sampling_asked=asked,
        sampling_used=call.sampling_used.model_dump(mode="json", exclude_defaults=True),
        overrides=_overrides(call, row),
        started_at=call.started_at,
        seconds=None if call.finished_at is None else round(call.finished_at - call.started_at, 3),
        choices=[],
    )


def _overrides(call: CallRecord, row: RolloutRow) -> list[str]:
    """What was asked and not followed, `name asked -> used`."""
    asked = {name: value for name, value in call.sampling_asked.items() if name != "model"}
    found = [
        f"{item.name} {item.asked} -> {item.used}" for item in resolve_sampling(asked, row.sampling).overrides
    ]
    wanted, used = asked.get("max_tokens"), call.sampling_used.max_tokens
    if isinstance(wanted, int) and used is not None and used < wanted:
        found.append(f"max_tokens {wanted} -> {used}")
    name = call.sampling_asked.get("model")
    lineage = call.version.rpartition("@")[0]
    if isinstance(name, str) and name.partition("@")[0] not in (lineage, lineage.rpartition("/")[2]):
        found.append(f"model {name} -> {lineage}")
    return found


def _choice(
    choice: ChoiceRecord, call: CallRecord, calls: list[CallRecord], row: RolloutRow, selection: Selection
) -> ExplainedChoice:
    fate, reason = choice.fate.value, choice.reason
    pick = (call.call_id, choice.index)
    if choice.fate is Fate.PENDING:
        left_out = selection.left_out.get(pick)
        fate, reason = (TRAINABLE, "") if left_out is None else (left_out[0].value, left_out[1])
    reward: float | None = None
    reward_of = ""
    if fate in (TRAINABLE, Fate.TRAINED.value):
        missing = float("nan")
        credit = credit_of(
            call,
            choice,
            calls=calls,
            agents=row.agent_rewards,
            reward=missing if row.reward is None else row.reward,
        )
        reward = None if credit.reward != credit.reward else credit.reward
        reward_of = "rollout" if credit.part == WHOLE else credit.part.partition(":")[0]
    return ExplainedChoice.model_validate(
        {
            "index": choice.index,
            "finish_reason": choice.finish_reason,
            "token_count": choice.token_count,
            "fate": fate,
            "reason": reason,
            "reward": reward,
            "reward_of": reward_of if reward is not None else "",
            "trained_tokens": choice.trained_tokens,
            "trained_step": choice.trained_step,
        }
    )


def _next(row: RolloutRow, selection: Selection) -> str:
    """What has to happen before the rollout is trained."""
    if row.purpose is Purpose.EVALUATE or row.status is RolloutStatus.EVALUATED:
        return ""
    if row.status not in (RolloutStatus.RUNNING, RolloutStatus.FINISHED) or not selection.picks:
        return ""
    steps = ["the agent's end"] if row.status is RolloutStatus.RUNNING else []
    steps += ["a reward"] if row.reward is None else []
    return ", then ".join([*steps, "a train call that holds it"])


def _add_tokens(item: ExplainedCall, arrays: dict[str, np.ndarray[Any, Any]], tokenizer: Tokenizer) -> None:
    fresh = arrays["prompt_token_ids"][item.reused_tokens :]
    item.prompt_tail = tokenizer.decode([int(token) for token in fresh], skip_special=False)
    for choice in item.choices:
        token_ids = arrays[f"c{choice.index}.token_ids"]
        logprobs = arrays[f"c{choice.index}.logprobs"]
        trainable = arrays.get(f"c{choice.index}.trainable", np.ones(len(token_ids), dtype=np.bool_))
        reader = codecs.getincrementaldecoder("utf-8")("replace")  # a character may take several tokens
        choice.tokens = [
            ExplainedToken(
                text=reader.decode(tokenizer.token_bytes(int(token))),
                token_id=int(token),
                logprob=round(float(logprob), 6) if np.isfinite(logprob) else -9999.0,
                trainable=bool(may),
            )
            for token, logprob, may in zip(token_ids, logprobs, trainable, strict=True)
        ]
