"""What is never trained, whoever hands it over: evaluation, and what a failure of ART or of the machine ended."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from art.config.train import TrainConfig
from art.server.batch import Batch
from art.server.recovery import INTERRUPTED
from art.store.records import CallText, JobSpec, RolloutRow
from art.store.store import Store
from art.types.policy import Fate, Purpose, RolloutStatus
from art.types.tokens import CallRecord, ChoiceRecord
from art.types.wire import GroupIn


async def add(store: Store, rollout_id: str, row: dict[str, Any], fate: Fate = Fate.PENDING) -> None:
    await store.open_rollout(RolloutRow(rollout_id=rollout_id, project="p", model="m", step=0, **row))
    choice = ChoiceRecord(index=0, finish_reason="stop", token_count=1, fate=fate)
    call = CallRecord(call_id=f"call-{rollout_id}", rollout_id=rollout_id, version="p/m@0", choices=[choice])
    arrays = {
        "prompt_token_ids": np.asarray([1], dtype=np.int32),
        "c0.token_ids": np.asarray([2], dtype=np.int32),
        "c0.logprobs": np.asarray([-1], dtype=np.float32),
    }
    await store.add_call(call, arrays=arrays, text=CallText(completions=[{"role": "assistant"}]))


def whole(rollout_id: str) -> dict[str, Any]:
    return {"rollout_id": rollout_id, "selects_rollout": True, "reward": 0.0}


def by_choice(*rollout_ids: str) -> dict[str, Any]:
    choices = [
        {"index": 0, "finish_reason": "stop", "message": {}, "art": {"call_id": f"call-{name}", "choice": 0}}
        for name in rollout_ids
    ]
    return {"messages_and_choices": choices, "reward": 0.0}


async def handed_over(store: Store, *trajectories: dict[str, Any]) -> tuple[Batch, JobSpec]:
    batch = Batch(store, "p", "m", TrainConfig())
    await batch.add(0, GroupIn.model_validate({"trajectories": trajectories}))
    return batch, await batch.finish()


def run(main: Any, root: Path) -> None:
    async def bounded() -> None:
        store = await Store.open(root)
        try:
            async with asyncio.timeout(60):
                await main(store)
        finally:
            await store.close()

    asyncio.run(bounded())


@pytest.mark.parametrize("select", [whole, by_choice])
@pytest.mark.parametrize(
    ("row", "fate", "status", "rewarded"),
    [
        ({"purpose": Purpose.EVALUATE}, Fate.EVALUATION, RolloutStatus.EVALUATED, True),
        ({"status": RolloutStatus.EVALUATED}, Fate.PENDING, RolloutStatus.EVALUATED, True),
        ({"status": RolloutStatus.FINISHED}, Fate.EVALUATION, RolloutStatus.EVALUATED, True),
        (
            {"status": RolloutStatus.INFRA_ERROR, "reason": "the engine died"},
            Fate.PENDING,
            RolloutStatus.INFRA_ERROR,
            False,
        ),
    ],
    ids=["purpose", "status", "fate", "infra"],
)
def test_it_is_left_out_with_its_reason(
    tmp_path: Path, select: Any, row: dict[str, Any], fate: Fate, status: RolloutStatus, rewarded: bool
) -> None:
    async def main(store: Store) -> None:
        await add(store, "r", row, fate)
        await add(store, "good", {"status": RolloutStatus.FINISHED})
        batch, spec = await handed_over(store, select("r"), whole("good"))
        assert [item.rollout_id for group in spec.groups for item in group.trajectories] == ["good"]
        left = spec.trajectories[0]
        assert left.outcome is not None
        assert left.outcome.status is status
        assert (
            "evaluation" if status is RolloutStatus.EVALUATED else "the engine died"
        ) in left.outcome.reason
        assert left.rollout_ids == ["r"], "its status is settled with the batch"
        assert ("r" in [change.rollout_id for change in batch.rewards]) is rewarded
        pending = (await store.calls_of("r"))[0].choices[0].fate is Fate.PENDING
        assert [item.call_id for item in spec.fates] == (["call-r"] if pending else [])

    run(main, tmp_path)


def test_choices_of_several_rollouts_are_told_apart(tmp_path: Path) -> None:
    async def main(store: Store) -> None:
        await add(store, "good", {"status": RolloutStatus.FINISHED})
        await add(store, "bad", {"status": RolloutStatus.INFRA_ERROR})
        batch, spec = await handed_over(store, {**by_choice("good", "bad"), "rollout_id": "bad"})
        (trajectory,) = spec.groups[0].trajectories
        assert [choice.call_id for choice in trajectory.choices] == ["call-good"]
        assert spec.trajectories[0].rollout_ids == ["good"]
        assert [change.rollout_id for change in batch.rewards] == ["good"]
        assert [(item.call_id, item.fate) for item in spec.fates] == [("call-bad", Fate.FILTERED)]

    run(main, tmp_path)


@pytest.mark.parametrize(
    ("status", "reason"),
    [(RolloutStatus.AGENT_ERROR, "it raised"), (RolloutStatus.INFRA_ERROR, INTERRUPTED)],
)
def test_what_the_program_may_judge_is_trained_and_noted(
    tmp_path: Path, status: RolloutStatus, reason: str
) -> None:
    """An agent that raised, and a rollout that was open when the server was stopped."""

    async def main(store: Store) -> None:
        await add(store, "r", {"status": status, "reason": reason})
        batch, spec = await handed_over(store, whole("r"))
        assert len(spec.groups[0].trajectories) == 1
        assert spec.notes == [
            f"1 of the rollouts ended as {status.value}; the reward that was handed over is trained"
        ]
        assert [change.rollout_id for change in batch.rewards] == ["r"]

    run(main, tmp_path)
