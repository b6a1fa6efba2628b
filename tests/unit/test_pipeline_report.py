"""What a pipeline keeps of its checkpoints, and what it says."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest
from pipeline_kit import MemoryBackend, Rollouts, trainer

import art
from art.errors import InvalidInput
from art.pipeline_trainer import (
    CheckpointInfo,
    CheckpointRetentionContext,
    StatusReporter,
    keep_recent_and_top,
)
from art.rollouts.pipeline_retention import means_by_step
from art.rollouts.pipeline_status import PipelineStatus


def context(*rewards: float | None) -> CheckpointRetentionContext:
    infos = [
        CheckpointInfo(step=step, created_at=0.0, metrics={} if reward is None else {"val/reward": reward})
        for step, reward in enumerate(rewards)
    ]
    return CheckpointRetentionContext(checkpoints=infos, current_step=len(rewards) - 1)


def test_recent_and_top() -> None:
    seen = context(0.1, 0.9, None, 0.9, 0.5, 0.2, None)
    assert set(keep_recent_and_top(recent=2, top=1)(seen)) == {3, 5, 6}
    assert set(keep_recent_and_top(recent=0, top=2)(seen)) == {1, 3}
    assert set(keep_recent_and_top(recent=99, top=0)(seen)) == set(range(7))
    assert set(keep_recent_and_top(recent=1, top=2, metric="test/reward")(seen)) == {6}
    with pytest.raises(InvalidInput, match="top is -1"):
        keep_recent_and_top(top=-1)


def test_means_by_step() -> None:
    rows = [
        {"step": 1, "training_step": 1, "val/reward": 0.2, "recorded_at": "now"},
        {"step": 1, "val/reward": 0.4},
        {"val/reward": 9.0},
    ]
    assert means_by_step(rows) == {1: {"val/reward": pytest.approx(0.3)}}


def test_checkpoints_are_deleted_at_intervals_unless_they_are_used(tmp_path: Path) -> None:
    async def evaluation(model: Any, step: int, config: Any) -> list[art.Trajectory]:
        return [art.Trajectory(reward=1.0 if step == 2 else 0.0)]

    backend = MemoryBackend()
    backend.in_use = {3}
    pipeline = trainer(
        *(tmp_path, backend, Rollouts(), itertools.count(), evaluation),
        max_steps=6,
        eval_every_n_steps=1,
        checkpoint_retention_strategy=keep_recent_and_top(recent=1, top=1),
        checkpoint_retention_interval=2,
    )
    asyncio.run(pipeline.train(handle_signals=False))
    # Asked at 2, 4 and 6: the latest, step 0 and the best by what was logged stay, and 3 is in use.
    assert sorted(backend.deleted) == [1, 4, 5]


def test_lines() -> None:
    said: list[str] = []
    reporter = StatusReporter("m", interval_seconds=0, total_scenarios=40, show=said.append)
    status = PipelineStatus(
        *(3, 4, 10),
        running=2,
        waiting=1,
        doing="training",
        scenarios=12,
        stale=1,
        failed=2,
    )
    reporter.stepped(status, reward=0.5, published=True, reason="")
    reporter.stepped(status, reward=1.0, published=False, reason="no signal")
    assert said[0].startswith("m: batch 4/10  step 3  reward 0.500  training, 2 running, 1 waiting")
    assert "scenarios 12/40  1 too old  2 failed" in said[0]
    assert "min left" in said[0]
    assert "reward 0.600" in said[1]
    assert said[1].endswith("(nothing published: no signal)")


def test_a_line_now_and_then_until_it_is_cancelled() -> None:
    async def main() -> None:
        told = asyncio.Event()
        reporter = StatusReporter("m", interval_seconds=0.001, show=lambda line: told.set())
        status = PipelineStatus(0, 0, None, 0, 0, "collecting", 0, 0, 0)
        task = asyncio.create_task(reporter.run(lambda: status))
        await asyncio.wait_for(told.wait(), 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_it_is_said_when_the_server_deletes_what_the_strategy_keeps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backend = MemoryBackend()

    def strategy(context: CheckpointRetentionContext) -> list[int]:
        if context.current_step == 3:
            backend.deleted.append(1)  # as the server does by its own rule
        return [1, 2, 3, 4]

    pipeline = trainer(
        *(tmp_path, backend, Rollouts(), itertools.count()),
        max_steps=4,
        checkpoint_retention_strategy=strategy,
    )
    asyncio.run(pipeline.train(handle_signals=False))
    said = capsys.readouterr().err
    assert said.count("has deleted what the retention strategy keeps (step 1)") == 1
