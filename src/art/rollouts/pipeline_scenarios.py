"""The scenarios of a pipeline: numbered in their order, given out once, and again after an interruption."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from art.errors import InvalidInput

STATE_KEY = "_pipeline"
"""Where the position lies in the model's state."""


class Training(BaseModel):
    """A train call that was about to be made when the position was written."""

    model_config = ConfigDict(extra="forbid")

    batch: int
    """The model's batch counter once the call has ended."""
    scenarios: list[int]


class Position(BaseModel):
    """How far a run has come. Everything below `next` that is not `open` is done."""

    model_config = ConfigDict(extra="forbid")

    next: int = 0
    """Number of the first scenario that was never given out."""
    open: list[int] = Field(default_factory=list)
    """Those below `next` whose groups were not trained yet."""
    training: Training | None = None

    @classmethod
    def of_state(cls, state: Mapping[str, Any] | None) -> Position:
        """As it was written; the start where nothing is written. InvalidInput for anything else."""
        written = (state or {}).get(STATE_KEY)
        try:
            return cls.model_validate(written or {})
        except ValidationError as error:
            raise InvalidInput(
                "the position of the pipeline cannot be read from the model's state",
                cause=f"{STATE_KEY} is {written!r}",
                hint="PipelineTrainer(..., resume=False) starts from the first scenario",
            ) from error

    def to_state(self) -> dict[str, Any]:
        """What to merge into the model's state."""
        return {STATE_KEY: self.model_dump(mode="json")}

    def settled(self, batch: int) -> Position:
        """The position for a model that has counted `batch` train calls: the call in hand was made or it was not."""
        if self.training is None or batch < self.training.batch:
            return Position(next=self.next, open=self.open)
        trained = set(self.training.scenarios)
        return Position(next=self.next, open=[number for number in self.open if number not in trained])


class Scenarios:
    """Gives out scenarios one at a time. A run that is resumed must be given the same ones in the same order."""

    def __init__(self, scenarios: Iterable[Any] | AsyncIterable[Any], position: Position) -> None:
        self._source = _iterator(scenarios)
        self._read = 0
        self._resumed = position.next
        self._owed = set(position.open)
        """Numbers that an earlier run gave out in vain, and that were not read again yet."""
        self._given: dict[int, Any] = {}
        self._again: deque[tuple[int, Any]] = deque()
        self._ended = False
        self._interrupted = False

    @property
    def exhausted(self) -> bool:
        """No further scenario will be given out."""
        return self._ended and not self._again

    @property
    def finished(self) -> int:
        """How many scenarios are done, those of earlier runs included."""
        return max(self._read, self._resumed) - len(self._owed) - len(self._given)

    async def give(self) -> tuple[int, Any] | None:
        """(number, scenario) of the next one that is not done; None when there is none. One call at a time."""
        if self._again:
            number, scenario = self._again.popleft()
            self._given[number] = scenario
            return number, scenario
        while not self._ended:
            try:
                scenario = await self._next()
            except StopAsyncIteration:
                self._ended = True
                break
            number = self._read
            self._read += 1
            if number >= self._resumed or number in self._owed:
                self._owed.discard(number)
                self._given[number] = scenario
                return number, scenario
        return None

    async def _next(self) -> Any:
        if not isinstance(self._source, AsyncIterator):
            return _plain_next(self._source)
        if self._interrupted:
            raise InvalidInput(
                "the scenarios were interrupted while the next one was awaited, and cannot go on",
                hint="make a new PipelineTrainer with the same scenarios: it resumes where this one stopped",
            )
        try:
            return await anext(self._source)
        except asyncio.CancelledError:
            self._interrupted = True  # a generator that was cancelled has ended, and would seem exhausted
            raise

    def done(self, numbers: Iterable[int]) -> None:
        """These need not be given out again."""
        for number in numbers:
            self._given.pop(number, None)

    def take_back(self) -> None:
        """A run has ended: what it did not finish is given out first by the next one."""
        self._again = deque(sorted(self._given.items()))

    def position(self, training: Training | None = None) -> Position:
        """How far it has come."""
        unfinished = sorted({*self._owed, *self._given})
        return Position(next=max(self._read, self._resumed), open=unfinished, training=training)


def _plain_next(source: Iterator[Any]) -> Any:
    """A coroutine that raises StopIteration ends as RuntimeError, so the end is told by the asynchronous one."""
    try:
        return next(source)
    except StopIteration as end:
        raise StopAsyncIteration from end


def _iterator(scenarios: Iterable[Any] | AsyncIterable[Any]) -> Iterator[Any] | AsyncIterator[Any]:
    if isinstance(scenarios, AsyncIterable):
        return aiter(scenarios)
    if isinstance(scenarios, str | bytes) or not isinstance(scenarios, Iterable):
        raise InvalidInput(
            f"PipelineTrainer was given a {type(scenarios).__name__} as its scenarios",
            hint="pass an iterable of them, or an asynchronous one",
        )
    return iter(scenarios)
