"""Going through a data set in steps, epoch by epoch, resumable anywhere."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from art.errors import InvalidInput
from art.utils.console import bars_wanted, console

T = TypeVar("T")


@dataclass(frozen=True)
class DatasetBatch(Generic[T]):
    """The items of one training step."""

    items: list[T]
    step: int
    """Counts from 0 over all epochs."""
    epoch: int
    epoch_step: int
    """Counts from 0 within the epoch."""


def iterate_dataset(
    dataset: Sequence[T],
    groups_per_step: int = 1,
    num_epochs: int = 1,
    initial_step: int = 0,
    use_tqdm: bool = True,
    *,
    seed: int = 0,
) -> Iterator[DatasetBatch[T]]:
    """Batches of `groups_per_step` items; the last of an epoch may be smaller.

    Each epoch has an order of its own, which depends on `seed` and the epoch alone: `initial_step` resumes
    where the run stopped. No global random generator is read or changed. `use_tqdm` shows a bar on a
    terminal.
    """
    if groups_per_step < 1:
        raise InvalidInput(f"groups_per_step is {groups_per_step}", hint="give at least 1")
    steps = _steps(dataset, groups_per_step, num_epochs, initial_step, seed)
    if not use_tqdm or not bars_wanted():
        return steps
    from rich.progress import track

    per_epoch = -(-len(dataset) // groups_per_step)
    total = max(0, per_epoch * num_epochs - initial_step)
    return iter(track(steps, "steps", total=total, console=console(), transient=True))


def _steps(
    dataset: Sequence[T], groups_per_step: int, num_epochs: int, initial_step: int, seed: int
) -> Iterator[DatasetBatch[T]]:
    per_epoch = -(-len(dataset) // groups_per_step)
    if per_epoch == 0:
        return
    for epoch in range(initial_step // per_epoch, num_epochs):
        order = list(range(len(dataset)))
        random.Random(f"{seed}:{epoch}").shuffle(order)
        for epoch_step in range(per_epoch):
            step = epoch * per_epoch + epoch_step
            if step < initial_step:
                continue
            chosen = order[epoch_step * groups_per_step : (epoch_step + 1) * groups_per_step]
            yield DatasetBatch([dataset[index] for index in chosen], step, epoch, epoch_step)
