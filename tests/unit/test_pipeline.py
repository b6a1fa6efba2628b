"""PipelineTrainer: what runs side by side, what ends a run, and from where the next one goes on."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import pytest
from pipeline_kit import MemoryBackend, Rollouts, group_of, new_model, settle, trainer

import art
from art.errors import ConfigError, Conflict, InvalidInput, TrainingFailed, UnsupportedOption
from art.pipeline_trainer import PipelineTrainer, make_group_rollout_fn

SECONDS = 30.0
"""A test that waits longer hangs."""


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(SECONDS):
            await coroutine

    asyncio.run(bounded())


def started(pipeline: PipelineTrainer) -> asyncio.Task[None]:
    return asyncio.create_task(pipeline.train(handle_signals=False))


def go(pipeline: PipelineTrainer) -> None:
    run(pipeline.train(handle_signals=False))


# -- side by side


def test_rollouts_go_on_while_a_step_trains(tmp_path: Path) -> None:
    async def main() -> None:
        backend, rollouts = MemoryBackend(hold=True), Rollouts()
        running = started(
            trainer(tmp_path, backend, rollouts, itertools.count(), max_steps_off_policy=1, max_steps=2)
        )
        await settle()
        assert backend.held.open.keys() == {1}
        assert len(rollouts.started) == 4  # the batch in hand, and the one that is allowed ahead of it
        backend.held.release(1)
        await settle()
        second = [trajectory for group in backend.calls[1].groups for trajectory in group]
        assert {trajectory.initial_policy_version for trajectory in second} == {0}
        backend.held.release(2)
        await running
        assert [row["train/steps_off_policy"] for row in backend.rows("train")] == [0.0, 1.0]

    run(main())


def test_groups_too_old_are_discarded_counted_and_logged(tmp_path: Path) -> None:
    async def main() -> None:
        backend, rollouts = MemoryBackend(), Rollouts(hold=True)
        running = started(
            trainer(tmp_path, backend, rollouts, range(11), max_steps_off_policy=1, num_rollout_workers=3)
        )
        await settle()
        slow = 0
        while not running.done():
            overtaken = len(backend.calls) == 3 and slow in rollouts.held.open
            others = [number for number in rollouts.held.open if number != slow]
            rollouts.held.release(slow if overtaken else min(others))
            await settle()
        await running
        assert slow not in backend.trained()
        (row,) = backend.rows("discarded")
        assert row["discarded/groups"] == 1.0
        assert row["discarded/steps_off_policy"] >= 2.0
        assert sum(row["train/discarded_stale_groups"] for row in backend.rows("train")) == 1.0
        assert sorted(backend.trained()) == list(range(1, 11))

    run(main())


def test_options_reach_the_train_call_and_metrics_the_log(tmp_path: Path) -> None:
    backend = MemoryBackend()
    go(trainer(tmp_path, backend, Rollouts(), range(4), learning_rate=1e-3, epsilon=0.1))
    assert [call.options for call in backend.calls] == [{"learning_rate": 1e-3, "epsilon": 0.1}] * 2
    first, second = backend.rows("train")
    expected = {
        *("loss/train", "train/reward", "train/steps_off_policy", "train/discarded_stale_groups"),
        *("pipeline/running_groups", "pipeline/waiting_groups", "pipeline/failed_groups"),
        *("throughput/step_trainer_idle_s", "throughput/step_actor_idle_s", "time/step_wall_s"),
        *("checkpoint/saved", "checkpoint/created_at_unix", "train/exception_rate", "train/reward_std_dev"),
    }
    assert expected <= set(first)
    assert [request.step for request in backend.logged if request.split == "train"] == [1, 2]
    assert second["train/exception_rate"] == 0.0


def test_a_batch_that_publishes_nothing_counts_as_a_step_of_the_run(tmp_path: Path) -> None:
    backend = MemoryBackend()
    backend.publishes = lambda batch: batch > 2
    go(trainer(tmp_path, backend, Rollouts(), itertools.count(), max_steps=3))
    assert (backend.batch, backend.step) == (3, 1)
    assert [row["checkpoint/saved"] for row in backend.rows("train")] == [0.0, 0.0, 1.0]


def test_the_rest_of_the_scenarios_is_trained_too(tmp_path: Path) -> None:
    async def three() -> AsyncIterator[int]:
        for number in range(3):
            await asyncio.sleep(0)
            yield number

    backend = MemoryBackend()
    go(trainer(tmp_path, backend, Rollouts(), three()))
    assert sorted(backend.trained()) == [0, 1, 2]
    assert [len(call.groups) for call in backend.calls] == [2, 1]


# -- failures


def test_groups_that_fail_do_not_end_the_run(tmp_path: Path) -> None:
    async def flaky(model: Any, scenario: int, config: Any) -> art.TrajectoryGroup:
        if scenario % 2:
            raise ValueError("the agent failed")
        return group_of(scenario)

    backend = MemoryBackend()
    go(trainer(tmp_path, backend, flaky, range(8)))
    assert sorted(backend.trained()) == [0, 2, 4, 6]
    rows = backend.rows("train")
    assert sum(row["pipeline/failed_groups"] for row in rows) in (
        3.0,
        4.0,
    )  # the last may end after the last step
    assert rows[0]["train/exception_rate"] > 0
    again = Rollouts()
    go(trainer(tmp_path, backend, again, range(8)))
    assert not again.started, "those that failed are done too"


def test_groups_that_always_fail_end_it_with_the_cause(tmp_path: Path) -> None:
    async def broken(model: Any, scenario: int, config: Any) -> art.TrajectoryGroup:
        raise ValueError("no such tool")

    pipeline = trainer(tmp_path, MemoryBackend(), broken, itertools.count(), discard_queue_multiplier=3)
    with pytest.raises(TrainingFailed, match="none of the last 6 groups could be trained") as caught:
        go(pipeline)
    assert "no such tool" in caught.value.cause


def test_a_group_keeps_the_exceptions_of_its_rollouts() -> None:
    numbers = itertools.count()

    async def one(model: Any, scenario: str, config: Any) -> art.Trajectory:
        if next(numbers) == 1:
            raise ValueError("second")
        return art.Trajectory(reward=1.0, metadata={"told": f"{scenario} {config}"})

    async def main() -> None:
        group = await make_group_rollout_fn(one, n=3)(None, "scenario", "config")
        assert [trajectory.metadata["told"] for trajectory in group] == ["scenario config"] * 2
        assert [error.message for error in group.exceptions] == ["second"]

    run(main())
    with pytest.raises(InvalidInput, match="n is 0"):
        make_group_rollout_fn(one, n=0)


def test_what_is_no_group_ends_the_run_at_once(tmp_path: Path) -> None:
    async def single(model: Any, scenario: int, config: Any) -> art.Trajectory:
        return art.Trajectory(reward=1.0)

    with pytest.raises(InvalidInput, match="came out as Trajectory") as caught:
        go(trainer(tmp_path, MemoryBackend(), single, range(4)))
    assert "make_group_rollout_fn" in caught.value.hint


@pytest.mark.parametrize("where", ["step", "evaluation", "scenarios", "rollout", "status"])
def test_a_failure_reaches_the_caller_and_leaves_nothing_running(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure: BaseException = OSError(f"{where} failed")

    def scenarios() -> Any:
        yield from range(3)
        if where == "scenarios":
            raise failure
        yield from range(3, 9)

    async def evaluation(model: Any, step: int, config: Any) -> None:
        if where == "evaluation":
            raise failure

    async def main() -> None:
        nonlocal failure
        backend, rollouts = MemoryBackend(hold=True), Rollouts(hold=True)
        options = {"num_rollout_workers": 4, "max_steps_off_policy": 2}
        pipeline = trainer(tmp_path, backend, rollouts, scenarios(), evaluation, **options)
        if where == "status":

            async def fails(_: object) -> None:
                raise failure

            monkeypatch.setattr(pipeline._reporter, "run", fails)
        running = started(pipeline)
        await settle()
        if where == "step":
            rollouts.held.release(0)
            rollouts.held.release(1)
            await settle()
            backend.held.fail(1, failure)
        if where == "rollout":
            failure = asyncio.CancelledError()  # the agent's own: it is never taken for a failed group
            rollouts.held.fail(1, failure)
        with pytest.raises(type(failure)) as caught:
            await running
        assert caught.value is failure or where == "rollout"
        assert not rollouts.running
        assert not rollouts.held.open
        assert len(asyncio.all_tasks()) == 1

    run(main())


def test_cancelling_it_cancels_all_that_runs(tmp_path: Path) -> None:
    async def main() -> None:
        backend, rollouts = MemoryBackend(hold=True), Rollouts(hold=True)
        running = started(trainer(tmp_path, backend, rollouts, range(9), num_rollout_workers=3))
        await settle()
        rollouts.held.release(0)
        rollouts.held.release(1)
        await settle()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert backend.held.cancelled == [1]
        assert 2 in rollouts.held.cancelled
        assert len(asyncio.all_tasks()) == 1

    run(main())


# -- stopping and resuming


def test_a_stop_finishes_the_step_in_hand_and_the_next_run_loses_no_scenario(tmp_path: Path) -> None:
    backend = MemoryBackend(hold=True)

    async def main() -> None:
        rollouts = Rollouts()
        pipeline = trainer(tmp_path, backend, rollouts, range(9), max_steps_off_policy=2)
        running = started(pipeline)
        await settle()
        pipeline.request_stop()
        await settle()
        assert not running.done()
        backend.held.release(1)
        await running
        assert len(backend.calls) == 1
        assert len(rollouts.started) > 2  # some were in flight, and are given out again

    run(main())
    backend.hold = False
    again = Rollouts()
    go(trainer(tmp_path, backend, again, range(9)))
    assert sorted(backend.trained()) == list(range(9))
    assert sorted(again.started) == sorted(set(range(9)) - set(backend.trained()[:2]))


def test_the_same_trainer_goes_on_where_it_stopped(tmp_path: Path) -> None:
    backend = MemoryBackend()
    pipeline = trainer(tmp_path, backend, Rollouts(), iter(range(9)), max_steps=1)
    for _ in range(9):
        go(pipeline)
    assert sorted(backend.trained()) == list(range(9))


def test_a_stop_before_the_run_starts_nothing(tmp_path: Path) -> None:
    backend, rollouts = MemoryBackend(), Rollouts()
    pipeline = trainer(tmp_path, backend, rollouts, range(4))
    pipeline.request_stop()
    go(pipeline)
    assert not rollouts.started
    go(pipeline)
    assert sorted(backend.trained()) == [0, 1, 2, 3]


@pytest.mark.parametrize("counted", [False, True])
def test_a_program_killed_during_a_step_trains_it_once_more_only_if_it_was_not_counted(
    tmp_path: Path, counted: bool
) -> None:
    backend = MemoryBackend(hold=True)

    async def killed() -> None:
        running = started(trainer(tmp_path, backend, Rollouts(), range(6)))
        await settle()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    run(killed())
    backend.calls.clear()
    backend.hold = False
    backend.batch = backend.step = int(counted)
    go(trainer(tmp_path, backend, Rollouts(), range(6)))
    assert sorted(backend.trained()) == list(range(2 if counted else 0, 6))


def test_resume_false_starts_over_and_a_damaged_position_is_refused(tmp_path: Path) -> None:
    backend = MemoryBackend()
    go(trainer(tmp_path, backend, Rollouts(), range(4)))
    model = new_model(tmp_path)
    model.merge_state({"mine": 1})
    go(trainer(tmp_path, backend, Rollouts(), range(4)))
    assert len(backend.trained()) == 4
    go(trainer(tmp_path, backend, Rollouts(), range(4), resume=False))
    assert len(backend.trained()) == 8
    state = model.read_state()
    assert state is not None
    assert state["mine"] == 1
    model.overwrite_state({"_pipeline": {"next": "far"}})
    with pytest.raises(InvalidInput, match="position of the pipeline cannot be read"):
        go(trainer(tmp_path, backend, Rollouts(), range(4)))


def test_scenarios_that_were_cut_off_are_not_taken_for_used_up(tmp_path: Path) -> None:
    async def slow() -> AsyncIterator[int]:
        yield 0
        await asyncio.get_running_loop().create_future()
        yield 1

    async def main() -> None:
        pipeline = trainer(tmp_path, MemoryBackend(), Rollouts(), slow())
        running = started(pipeline)
        await settle()
        pipeline.request_stop()
        await running
        with pytest.raises(InvalidInput, match="interrupted"):
            await pipeline.train(handle_signals=False)

    run(main())


def test_the_first_ctrl_c_stops_after_the_step_and_the_second_is_as_without_it(tmp_path: Path) -> None:
    async def main() -> None:
        backend = MemoryBackend(hold=True)
        before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
        pipeline = trainer(tmp_path, backend, Rollouts(), itertools.count())
        running = asyncio.create_task(pipeline.train())
        await settle()
        assert signal.getsignal(signal.SIGINT) != before[0]
        os.kill(os.getpid(), signal.SIGINT)
        await settle()
        assert signal.getsignal(signal.SIGINT) == before[0]
        assert not running.done()
        backend.held.release(1)
        await running
        assert len(backend.calls) == 1
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before

    run(main())


def test_one_trainer_trains_once_at_a_time(tmp_path: Path) -> None:
    async def main() -> None:
        pipeline = trainer(tmp_path, MemoryBackend(), Rollouts(hold=True), range(4))
        running = started(pipeline)
        await settle()
        with pytest.raises(Conflict, match="training already"):
            await pipeline.train()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    run(main())


# -- evaluation


def test_it_evaluates_at_the_start_and_at_intervals_while_rollouts_go_on(tmp_path: Path) -> None:
    async def main() -> None:
        backend, rollouts = MemoryBackend(), Rollouts()
        asked: list[int] = []
        gate = asyncio.Event()

        async def evaluation(model: Any, step: int, config: Any) -> dict[str, list[art.Trajectory]]:
            asked.append(step)
            await gate.wait()
            return {"val": [art.Trajectory(reward=step)], "test": [art.Trajectory(reward=-step)]}

        pipeline = trainer(
            tmp_path, backend, rollouts, itertools.count(), evaluation, eval_every_n_steps=2, max_steps=4
        )
        running = started(pipeline)
        await settle()
        assert asked == [0]
        assert rollouts.started
        assert not backend.calls  # the first step waits
        gate.set()
        await running
        assert asked == [0, 2, 4]
        assert [row["val/reward"] for row in backend.rows("val")] == [0.0, 2.0, 4.0]
        assert [request.step for request in backend.logged if request.split == "test"] == [0, 2, 4]
        assert all(row["checkpoint/eval_completed"] == 1.0 for row in backend.rows("val"))

    run(main())


def test_evaluation_can_be_left_out(tmp_path: Path) -> None:
    async def never(model: Any, step: int, config: Any) -> None:
        raise AssertionError("not asked for")

    options = {"eval_at_start": False, "eval_every_n_steps": 0}
    go(trainer(tmp_path, MemoryBackend(), Rollouts(), range(4), never, **options))


# -- what is refused


@pytest.mark.parametrize(
    "option",
    [
        {"num_rollout_workers": 0},
        {"min_batch_size": 0},
        {"min_batch_size": 3, "max_batch_size": 2},
        {"max_steps_off_policy": -1},
        {"queue_maxsize": 0},
        {"max_steps": 0},
        {"discard_queue_multiplier": 0},
        {"eval_every_n_steps": -1},
        {"checkpoint_retention_interval": 0},
        {"log_interval_seconds": -1},
        {"status_ewa_alpha": 0},
    ],
)
def test_impossible_numbers_are_refused_by_name(tmp_path: Path, option: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=list(option)[-1]):
        trainer(tmp_path, MemoryBackend(), Rollouts(), range(4), **option)


def test_train_options_are_looked_at_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="lerning_rate"):
        trainer(tmp_path, MemoryBackend(), Rollouts(), range(4), lerning_rate=1e-3)
    with pytest.raises(UnsupportedOption, match="plot_tensors"):
        trainer(tmp_path, MemoryBackend(), Rollouts(), range(4), plot_tensors=True)
    with pytest.raises(InvalidInput, match="a str as its scenarios"):
        go(trainer(tmp_path, MemoryBackend(), Rollouts(), "scenarios"))
