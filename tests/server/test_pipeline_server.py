"""PipelineTrainer on a real server: the tiny model is sampled, trained and evaluated side by side."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from train_kit import Trained

import art
from art.pipeline_trainer import PipelineTrainer, keep_recent_and_top, make_group_rollout_fn
from art.types.metrics import POSITION, info

NAME = "pipe"
SECONDS = 120.0
runs: Counter[int] = Counter()
"""Of each scenario."""


@pytest.fixture
def backend(taught: Trained) -> art.RemoteBackend:
    return art.RemoteBackend(taught.server.url, taught.server.admin_key)


async def rollout(model: art.TrainableModel[Any, Any], scenario: int, config: Any) -> art.Trajectory:
    messages: art.Messages = [{"role": "user", "content": f"is {scenario} a number?"}]
    completion = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=messages, max_tokens=8
    )
    runs[scenario] += 1
    return art.Trajectory(
        messages_and_choices=[*messages, completion.choices[0]],
        reward=float(runs[scenario] % 2),  # different within each group: each batch carries a signal
        metadata={"scenario": scenario},
    )


async def evaluation(model: art.TrainableModel[Any, Any], step: int, config: Any) -> list[art.Trajectory]:
    return [await rollout(model, -1, config)]


def pipeline(
    backend: art.RemoteBackend, taught: Trained, folder: Path, **options: Any
) -> tuple[art.TrainableModel[Any, Any], PipelineTrainer]:
    model: art.TrainableModel[Any, Any] = art.TrainableModel(
        name=NAME, project="p", base_model=taught.base_model, base_path=str(folder)
    )
    small = {"num_rollout_workers": 2, "min_batch_size": 2, "max_batch_size": 2, "max_steps_off_policy": 2}
    trainer = PipelineTrainer(
        *(model, backend, make_group_rollout_fn(rollout, n=4), itertools.count(), None, evaluation),
        **{**small, "eval_every_n_steps": 1, "learning_rate": 1e-4, **options},
    )
    return model, trainer


def test_it_trains_evaluates_and_goes_on(taught: Trained, backend: art.RemoteBackend, tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(SECONDS):
            keep = keep_recent_and_top(recent=2, top=0)
            model, first = pipeline(
                backend, taught, tmp_path, max_steps=2, checkpoint_retention_strategy=keep
            )
            await first.train(handle_signals=False)
            assert await model.get_step() == 2
            # As a program that starts anew: only the files and the server remember.
            model, second = pipeline(backend, taught, tmp_path, max_steps=1)
            await second.train(handle_signals=False)
            assert await model.get_step() == 3
            await backend.close()

    asyncio.run(main())
    rows = taught.api("GET", f"models/p/{NAME}/history")["rows"]
    train = [row for row in rows if "train/steps_off_policy" in row]
    assert [row["step"] for row in train] == [1, 2, 3]
    assert all(0 <= row["train/steps_off_policy"] <= 2 for row in train)
    assert all("loss/train" in row and row["checkpoint/saved"] == 1.0 for row in train)
    names = {name for row in rows for name in row} - set(POSITION)
    assert not sorted(name for name in names if info(name) is None), "every name that is logged has a meaning"
    measured = {
        "data/cum/actor_tokens",
        "time/step_actor_s",
        "time/cum/wall_s",
        "throughput/step_trainer_tok_per_s",
    }
    measured |= {"throughput/avg_actor_tok_per_s", "throughput/step_actor_idle_share", "offpolicy/mean_steps"}
    assert measured | {"time/wall_clock_sec", "throughput/cum/trainer_idle_s"} <= names
    for total, own in (
        ("data/cum/actor_tokens", "data/step_actor_tokens"),
        ("time/cum/wall_s", "time/step_wall_s"),
    ):
        sums = list(accumulate(row[own] for row in train))
        assert [row[total] for row in train] == pytest.approx(sums), "also over the programs"
    evaluated = [row["step"] for row in rows if "val/reward" in row]
    assert evaluated == [0, 1, 2, 2, 3]
    logged = taught.query(
        "SELECT rollout_id, body FROM logged_trajectories WHERE project = 'p' AND name = ? AND split = 'train'",
        NAME,
    )
    assert len(logged) == 3 * 2 * 4
    statuses = {taught.rollout(rollout_id)["status"] for rollout_id, _ in logged}
    assert statuses == {"trained"}
    steps = [item["step"] for item in taught.api("GET", f"models/p/{NAME}/checkpoints")["checkpoints"]]
    assert {2, 3} <= set(steps)


def test_the_server_knows_what_was_discarded(
    taught: Trained, backend: art.RemoteBackend, tmp_path: Path
) -> None:
    async def main() -> art.TrajectoryGroup:
        async with asyncio.timeout(SECONDS):
            model, _ = pipeline(backend, taught, tmp_path)
            await model.register(backend)
            group = await make_group_rollout_fn(rollout, n=2)(model, 7, None)
            await model.log([group], split="discarded")
            await backend.close()
            return group

    for trajectory in asyncio.run(main()):
        assert trajectory.rollout_id is not None
        told = taught.rollout(trajectory.rollout_id)
        assert told["status"] == "stale"
        assert {choice["fate"] for call in told["calls"] for choice in call["choices"]} == {"stale"}
        assert "too many steps ago" in told["reason"]
