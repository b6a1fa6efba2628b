"""`retry`: how often, for what, and never for cancellation."""

from __future__ import annotations

import asyncio
import time

import pytest

import art
from art.errors import InvalidInput


class Flaky:
    """Fails `failures` times with `error`, then returns 7."""

    def __init__(self, failures: int, error: BaseException) -> None:
        self.calls = 0
        self._failures = failures
        self._error = error

    def run(self) -> int:
        self.calls += 1
        if self.calls <= self._failures:
            raise self._error
        return 7


def call(flaky: Flaky, *, as_coroutine: bool, **options: object) -> int:
    @art.retry(delay=0.001, **options)  # type: ignore[arg-type]
    def plain() -> int:
        """Plain."""
        return flaky.run()

    @art.retry(delay=0.001, **options)  # type: ignore[arg-type]
    async def coroutine() -> int:
        return flaky.run()

    assert plain.__doc__ == "Plain."
    return asyncio.run(coroutine()) if as_coroutine else plain()


both = pytest.mark.parametrize("as_coroutine", [False, True])


@both
def test_it_tries_until_it_works(as_coroutine: bool) -> None:
    told: list[tuple[str, int]] = []
    flaky = Flaky(2, ValueError("no"))
    result = call(flaky, as_coroutine=as_coroutine, on_retry=lambda error, n: told.append((str(error), n)))
    assert (result, flaky.calls) == (7, 3)
    assert told == [("no", 1), ("no", 2)]


@both
def test_the_last_exception_is_raised(as_coroutine: bool) -> None:
    flaky = Flaky(9, ValueError("still no"))
    with pytest.raises(ValueError, match="still no"):
        call(flaky, as_coroutine=as_coroutine, max_attempts=2)
    assert flaky.calls == 2


@both
def test_other_exceptions_are_not_retried(as_coroutine: bool) -> None:
    flaky = Flaky(1, KeyError("k"))
    with pytest.raises(KeyError):
        call(flaky, as_coroutine=as_coroutine, exceptions=(ValueError,))
    assert flaky.calls == 1


@both
@pytest.mark.parametrize("error", [asyncio.CancelledError(), KeyboardInterrupt()])
def test_cancellation_is_never_retried(as_coroutine: bool, error: BaseException) -> None:
    flaky = Flaky(1, error)
    with pytest.raises(type(error)):
        call(flaky, as_coroutine=as_coroutine, exceptions=(BaseException,))
    assert flaky.calls == 1


def test_the_wait_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    flaky = Flaky(3, ValueError())

    @art.retry(max_attempts=4, delay=0.5, backoff_factor=3)
    def plain() -> int:
        return flaky.run()

    assert plain() == 7
    assert waits == [0.5, 1.5, 4.5]


def test_no_attempt_at_all_is_refused() -> None:
    with pytest.raises(InvalidInput, match="max_attempts"):
        art.retry(max_attempts=0)
