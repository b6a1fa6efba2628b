"""The steps of a pipeline as the server sees them: a batch trained, logged and remembered; an evaluation."""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any, TypeAlias

from art.rollouts.pipeline_groups import GroupRolloutFn
from art.rollouts.pipeline_retention import (
    CHECKPOINT_CREATED_AT_UNIX,
    CHECKPOINT_EVAL_COMPLETED,
    CHECKPOINT_SAVED,
    Retained,
    Retention,
    retain,
)
from art.rollouts.pipeline_scenarios import Scenarios, Training
from art.rollouts.pipeline_schedule import FinishedGroup
from art.trajectories import TrajectoryGroup

if TYPE_CHECKING:
    from art.backends.protocol import Backend
    from art.backends.results import TrainResult
    from art.model import TrainableModel

EvalFn: TypeAlias = Callable[[Any, int, Any], Awaitable[Any]]
"""(model, step, config) -> trajectories or groups, or a dict of them by split; None when it logged by itself."""
DISCARDED = "discarded"
"""Split under which groups that were too old are logged."""


@dataclass(frozen=True)
class Program:
    """What the program gave: the parts of a pipeline that are its own."""

    model: TrainableModel[Any, Any]
    backend: Backend
    rollout_fn: GroupRolloutFn
    config: Any
    eval_fn: EvalFn | None
    train_options: Mapping[str, Any]
    """For `backend.train`."""
    retention: Retention


class IdleMeter:
    """Seconds in which the workers had nothing to do, as a mean over all of them."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._since = time.monotonic()
        self._seconds = 0.0

    def note(self, running: int) -> None:
        """So many have been running since the last note."""
        now = time.monotonic()
        self._seconds += (now - self._since) * max(0, self._workers - running) / self._workers
        self._since = now

    def take(self) -> float:
        """Those since the last time this was asked."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds


@dataclass
class Stepper:
    """Trains and evaluates, one after the other, and writes down how far the run has come."""

    program: Program
    scenarios: Scenarios
    idle: IdleMeter
    step: int
    """The published step."""
    batch: int
    """Train calls of the model so far."""
    say: Callable[[str], None]
    """Shows a person one line."""
    steps: int = 0
    """Those of this run."""
    stale: list[FinishedGroup] = field(default_factory=list)
    """Discarded and not logged yet."""
    failed: list[TrajectoryGroup] = field(default_factory=list)
    """Without a trajectory, and not logged yet."""
    row: Mapping[str, Any] = field(default_factory=dict)
    """Of the last step, as it was logged."""
    retained: Retained = field(default_factory=Retained)
    """What the retention strategy kept the last time."""
    ready: float = field(default_factory=time.monotonic)
    """When the trainer last became free."""

    async def train(self, batch: Sequence[FinishedGroup], standing: Mapping[str, float]) -> TrainResult:
        """One train call with everything that belongs to it. `standing`: metrics of the moment it begins."""
        numbers = [item.position for item in batch]
        groups = [item.group for item in batch]
        began, parent = time.monotonic(), self.step
        idle = began - self.ready
        self._remember(Training(batch=self.batch + 1, scenarios=numbers))
        result = await self.program.backend.train(self.program.model, groups, **self.program.train_options)
        self.step, self.batch = result.step, max(result.batch, self.batch + 1)
        self.steps += 1
        self.scenarios.done(numbers)
        self._remember()
        discarded = await self.log_discarded()
        failed, self.failed = self.failed, []
        now = time.monotonic()
        wall, actor_idle = now - self.ready, self.idle.take()
        metrics = {
            **result.metrics,
            **standing,
            "train/steps_off_policy": fmean(max(0, parent - item.version) for item in batch),
            "train/discarded_stale_groups": float(discarded),
            "pipeline/failed_groups": float(len(failed)),
            "throughput/step_trainer_idle_s": idle,
            "throughput/step_actor_idle_s": actor_idle,
            "time/step_wall_s": wall,
            CHECKPOINT_SAVED: float(result.published),
        }
        if result.published:
            metrics[CHECKPOINT_CREATED_AT_UNIX] = time.time()
        self.ready = now
        self.row = await self.program.model.log(
            [*groups, *failed], split="train", metrics=metrics, step=self.step
        )
        if result.published:
            await self._retain()
        return result

    def _remember(self, training: Training | None = None) -> None:
        # On the loop and not in a thread: the program's own merge_state must not come in between reading and
        # writing. It is one small file.
        self.program.model.merge_state(self.scenarios.position(training).to_state())

    async def log_discarded(self) -> int:
        """Log the groups that were too old, so that the server knows what became of them; how many."""
        stale, self.stale = self.stale, []
        if stale:
            behind = fmean(self.step - item.version for item in stale)
            await self.program.model.log(
                [item.group for item in stale],
                split=DISCARDED,
                metrics={f"{DISCARDED}/steps_off_policy": behind, f"{DISCARDED}/groups": float(len(stale))},
                step=self.step,
            )
        return len(stale)

    async def conclude(self) -> None:
        """Log and write down what has come to nothing since the last step."""
        await self.log_discarded()
        self._remember()

    async def _retain(self) -> None:
        retention = self.program.retention
        if retention.strategy is not None and self.steps % retention.interval == 0:
            model, known = self.program.model, self.retained
            self.retained = await retain(model, retention.strategy, known)
            if self.retained.lost:
                lost = ", ".join(map(str, self.retained.lost))
                self.say(
                    f"the server's own rule has deleted what the retention strategy keeps (step {lost}); "
                    "raise ART_SERVER__KEEP_CHECKPOINTS where it starts"
                )

    async def evaluate(self) -> None:
        """Run the program's evaluation of the published step, and log what it gives, by split."""
        assert self.program.eval_fn is not None, "asked for only where there is one"
        began, step = time.monotonic(), self.step
        found: Any = self.program.eval_fn(self.program.model, step, self.program.config)
        if inspect.isawaitable(found):
            found = await found
        by_split = found if isinstance(found, Mapping) else {"val": found}
        seconds = time.monotonic() - began
        for split, trajectories in by_split.items():
            metrics = {CHECKPOINT_EVAL_COMPLETED: 1.0, "time/step_eval_s": seconds}
            await self.program.model.log(trajectories, split=split, metrics=metrics, step=step)
        self.ready = time.monotonic()
