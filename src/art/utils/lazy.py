"""A coroutine that starts when it is awaited, and may be left alone without a warning."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")


class LazyCoroutine(Coroutine[Any, Any, T]):
    """What `model.register(backend)` returns: `await`, `asyncio.run` and `create_task` take it; dropping it
    is fine, because the work is then done at first use."""

    def __init__(self, start: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._start = start
        self._inner: Coroutine[Any, Any, T] | None = None

    def _running(self) -> Coroutine[Any, Any, T]:
        if self._inner is None:
            self._inner = self._start()
        return self._inner

    def send(self, value: Any) -> Any:
        return self._running().send(value)

    def throw(
        self,
        kind: type[BaseException] | BaseException,
        value: BaseException | object = None,
        trace: TracebackType | None = None,
    ) -> Any:
        error = kind if isinstance(kind, BaseException) else (value or kind())
        assert isinstance(error, BaseException)
        return self._running().throw(error)

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self._running().__await__()
