"""The bound of a pipeline, in whatever order its rollouts and steps end."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_kit import MemoryBackend, Rollouts, group_of, settle, trainer

from art.rollouts.pipeline_schedule import FinishedGroup, Schedule


def finished(position: int, version: int) -> FinishedGroup:
    return FinishedGroup(position, version, group_of(position))


def schedule(**options: Any) -> Schedule:
    return Schedule(**{"workers": 99, "batch": 2, "max_batch": 2, "max_steps_off_policy": 1, **options})


def run(one: Schedule, *versions: int) -> None:
    """Groups that start and end at once."""
    for position, version in enumerate(versions):
        one.start()
        one.end(finished(position, version))


def room(one: Schedule) -> int:
    """How many groups may start now; they do."""
    count = 0
    while one.has_room():
        one.start()
        count += 1
    return count


@pytest.mark.parametrize(("off_policy", "started"), [(0, 2), (1, 4), (4, 10)])
def test_so_many_start_before_the_first_step(off_policy: int, started: int) -> None:
    assert room(schedule(max_steps_off_policy=off_policy)) == started  # (off_policy + 1) * 2


def test_on_policy_nothing_is_sampled_while_a_step_trains() -> None:
    one = schedule(max_steps_off_policy=0)
    run(one, 0, 0)
    assert len(one.take(0, exhausted=False).batch) == 2
    assert not one.has_room()
    one.trained()
    assert room(one) == 2


def test_a_batch_waits_until_it_is_full_unless_nothing_more_comes() -> None:
    one = schedule()
    run(one, 0)
    one.start()
    assert one.take(0, exhausted=False).batch == []
    assert one.take(0, exhausted=True).batch == []  # one is still running
    one.end(None)
    assert len(one.take(0, exhausted=True).batch) == 1


def test_the_oldest_are_trained_first_and_those_too_old_never() -> None:
    one = schedule(max_steps_off_policy=2)
    run(one, 5, 2, 4, 3)
    taken = one.take(5, exhausted=False)
    assert [item.version for item in taken.stale] == [2]
    assert [item.version for item in taken.batch] == [3, 4]
    assert one.waiting == 1


def test_a_large_batch_does_not_stop_the_rollouts_after_it() -> None:
    one = schedule(max_batch=20, max_steps_off_policy=4)
    run(one, *[0] * 10)
    assert len(one.take(0, exhausted=False).batch) == 10
    assert room(one) == 8  # four steps of two are allowed ahead of the one in hand


def test_what_no_step_will_train_is_not_sampled() -> None:
    one = schedule(max_steps_off_policy=9, max_steps=3)
    assert room(one) == 6
    assert schedule(max_steps=1).bound == 2


def test_a_full_queue_keeps_the_workers_busy() -> None:
    one = schedule(workers=3, queue_maxsize=1, max_steps_off_policy=9)
    run(one, 0, 0)
    one.take(0, exhausted=False)
    run(one, 0, 0, 0)  # one waits, two are held by their workers
    assert room(one) == 1


@st.composite
def pipelines(draw: st.DrawFn) -> dict[str, Any]:
    batch = draw(st.integers(1, 3))
    return {
        "num_rollout_workers": draw(st.integers(1, 6)),
        "min_batch_size": batch,
        "max_batch_size": batch,
        "max_steps_off_policy": draw(st.integers(0, 3)),
        "queue_maxsize": draw(st.none() | st.integers(1, 3)),
        "max_steps": draw(st.none() | st.integers(1, 5)),
    }


@settings(max_examples=40, deadline=None)
@given(options=pipelines(), scenarios=st.integers(0, 14), data=st.data())
def test_the_bound_holds_whatever_ends_first(
    options: dict[str, Any], scenarios: int, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_random_run(Path(folder), options, scenarios, data))


async def _random_run(folder: Path, options: dict[str, Any], scenarios: int, data: st.DataObject) -> None:
    backend, rollouts = MemoryBackend(hold=True), Rollouts(hold=True)
    publishes: dict[int, bool] = {}
    backend.publishes = lambda batch: publishes.setdefault(batch, data.draw(st.booleans(), label="publishes"))
    pipeline = trainer(folder, backend, rollouts, range(scenarios), **options)
    batch, off_policy = options["min_batch_size"], options["max_steps_off_policy"]
    running = asyncio.create_task(pipeline.train(handle_signals=False))
    failed = stale = 0
    while True:
        await settle()
        run = pipeline._run
        logged = sum(int(row["discarded/groups"]) for row in backend.rows("discarded"))
        stale = max(logged, 0 if run is None else run.status().stale)
        step = sum(call.ended for call in backend.calls) + 1
        # accepted + running: everything that was started, but for what came to nothing.
        assert len(rollouts.started) - failed - stale <= (off_policy + step) * batch
        assert rollouts.most <= options["num_rollout_workers"]
        if running.done():
            break
        choices = [*sorted(rollouts.held.open), *(f"step {number}" for number in backend.held.open)]
        assert choices, "nothing runs, and it has not ended"
        ends = data.draw(st.sampled_from(choices), label="ends")
        if isinstance(ends, str):
            backend.held.release(int(ends.removeprefix("step ")))
        elif data.draw(st.integers(0, 4), label="fails at 0"):
            rollouts.held.release(ends)
        else:
            rollouts.held.fail(ends, ValueError("the agent failed"))
            failed += 1
    await running
    for call in backend.calls:
        versions = [item.initial_policy_version for group in call.groups for item in group]
        assert all(version is not None and call.parent - version <= off_policy for version in versions)
    trained = backend.trained()
    assert len(trained) == len(set(trained))
    if options["max_steps"] is None:
        assert sorted(rollouts.started) == list(range(scenarios))
        assert len(trained) + failed + stale == scenarios
    else:
        assert len(backend.calls) <= options["max_steps"]


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_kills_at_any_moment_lose_no_scenario_and_train_none_twice(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_killed_again_and_again(Path(folder), data))


async def _killed_again_and_again(folder: Path, data: st.DataObject) -> None:
    scenarios, backend = range(7), MemoryBackend(hold=True)
    for _ in range(data.draw(st.integers(1, 3), label="kills")):
        rollouts = Rollouts(hold=True)
        pipeline = trainer(folder, backend, rollouts, scenarios, max_steps_off_policy=9)
        running = asyncio.create_task(pipeline.train(handle_signals=False))
        for ticks in data.draw(st.lists(st.integers(0, 12), max_size=20), label="ticks"):
            for _ in range(ticks):
                await asyncio.sleep(0)
            # Released ones are gone from `open` only when they have run on.
            open_steps = [name for name, future in backend.held.open.items() if not future.done()]
            open_rollouts = [name for name, future in rollouts.held.open.items() if not future.done()]
            if open_steps:
                backend.held.release(open_steps[0])
            elif open_rollouts:
                rollouts.held.release(data.draw(st.sampled_from(sorted(open_rollouts)), label="ends"))
        running.cancel()  # nothing is written on the way out, as after SIGKILL
        await asyncio.gather(running, return_exceptions=True)
    backend.hold = False
    await trainer(folder, backend, Rollouts(), scenarios, max_steps_off_policy=9).train(handle_signals=False)
    assert sorted(backend.trained()) == list(scenarios)
