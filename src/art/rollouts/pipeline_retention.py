"""Which checkpoints a pipeline keeps: a strategy looks at what there is and names the steps that stay."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any, TypeAlias

from art.errors import Conflict, InvalidInput

if TYPE_CHECKING:
    from art.model import TrainableModel

log = logging.getLogger(__name__)

CHECKPOINT_CREATED_AT_UNIX = "checkpoint/created_at_unix"
"""Metric: when the step was published, seconds since 1970."""
CHECKPOINT_EVAL_COMPLETED = "checkpoint/eval_completed"
"""Metric: 1 on the row of a step whose evaluation has ended."""
CHECKPOINT_SAVED = "checkpoint/saved"
"""Metric: 1 on the row of a train call that published a step, 0 where it did not."""


@dataclass(frozen=True)
class CheckpointInfo:
    """One published step that is still there."""

    step: int
    created_at: float
    """Seconds since 1970."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The means of what was logged at the step (`val/reward`, `loss/train`, ...)."""

    @property
    def eval_completed(self) -> bool:
        """Whether the step was evaluated by the pipeline."""
        return bool(self.metrics.get(CHECKPOINT_EVAL_COMPLETED))


@dataclass(frozen=True)
class CheckpointRetentionContext:
    """What a strategy decides by."""

    checkpoints: list[CheckpointInfo]
    """Oldest first."""
    current_step: int
    """The latest; it stays whatever the strategy says."""


CheckpointRetentionStrategy: TypeAlias = Callable[[CheckpointRetentionContext], Iterable[int]]
"""The steps to keep; steps that are gone already may be among them."""


@dataclass(frozen=True)
class Retention:
    """A strategy and how often it is asked."""

    strategy: CheckpointRetentionStrategy | None
    interval: int
    """Train calls between two times."""

    def __post_init__(self) -> None:
        if self.interval < 1:
            raise InvalidInput(
                f"checkpoint_retention_interval is {self.interval}",
                hint="give a number of train calls, at least 1",
            )


def keep_recent_and_top(
    recent: int = 5, top: int = 2, metric: str = "val/reward"
) -> CheckpointRetentionStrategy:
    """Keep the `recent` latest steps and the `top` best by the mean of `metric`; of equals the later."""
    for name, value in (("recent", recent), ("top", top)):
        if value < 0:
            raise InvalidInput(f"{name} is {value}", hint="give a number of checkpoints, at least 0")

    def keep(context: CheckpointRetentionContext) -> set[int]:
        steps = sorted(info.step for info in context.checkpoints)
        rated = [info for info in context.checkpoints if metric in info.metrics]
        rated.sort(key=lambda info: (info.metrics[metric], info.step), reverse=True)
        return {*steps[max(0, len(steps) - recent) :], *(info.step for info in rated[:top])}

    return keep


@dataclass(frozen=True)
class Retained:
    """What a strategy came to."""

    kept: frozenset[int] = frozenset()
    """Steps that are there because it wants them."""
    lost: tuple[int, ...] = ()
    """Steps that it kept before and that somebody else has deleted since."""


async def retain(
    model: TrainableModel[Any, Any], strategy: CheckpointRetentionStrategy, before: Retained
) -> Retained:
    """Delete what `strategy` does not keep, except step 0 and the latest. `before`: the last time's answer.

    Steps that open rollouts or running calls still use stay until a later time.
    """
    api = model.backend().connection.api
    listed = await api.checkpoints(model.project, model.name)
    means = means_by_step(await api.history(model.project, model.name))
    known = [
        CheckpointInfo(
            step=one.step, created_at=one.created_at, metrics={**one.metrics, **means.get(one.step, {})}
        )
        for one in sorted(listed, key=lambda one: one.step)
    ]
    if not known:
        return Retained()
    current = (await model.info()).step
    wanted = set(strategy(CheckpointRetentionContext(checkpoints=known, current_step=current)))
    there = {info.step for info in known}
    for step in sorted(there - wanted - {0, current}):
        try:
            await api.delete_checkpoints(model.project, model.name, [step])
        except Conflict:  # in use: rollouts that began under it still run
            log.debug("step %d of %s is in use and stays for now", step, model.name)
    return Retained(kept=frozenset(there & wanted), lost=tuple(sorted(before.kept - there)))


def means_by_step(rows: Iterable[Mapping[str, Any]]) -> dict[int, dict[str, float]]:
    """The mean of each metric over the history rows of a step."""
    values: dict[int, dict[str, list[float]]] = {}
    for row in rows:
        step = row.get("step")
        if not isinstance(step, int):
            continue
        for name, value in row.items():
            if isinstance(value, int | float) and name not in ("step", "training_step"):
                values.setdefault(step, {}).setdefault(name, []).append(float(value))
    return {step: {name: fmean(found) for name, found in named.items()} for step, named in values.items()}
