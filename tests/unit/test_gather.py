"""Gathering: order, failures, cancellation, bounds."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Iterator

import pytest

import art
from art.errors import InvalidInput
from art.rollouts.scope import current_scope
from art.rollouts.tasks import all_or_cancel


@pytest.fixture(autouse=True)
def no_forgotten_coroutines() -> Iterator[None]:
    """Every coroutine handed over is awaited or closed, also where a gather fails."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
        gc.collect()
    assert [str(one.message) for one in caught if "never awaited" in str(one.message)] == []


async def scored(value: float, turns: int = 0) -> art.Trajectory:
    for _ in range(turns):
        await asyncio.sleep(0)
    return art.Trajectory(reward=value, metrics={"value": value})


async def failing(message: str = "broken", turns: int = 0) -> art.Trajectory:
    for _ in range(turns):
        await asyncio.sleep(0)
    raise ValueError(message)


class Sleeper:
    """A rollout that never ends by itself and remembers how it ended."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.ended = ""

    async def run(self) -> art.Trajectory:
        self.started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)  # cleaning up takes a turn of the loop
            self.ended = "cancelled"
            raise
        raise AssertionError("unreachable")


def rewards(groups: list[art.TrajectoryGroup]) -> list[list[float]]:
    return [[trajectory.reward for trajectory in group] for group in groups]


def test_order_is_that_of_the_arguments_not_of_completion() -> None:
    async def run() -> list[art.TrajectoryGroup]:
        return await art.gather_trajectory_groups(
            art.TrajectoryGroup(scored(10 * g + i, turns=20 - 3 * i - 5 * g) for i in range(4))
            for g in range(3)
        )

    assert rewards(asyncio.run(run())) == [[0, 1, 2, 3], [10, 11, 12, 13], [20, 21, 22, 23]]


def test_gather_trajectories_keeps_order_and_exceptions_in_place() -> None:
    async def run() -> list[object]:
        return await art.gather_trajectories([scored(1, turns=5), failing("no"), scored(3)], max_exceptions=1)

    first, error, third = asyncio.run(run())
    assert isinstance(first, art.Trajectory)
    assert isinstance(third, art.Trajectory)
    assert (first.reward, third.reward) == (1, 3)
    assert isinstance(error, ValueError)


def test_awaitables_may_yield_lists() -> None:
    async def pair() -> list[art.Trajectory]:
        return [art.Trajectory(reward=1), art.Trajectory(reward=2)]

    async def run() -> tuple[list[object], art.TrajectoryGroup]:
        return await art.gather_trajectories([pair()]), await art.TrajectoryGroup([pair(), scored(3)])

    listed, group = asyncio.run(run())
    assert [type(item) for item in listed] == [list]
    assert [trajectory.reward for trajectory in group] == [1, 2, 3]


def test_a_failure_cancels_siblings_in_all_groups_and_waits_for_them() -> None:
    async def run() -> list[str]:
        sleepers = [Sleeper() for _ in range(3)]
        late_failure = failing(turns=10)
        with pytest.raises(ValueError, match="broken"):
            await art.gather_trajectory_groups(
                [
                    art.TrajectoryGroup([sleepers[0].run(), late_failure]),
                    art.TrajectoryGroup(sleeper.run() for sleeper in sleepers[1:]),
                ]
            )
        return [sleeper.ended for sleeper in sleepers]

    assert asyncio.run(run()) == ["cancelled"] * 3


def test_cancelling_the_gather_cancels_every_rollout_and_is_not_swallowed() -> None:
    async def run() -> tuple[bool, str]:
        sleeper = Sleeper()
        gather = asyncio.create_task(
            art.gather_trajectory_groups([art.TrajectoryGroup([sleeper.run()])], max_exceptions=99)
        )
        await sleeper.started.wait()
        gather.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gather
        return gather.cancelled(), sleeper.ended

    assert asyncio.run(run()) == (True, "cancelled")


def test_a_rollout_that_ends_cancelled_is_no_tolerated_exception() -> None:
    async def gives_up() -> art.Trajectory:
        raise asyncio.CancelledError

    async def run() -> str:
        sleeper = Sleeper()
        with pytest.raises(asyncio.CancelledError):
            await art.gather_trajectories([sleeper.run(), gives_up()], max_exceptions=99)
        return sleeper.ended

    assert asyncio.run(run()) == "cancelled"


def test_tolerated_exceptions_stay_with_their_group() -> None:
    async def run() -> list[art.TrajectoryGroup]:
        # Built from a generator: its members are made only now.
        return await art.gather_trajectory_groups(
            (
                art.TrajectoryGroup((failing(f"group {g}") if i == 1 else scored(i)) for i in range(3))
                for g in range(2)
            ),
            max_exceptions=2,
        )

    groups = asyncio.run(run())
    assert rewards(groups) == [[0, 2], [0, 2]]
    assert [group.exceptions[0].message for group in groups] == ["group 0", "group 1"]
    assert groups[0].exceptions[0].type == "builtins.ValueError"
    assert "raise ValueError(message)" in groups[0].exceptions[0].traceback


def test_the_tolerance_is_shared_by_all_groups() -> None:
    async def run(max_exceptions: float) -> list[art.TrajectoryGroup]:
        return await art.gather_trajectory_groups(
            [art.TrajectoryGroup([failing(), scored(1), scored(2), scored(3)]) for _ in range(3)],
            max_exceptions=max_exceptions,
        )

    assert len(asyncio.run(run(3))) == 3
    assert len(asyncio.run(run(0.25))) == 3  # 3 of 12
    for too_few in (2, 0.2):
        with pytest.raises(ValueError, match="broken"):
            asyncio.run(run(too_few))


def test_a_share_counts_groups_whose_size_shows_later() -> None:
    async def group(size: int) -> art.TrajectoryGroup:
        await asyncio.sleep(0)
        members = [failing()] + [scored(1, turns=30) for _ in range(size - 1)]
        return await art.TrajectoryGroup(members)

    async def run(share: float) -> list[art.TrajectoryGroup]:
        return await art.gather_trajectory_groups([group(2), group(8)], max_exceptions=share)

    assert rewards(asyncio.run(run(0.2))) == [[1], [1] * 7]
    with pytest.raises(ValueError, match="broken"):
        asyncio.run(run(0.19))


@pytest.mark.parametrize("bad", [-1, float("nan"), True])
def test_a_meaningless_tolerance_is_refused(bad: float) -> None:
    async def run() -> None:
        await art.gather_trajectories([scored(1)], max_exceptions=bad)

    with pytest.raises(InvalidInput, match="max_exceptions"):
        asyncio.run(run())


def test_after_each_replaces_multiplies_and_drops() -> None:
    async def after(group: art.TrajectoryGroup) -> art.TrajectoryGroup | list[art.TrajectoryGroup] | None:
        first = group.trajectories[0].reward
        if first == 0:
            return None
        return [group, group.model_copy(deep=True)] if first == 1 else group

    async def run() -> list[art.TrajectoryGroup]:
        return await art.gather_trajectory_groups(
            (art.TrajectoryGroup([scored(i)]) for i in range(3)), after_each=after
        )

    assert rewards(asyncio.run(run())) == [[1], [1], [2]]


def test_a_failing_after_each_fails_the_gather() -> None:
    async def after(group: art.TrajectoryGroup) -> art.TrajectoryGroup:
        raise RuntimeError("judge down")

    async def run() -> str:
        sleeper = Sleeper()
        with pytest.raises(RuntimeError, match="judge down"):
            await art.gather_trajectory_groups(
                [art.TrajectoryGroup([scored(1)]), art.TrajectoryGroup([sleeper.run()])],
                after_each=after,
                max_exceptions=5,
            )
        return sleeper.ended

    assert asyncio.run(run()) == "cancelled"


def test_max_concurrency_bounds_trajectories_over_all_groups() -> None:
    running = peak = 0

    async def rollout() -> art.Trajectory:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        for _ in range(3):
            await asyncio.sleep(0)
        running -= 1
        return art.Trajectory(reward=1)

    async def run() -> list[art.TrajectoryGroup]:
        return await art.gather_trajectory_groups(
            [art.TrajectoryGroup(rollout() for _ in range(5)) for _ in range(4)], max_concurrency=3
        )

    assert rewards(asyncio.run(run())) == [[1] * 5] * 4
    assert peak == 3


def test_a_rollout_may_gather_inside_without_waiting_for_its_own_slot() -> None:
    async def nested() -> art.Trajectory:
        group = await art.TrajectoryGroup(scored(i) for i in range(3))
        [inner] = await art.gather_trajectories([scored(4)])
        return art.Trajectory(reward=sum(rewards([group])[0]) + inner.reward)

    async def run() -> list[art.TrajectoryGroup]:
        return await art.gather_trajectory_groups([art.TrajectoryGroup([nested()])], max_concurrency=1)

    assert rewards(asyncio.run(asyncio.wait_for(run(), 20))) == [[7]]


def test_each_trajectory_runs_in_a_rollout_of_its_own() -> None:
    seen: list[str] = []

    async def rollout() -> art.Trajectory:
        for _ in range(2):
            scope = current_scope()
            assert scope is not None
            seen.append(scope.rollout_id)
            await asyncio.sleep(0)
        return art.Trajectory(reward=1)

    async def run() -> None:
        await art.gather_trajectory_groups([art.TrajectoryGroup(rollout() for _ in range(3))])
        assert current_scope() is None

    asyncio.run(run())
    assert len(seen) == 6
    assert len(set(seen)) == 3


def test_a_group_awaited_alone_raises_the_first_exception() -> None:
    async def run() -> art.TrajectoryGroup:
        return await art.TrajectoryGroup([scored(1), failing("alone")])

    with pytest.raises(ValueError, match="alone"):
        asyncio.run(run())


def test_awaited_values_instead_of_coroutines_are_refused_by_name() -> None:
    async def run() -> None:
        await art.gather_trajectory_groups([scored(1), 3])  # type: ignore[list-item]

    with pytest.raises(InvalidInput, match="given a int"):
        asyncio.run(run())


def test_a_group_that_comes_out_as_something_else_is_refused() -> None:
    async def run() -> None:
        await art.gather_trajectory_groups([scored(1)])  # type: ignore[list-item]

    with pytest.raises(InvalidInput, match="came out as Trajectory"):
        asyncio.run(run())


def test_nothing_to_gather_is_nothing() -> None:
    async def run() -> tuple[list[art.TrajectoryGroup], list[object]]:
        return await art.gather_trajectory_groups([]), await art.gather_trajectories([])

    assert asyncio.run(run()) == ([], [])


def test_completion_tokens_are_the_mean_over_choices() -> None:
    def choice(tokens: int) -> dict[str, object]:
        message = {"role": "assistant", "content": "x"}
        return {"index": 0, "finish_reason": "stop", "message": message, "token_ids": list(range(tokens))}

    async def rollout() -> art.Trajectory:
        return art.Trajectory(messages_and_choices=[choice(2), choice(4)], reward=1)

    [trajectory] = asyncio.run(art.gather_trajectories([rollout()]))
    assert trajectory.metrics["completion_tokens"] == 3


async def collect(batches: object) -> list[list[list[float]]]:
    return [rewards(batch) async for batch in batches]  # type: ignore[attr-defined]


def test_batches_come_in_order_and_every_batch_has_the_tolerance() -> None:
    def groups() -> Iterator[object]:
        for g in range(6):
            yield art.TrajectoryGroup([scored(g, turns=30 - 4 * g), failing()])

    batches = art.trajectory_group_batches(groups(), batch_size=2, max_batch_exceptions=2)  # type: ignore[arg-type]
    assert asyncio.run(collect(batches)) == [[[0], [1]], [[2], [3]], [[4], [5]]]


def test_a_later_batch_over_its_tolerance_raises_and_leaves_nothing_running() -> None:
    async def run() -> tuple[list[list[list[float]]], str]:
        sleeper = Sleeper()
        groups = [
            art.TrajectoryGroup([scored(0)]),
            art.TrajectoryGroup([failing()]),
            art.TrajectoryGroup([sleeper.run()]),
            art.TrajectoryGroup([scored(3)]),
        ]
        batches = art.trajectory_group_batches(groups, batch_size=1, max_concurrent_batches=3)
        got = [rewards(await anext(batches))]
        await sleeper.started.wait()
        with pytest.raises(ValueError, match="broken"):
            await anext(batches)
        return got, sleeper.ended

    assert asyncio.run(run()) == ([[[0]]], "cancelled")


def test_batches_can_be_skipped_and_run_ahead_only_so_far() -> None:
    started: list[int] = []

    async def rollout(value: int) -> art.Trajectory:
        started.append(value)
        return art.Trajectory(reward=value)

    async def run() -> list[list[float]]:
        groups = (art.TrajectoryGroup([rollout(i)]) for i in range(10))
        got = []
        async for batch in art.trajectory_group_batches(
            groups, batch_size=2, skip_batches=2, max_concurrent_batches=2
        ):
            got.append([trajectory.reward for group in batch for trajectory in group])
            if len(got) == 1:
                await asyncio.sleep(0.05)
                assert started == [4, 5, 6, 7]
        return got

    assert asyncio.run(run()) == [[4, 5], [6, 7], [8, 9]]


def test_all_or_cancel_runs_nothing_for_nothing() -> None:
    assert asyncio.run(all_or_cancel([])) == []
