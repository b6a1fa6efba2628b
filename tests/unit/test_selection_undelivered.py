"""A rollout selects what reached its agent, and not what was cut off on the way."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np

from art.server.selection import Selector
from art.store.records import CallText, RolloutRow
from art.store.store import Store
from art.types.tokens import CallRecord, ChoiceRecord
from art.types.wire import TrajectoryIn


async def _add(store: Store, call_id: str, finish: str, *, parent: str | None = None, number: int) -> None:
    choice = ChoiceRecord(index=0, finish_reason=finish, token_count=2)
    call = CallRecord(
        call_id=call_id,
        rollout_id="r",
        parent_call_id=parent,
        number=number,
        version="p/m@0",
        choices=[choice],
    )
    arrays = {
        "prompt_token_ids": np.asarray([1, 2], dtype=np.int32),
        "c0.token_ids": np.asarray([3, 4], dtype=np.int32),
        "c0.logprobs": np.asarray([-1, -1], dtype=np.float32),
    }
    await store.add_call(call, arrays=arrays, text=CallText())


def test_calls_that_failed_or_were_left_are_not_selected_unless_they_were_continued(tmp_path: Path) -> None:
    async def main() -> list[tuple[str, int]]:
        store = await Store.open(tmp_path)
        try:
            await store.open_rollout(RolloutRow(rollout_id="r", project="p", model="m", step=0))
            await _add(store, "failed", "error", number=0)
            await _add(store, "left", "cancelled", number=1)
            await _add(store, "whole", "stop", number=2)
            await _add(store, "used", "cancelled", parent="whole", number=3)
            await _add(store, "after", "length", parent="used", number=4)
            whole = TrajectoryIn(reward=1.0, rollout_id="r", selects_rollout=True)
            return (await Selector(store, "p", "m").select(whole)).picks
        finally:
            await store.close()

    assert asyncio.run(main()) == [("whole", 0), ("used", 0), ("after", 0)]
