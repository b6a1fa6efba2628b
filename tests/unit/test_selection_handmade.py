"""Choices that lost their art field: found by text and log-probabilities, with a bounded number of reads."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np

from art.config.train import TrainConfig
from art.server.batch import Batch
from art.store.call_rows import Answered
from art.store.records import CallText, RolloutRow
from art.store.redaction import KeepEverything
from art.store.store import Store
from art.types.tokens import BlobRef, CallRecord, ChoiceRecord
from art.types.wire import GroupIn

CALLS = 20


class CountingStore(Store):
    """Counts what is read."""

    reads: dict[str, int]

    def _count(self, name: str) -> None:
        self.reads[name] = self.reads.get(name, 0) + 1

    async def text_of(self, call_id: str) -> CallText:
        self._count("texts")
        return await super().text_of(call_id)

    async def read_arrays(self, ref: BlobRef) -> dict[str, np.ndarray]:
        self._count("arrays")
        return await super().read_arrays(ref)

    async def recent_calls(self, project: str, model: str, limit: int) -> list[Answered]:
        self._count("calls")
        return await super().recent_calls(project, model, limit)


async def recorded(root: Path) -> CountingStore:
    """Half of the calls say the same, at log-probabilities of their own."""
    store = CountingStore(root, KeepEverything())
    store._start()
    store.reads = {}
    await store.open_rollout(RolloutRow(rollout_id="r", project="p", model="m", step=0))
    for number in range(CALLS):
        call = CallRecord(
            call_id=f"c{number}",
            rollout_id="r",
            number=number,
            version="p/m@0",
            choices=[ChoiceRecord(index=0, finish_reason="stop", token_count=2)],
        )
        arrays = {
            "prompt_token_ids": np.asarray([1], dtype=np.int32),
            "c0.token_ids": np.asarray([2, 3], dtype=np.int32),
            "c0.logprobs": np.asarray([-1.0, -0.1 * number], dtype=np.float32),
        }
        said = {"role": "assistant", "content": "yes" if number % 2 else f"answer {number}"}
        await store.add_call(call, arrays=arrays, text=CallText(completions=[said]))
    return store


def handmade(content: str, logprobs: list[float] | None = None, **more: Any) -> dict[str, Any]:
    choice: dict[str, Any] = {
        "index": 0,
        "finish_reason": "stop",
        "message": {"role": "assistant", "content": content},
    }
    if logprobs is not None:
        choice["logprobs"] = {"content": [{"logprob": value} for value in logprobs]}
    return {"messages_and_choices": [choice], "reward": 0.5, **more}


def test_looking_for_many_choices_reads_every_record_once(tmp_path: Path) -> None:
    async def main() -> None:
        store = await recorded(tmp_path)
        try:
            nobody = [handmade(f"nobody said {number}") for number in range(40)]
            same = [handmade("yes", [-1.0, -0.1 * number]) for number in range(1, CALLS, 2)]
            own = [handmade(f"answer {number}", rollout_id="r") for number in range(0, CALLS, 2)]
            batch = Batch(store, "p", "m", TrainConfig())
            await batch.add(0, GroupIn.model_validate({"trajectories": [*nobody, *same, *own]}))
            (group,) = batch.spec.groups
            found = [item.choices[0].call_id for item in group.trajectories]
            assert found == [f"c{n}" for n in (*range(1, CALLS, 2), *range(0, CALLS, 2))]
            assert store.reads == {"calls": 1, "arrays": CALLS // 2, "texts": CALLS}
        finally:
            await store.close()

    asyncio.run(main())
