"""`retry`: try a function again when it raises."""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

from art.errors import InvalidInput

F = TypeVar("F", bound=Callable[..., Any])


def retry(
    max_attempts: int = 3,
    delay: float = 0.25,
    backoff_factor: float = 2.0,
    exceptions: tuple[type[BaseException], ...] | type[BaseException] = (Exception,),
    on_retry: Callable[[BaseException, int], None] | None = None,
) -> Callable[[F], F]:
    """Decorate a function or coroutine function: up to `max_attempts` calls, `delay` seconds before the second
    and `backoff_factor` times as long before each further one.

    Only `exceptions` are retried; the last one is raised. Cancellation is never retried, whatever
    `exceptions` says. `on_retry(error, attempt)` is told of each failure that will be retried.
    """
    if max_attempts < 1:
        raise InvalidInput(f"max_attempts is {max_attempts}", hint="give at least 1")
    caught = exceptions if isinstance(exceptions, tuple) else (exceptions,)

    def may_retry(error: BaseException, attempt: int) -> bool:
        if isinstance(error, asyncio.CancelledError | KeyboardInterrupt | SystemExit | GeneratorExit):
            return False
        if attempt >= max_attempts or not isinstance(error, caught):
            return False
        if on_retry is not None:
            on_retry(error, attempt)
        return True

    def decorate(function: F) -> F:
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def retried_async(*args: Any, **kwargs: Any) -> Any:
                attempt = 0
                while True:
                    attempt += 1
                    try:
                        return await function(*args, **kwargs)
                    except BaseException as error:
                        if not may_retry(error, attempt):
                            raise
                    await asyncio.sleep(delay * backoff_factor ** (attempt - 1))

            return cast(F, retried_async)

        @functools.wraps(function)
        def retried(*args: Any, **kwargs: Any) -> Any:
            attempt = 0
            while True:
                attempt += 1
                try:
                    return function(*args, **kwargs)
                except BaseException as error:
                    if not may_retry(error, attempt):
                        raise
                time.sleep(delay * backoff_factor ** (attempt - 1))

        return cast(F, retried)

    return decorate
