"""Batches of groups, gathered ahead while earlier ones train."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator
from itertools import islice

from art.errors import InvalidInput
from art.rollouts.gather import close_groups, gather_trajectory_groups
from art.trajectories import TrajectoryGroup


async def trajectory_group_batches(
    groups: Iterable[Awaitable[TrajectoryGroup] | TrajectoryGroup],
    *,
    batch_size: int,
    max_batch_exceptions: int | float = 0,
    max_concurrent_batches: int = 4,
    skip_batches: int = 0,
    pbar_desc: str | None = "batches",
) -> AsyncIterator[list[TrajectoryGroup]]:
    """Gather `groups` in batches of `batch_size`, at most `max_concurrent_batches` at a time, in order.

    Every batch puts up with `max_batch_exceptions` (see gather_trajectory_groups). `skip_batches` passes over
    the first ones without running them, to resume. A failure, or leaving the loop, cancels what runs ahead.
    """
    for name, value in (("batch_size", batch_size), ("max_concurrent_batches", max_concurrent_batches)):
        if value < 1:
            raise InvalidInput(f"{name} is {value}", hint="give at least 1")
    source = iter(groups)
    close_groups(islice(source, skip_batches * batch_size))
    running: deque[tuple[asyncio.Task[list[TrajectoryGroup]], list[object]]] = deque()

    def start_next() -> bool:
        batch = list(islice(source, batch_size))
        if batch:
            work = gather_trajectory_groups(batch, max_exceptions=max_batch_exceptions, pbar_desc=pbar_desc)
            running.append((asyncio.get_running_loop().create_task(work), [*batch]))
        return bool(batch)

    try:
        while True:
            while len(running) < max_concurrent_batches and start_next():
                pass
            if not running:
                return
            yield await running[0][0]
            running.popleft()
    finally:
        for task, _ in running:
            task.cancel()
        await asyncio.gather(*(task for task, _ in running), return_exceptions=True)
        for _, batch in running:
            close_groups(batch)
        _close_rest(source)


def _close_rest(source: Iterator[Awaitable[TrajectoryGroup] | TrajectoryGroup]) -> None:
    """Coroutines made in advance (a list of them) will not run any more; a generator is just closed."""
    close = getattr(source, "close", None)
    if close is not None:
        close()
        return
    close_groups(source)
