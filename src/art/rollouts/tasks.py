"""Running the members of a group or a gather: in order, bounded, and never leaving siblings behind."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from contextvars import ContextVar
from typing import Any, TypeVar

from art.errors import InvalidInput

T = TypeVar("T")


async def all_or_cancel(coroutines: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all of them at once and return their results in the order given.

    The first failure cancels the others, waits until they have ended, and is raised. When the caller is
    cancelled the same happens with CancelledError; a member that ends cancelled counts as cancellation,
    so that it is never swallowed.
    """
    if not coroutines:
        return []
    loop = asyncio.get_running_loop()
    first_failure: asyncio.Future[asyncio.Task[T] | None] = loop.create_future()
    tasks = [loop.create_task(coroutine) for coroutine in coroutines]
    remaining = len(tasks)

    def on_done(task: asyncio.Task[T]) -> None:
        nonlocal remaining
        remaining -= 1
        failed = task.cancelled() or task.exception() is not None
        if not first_failure.done() and (failed or remaining == 0):
            first_failure.set_result(task if failed else None)

    for task in tasks:
        task.add_done_callback(on_done)
    try:
        failure = await first_failure
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if failure is not None:
        failure.result()
    return [task.result() for task in tasks]


class Tolerance:
    """How many exceptions a gather puts up with: a count, or a share (0, 1) of all its trajectories."""

    def __init__(self, max_exceptions: int | float = 0) -> None:
        if isinstance(max_exceptions, bool) or not max_exceptions >= 0:
            raise InvalidInput(
                f"max_exceptions is {max_exceptions!r}",
                hint="give a count (0, 1, 2, ...) or a share between 0 and 1 of all trajectories",
            )
        self._max_exceptions = max_exceptions
        self._total = 0
        self._unknown = 0
        self._exceptions: list[BaseException] = []

    @property
    def none(self) -> bool:
        """True when the first exception ends everything."""
        return self._max_exceptions == 0

    @property
    def count(self) -> int:
        return len(self._exceptions)

    def expect(self, trajectories: int) -> None:
        """Announce trajectories that will run."""
        self._total += trajectories

    def expect_unknown(self) -> None:
        """Announce a group whose size shows only when it starts."""
        self._unknown += 1

    def known_now(self) -> None:
        """A group announced by `expect_unknown` has ended, or has announced its size."""
        self._unknown -= 1

    def note(self, error: BaseException) -> None:
        """Keep `error`, or raise it when it is one too many."""
        self._exceptions.append(error)
        if not self._within(final=self._unknown == 0):
            raise error

    def check(self) -> None:
        """Raise the last exception when, at the end, there were too many."""
        if self._exceptions and not self._within(final=True):
            raise self._exceptions[-1]

    def _within(self, *, final: bool) -> bool:
        if self._max_exceptions == 0:
            return not self._exceptions
        if self._max_exceptions < 1:
            # While groups of unknown size are to come, a share of the total is not known yet.
            return not final or self.count <= self._max_exceptions * self._total
        return self.count <= self._max_exceptions


class Gathering:
    """What the members of one gather share: tolerance, a bound on concurrency, and who is told of progress."""

    def __init__(
        self,
        *,
        max_exceptions: int | float = 0,
        max_concurrency: int | None = None,
        on_trajectory: Callable[[object], None] | None = None,
        on_expect: Callable[[int], None] | None = None,
    ) -> None:
        if max_concurrency is not None and max_concurrency < 1:
            raise InvalidInput(f"max_concurrency is {max_concurrency}", hint="give at least 1, or None")
        self.tolerance = Tolerance(max_exceptions)
        self._slots = asyncio.Semaphore(max_concurrency) if max_concurrency is not None else None
        self._on_trajectory = on_trajectory
        self._on_expect = on_expect

    def expect(self, trajectories: int) -> None:
        self.tolerance.expect(trajectories)
        if self._on_expect is not None:
            self._on_expect(trajectories)

    async def run_member(
        self, member: Awaitable[T], run: Callable[[Awaitable[T]], Awaitable[T]]
    ) -> T | BaseException:
        """One trajectory within the bound; its exception is returned while the tolerance lasts."""
        async with AsyncExitStack() as stack:
            if self._slots is not None:
                await stack.enter_async_context(self._slots)
            try:
                result: T | BaseException = await run(member)
            except Exception as error:  # noqa: BLE001 - the boundary where a rollout's failure becomes data
                self.tolerance.note(error)
                result = error
        if self._on_trajectory is not None:
            self._on_trajectory(result)
        return result


current_gathering: ContextVar[Gathering | None] = ContextVar("art_gathering", default=None)


def close_unstarted(members: Sequence[object]) -> None:
    """Close coroutines that will never run, so that Python does not warn of them."""
    for member in members:
        if inspect.iscoroutine(member):
            member.close()
