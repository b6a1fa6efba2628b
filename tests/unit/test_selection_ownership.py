"""A request names rollouts and calls by ids that may be anyone's; only its own model's count."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from art.config.model import ModelConfig
from art.config.train import TrainConfig
from art.errors import InvalidInput
from art.server import history
from art.server.batch import Batch
from art.store.records import CallText, ModelRow, RolloutRow
from art.store.store import Store
from art.types.jobs import ResolvedBaseModel
from art.types.policy import Fate, RolloutStatus
from art.types.tokens import CallRecord, ChoiceRecord
from art.types.wire import GroupIn, LogRequest, TrajectoryIn

SAID = {"role": "assistant", "content": "a secret"}
CHOICE: dict[str, Any] = {"index": 0, "finish_reason": "stop", "message": SAID}


async def _add(store: Store, rollout_id: str, owner: str, number: int = 0) -> str:
    project, name = owner.split("/")
    await store.open_rollout(RolloutRow(rollout_id=rollout_id, project=project, model=name, step=0))
    call = CallRecord(
        call_id=f"call-{rollout_id}-{number}",
        rollout_id=rollout_id,
        number=number,
        version=f"{owner}@0",
        choices=[ChoiceRecord(index=0, finish_reason="stop", token_count=1)],
    )
    arrays = {
        "prompt_token_ids": np.asarray([1], dtype=np.int32),
        "c0.token_ids": np.asarray([2], dtype=np.int32),
        "c0.logprobs": np.asarray([-1], dtype=np.float32),
    }
    await store.add_call(call, arrays=arrays, text=CallText(completions=[SAID]))
    return call.call_id


def foreign(**options: Any) -> list[dict[str, Any]]:
    """Trajectories that name the rollout "theirs" in every way there is."""
    mark = {"call_id": "call-theirs-0", "choice": 0}
    return [
        {"messages_and_choices": [CHOICE], "rollout_id": "theirs", "reward": 1.0},
        {"messages_and_choices": [{**CHOICE, "art": mark}], "reward": 1.0},
        {"messages_and_choices": [{**CHOICE, "art": mark}], "rollout_id": "theirs", "reward": 1.0},
        {"rollout_id": "theirs", "selects_rollout": True, "reward": 1.0},
        {"messages_and_choices": [], "rollout_id": "theirs", "reward": 1.0},
    ]


@pytest.mark.parametrize("owner", ["q/m", "p/other"])
@pytest.mark.parametrize("calls", [1, 2])
def test_a_foreign_rollout_is_never_trained_and_another_projects_as_one_that_does_not_exist(
    tmp_path: Path, owner: str, calls: int
) -> None:
    async def main() -> None:
        store = await Store.open(tmp_path)
        try:
            for number in range(calls):
                await _add(store, "theirs", owner, number)
            for given in foreign():
                missing = json.loads(
                    json.dumps(given).replace("call-theirs-0", "none").replace("theirs", "none")
                )
                answers = []
                for trajectory in (given, missing):
                    batch = Batch(store, "p", "m", TrainConfig())
                    await batch.add(0, GroupIn(trajectories=[TrajectoryIn(**trajectory)]))
                    spec = await batch.finish()
                    assert batch.rewards == []
                    assert spec.groups == []
                    assert spec.fates == []
                    selected = spec.trajectories[0]
                    assert selected.rollout_ids == []
                    assert selected.outcome is not None
                    answers.append((selected.outcome.status, selected.outcome.reason))
                marked = any("art" in item for item in given.get("messages_and_choices", ()))
                if marked and owner.startswith("p/"):  # whoever may train this project may know its models
                    assert answers[0][0] == answers[1][0]
                    assert "belongs to a rollout of p/other" in answers[0][1]
                else:
                    assert answers[0] == answers[1]
        finally:
            await store.close()

    asyncio.run(main())


def test_a_log_of_a_foreign_rollout_changes_nothing_of_it(tmp_path: Path) -> None:
    async def main() -> None:
        store = await Store.open(tmp_path / "store")
        try:
            await _add(store, "theirs", "q/m")
            await _add(store, "ours", "p/m")
            row = await store.put_model(_model(tmp_path))
            ours = {"rollout_id": "ours", "reward": 1.0}
            request = LogRequest.model_validate(
                {"step": 0, "recorded_at": "now", "groups": [{"trajectories": [*foreign(), ours]}]}
            )
            await history.record(store, row, request)
            assert (await store.get_rollout("theirs")).status is RolloutStatus.RUNNING
            assert (await store.calls_of("theirs"))[0].choices[0].fate is Fate.PENDING
            assert (await store.get_rollout("ours")).status is RolloutStatus.EVALUATED
        finally:
            await store.close()

    asyncio.run(main())


def _model(folder: Path) -> ModelRow:
    base = ResolvedBaseModel(
        name="base", path=str(folder), sha256="0", parameters=1, context_length=8, source="folder"
    )
    config = ModelConfig(base_model="base")
    return ModelRow(project="p", name="m", config=config, base=base, model_dir=str(folder))


@pytest.mark.parametrize(
    "broken",
    [
        {"logprobs": []},
        {"logprobs": {"content": [{"logprob": "abc"}]}},
        {"logprobs": {"content": [{"logprob": None}]}},
        {"message": {**SAID, "tool_calls": 5}},
        {"message": {**SAID, "tool_calls": [1]}},
        {"message": {**SAID, "tool_calls": [{"function": "x"}]}},
        {"art": {"call_id": "call-ours-0", "choice": True}},
        {"art": {"call_id": "call-ours-0", "choice": 0.0}},
        {"art": {"call_id": 5}},
        {"art": "call-ours-0"},
    ],
    ids=str,
)
def test_a_choice_that_is_none_is_refused(tmp_path: Path, broken: dict[str, Any]) -> None:
    async def main() -> None:
        store = await Store.open(tmp_path)
        try:
            await _add(store, "ours", "p/m")
            trajectory = TrajectoryIn(messages_and_choices=[{**CHOICE, **broken}], reward=1.0)
            with pytest.raises(InvalidInput, match="a choice in messages_and_choices"):
                await Batch(store, "p", "m", TrainConfig()).add(0, GroupIn(trajectories=[trajectory]))
        finally:
            await store.close()

    asyncio.run(main())


def test_a_choice_without_its_mark_is_found_in_its_own_rollout(tmp_path: Path) -> None:
    async def main() -> None:
        store = await Store.open(tmp_path)
        try:
            call_id = await _add(store, "ours", "p/m")
            await _add(store, "theirs", "q/m")
            batch = Batch(store, "p", "m", TrainConfig())
            given = {**CHOICE, "logprobs": {"content": [{"logprob": -1}]}}
            trajectory = TrajectoryIn(messages_and_choices=[given], rollout_id="theirs", reward=1.0)
            await batch.add(0, GroupIn(trajectories=[trajectory]))
            assert [change.rollout_id for change in batch.rewards] == ["ours"]
            assert batch.spec.groups[0].trajectories[0].choices[0].call_id == call_id
        finally:
            await store.close()

    asyncio.run(main())
