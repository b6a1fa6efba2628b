"""Counting what paid models cost, wherever they are called: the builder that is active there, and the decorator."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from art.errors import InvalidInput

if TYPE_CHECKING:
    from art.metrics import MetricsBuilder

P = ParamSpec("P")
R = TypeVar("R")
active: ContextVar[MetricsBuilder] = ContextVar("art_metrics_builder")
"""Of this task, and of those it started since it was set."""


def track_api_cost(
    *,
    source: str,
    provider: str,
    model_name: str,
    response_getter: Callable[[Any], Any] | None = None,
    prompt_price_per_million: float | None = None,
    completion_price_per_million: float | None = None,
    cached_prompt_price_per_million: float | None = None,
    cache_creation_price_per_million: float | None = None,
    cache_read_price_per_million: float | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorates a function, asynchronous or not, that returns the answer of a paid model.

    Each answer is counted by the builder that is active then (`MetricsBuilder.activate`); without one nothing is.
    `response_getter(result)` finds the answer in what the function returns. The rest is as for `add_response_cost`.
    """
    for value, what in ((source.strip("/"), "source"), (provider, "provider"), (model_name, "model_name")):
        named(value, what)

    def record(result: Any) -> None:
        builder = active.get(None)
        if builder is None:
            return
        builder.add_response_cost(
            source,
            result if response_getter is None else response_getter(result),
            provider=provider,
            model_name=model_name,
            prompt_price_per_million=prompt_price_per_million,
            completion_price_per_million=completion_price_per_million,
            cached_prompt_price_per_million=cached_prompt_price_per_million,
            cache_creation_price_per_million=cache_creation_price_per_million,
            cache_read_price_per_million=cache_read_price_per_million,
        )

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        if iscoroutinefunction(function):

            @wraps(function)
            async def run_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                result = await function(*args, **kwargs)
                record(result)
                return result

            return cast("Callable[P, R]", run_async)

        @wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            result = function(*args, **kwargs)
            record(result)
            return result

        return run

    return decorate


def named(value: str, what: str) -> str:
    """The name without white space around it. InvalidInput, naming `what`, for an empty one."""
    name = value.strip()
    if not name:
        raise InvalidInput(f"{what} is empty", hint=f"give {what} a name")
    return name


def provider_name(name: str) -> str:
    """A provider, however it is written."""
    return named(name, "provider").lower()
