"""One run of a pipeline: the loop that starts rollouts, steps and evaluations, and waits for them.

A single coroutine decides what starts; everything else runs in tasks, and each task's end, also its failure, comes
back here. So there is no lock, and no exception that nobody hears.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

from art.backends.results import TrainResult
from art.errors import InvalidInput, TrainingFailed
from art.rollouts.pipeline_groups import run_group, stamp_versions
from art.rollouts.pipeline_scenarios import Scenarios
from art.rollouts.pipeline_schedule import FinishedGroup, Schedule
from art.rollouts.pipeline_status import PipelineStatus, StatusReporter
from art.rollouts.pipeline_step import IdleMeter, Program, Stepper
from art.rollouts.purse import Purse
from art.trajectories import TrajectoryGroup
from art.types.wire import ModelInfo

BATCHES_AT_MOST = 10
"""Default of `max_batch_size`, in smallest batches."""
OnTrained: TypeAlias = Callable[[TrainResult, PipelineStatus], None]
"""(what a train call gave, where the run stands)."""


@dataclass(frozen=True, kw_only=True)
class PipelineSettings:
    """The numbers of a pipeline; see PipelineTrainer."""

    num_rollout_workers: int
    min_batch_size: int
    max_batch_size: int | None
    max_steps_off_policy: int
    queue_maxsize: int | None
    max_steps: int | None
    discard_queue_multiplier: int
    eval_every_n_steps: int
    eval_at_start: bool

    def __post_init__(self) -> None:
        least = {
            "num_rollout_workers": 1,
            "min_batch_size": 1,
            "max_batch_size": self.min_batch_size,
            "max_steps_off_policy": 0,
            "queue_maxsize": 1,
            "max_steps": 1,
            "discard_queue_multiplier": 1,
            "eval_every_n_steps": 0,
        }
        for name, bound in least.items():
            value = getattr(self, name)
            if value is not None and value < bound:
                raise InvalidInput(f"{name} is {value}", hint=f"give at least {bound}")

    def schedule(self) -> Schedule:
        """A fresh schedule."""
        return Schedule(
            workers=self.num_rollout_workers,
            batch=self.min_batch_size,
            max_batch=self.max_batch_size or BATCHES_AT_MOST * self.min_batch_size,
            max_steps_off_policy=self.max_steps_off_policy,
            queue_maxsize=self.queue_maxsize,
            max_steps=self.max_steps,
        )

    @property
    def fruitless_groups(self) -> int:
        """So many groups in a row that come to nothing end the run."""
        return self.discard_queue_multiplier * self.min_batch_size


class PipelineRun:
    """From `go` to its end. `request_stop` ends it after the step in hand."""

    on_step: OnTrained | None = None

    def __init__(
        self,
        program: Program,
        settings: PipelineSettings,
        reporter: StatusReporter,
        *,
        scenarios: Scenarios,
        info: ModelInfo,
        purse: Purse,
    ) -> None:
        self._program = program
        self._settings = settings
        self._reporter = reporter
        self._scenarios = scenarios
        self._idle = IdleMeter(settings.num_rollout_workers)
        self._stepper = Stepper(
            program, scenarios, self._idle, step=info.step, batch=info.batch, say=reporter.tell
        )
        self._schedule = settings.schedule()
        self._purse = purse
        self._stop = asyncio.Event()
        self._evaluation_due = settings.eval_at_start and program.eval_fn is not None
        self._next: tuple[int, Any] | None = None
        """A scenario that was read and waits for room."""
        self._reading: asyncio.Task[tuple[int, Any] | None] | None = None
        self._rollouts: dict[asyncio.Task[TrajectoryGroup], tuple[int, int]] = {}
        """Running groups: their scenario's number, and the step they started at."""
        self._training: asyncio.Task[TrainResult] | None = None
        self._evaluating: asyncio.Task[None] | None = None
        self._stale = self._failed = 0
        self._in_vain = 0
        """Groups that came to nothing since the last train call."""
        self._hopeless: TrainingFailed | None = None
        """Set when these are too many; raised once no step is in hand that could prove it wrong."""

    def request_stop(self) -> None:
        """End after the step in hand. Called from the run's loop."""
        self._stop.set()

    def status(self) -> PipelineStatus:
        """Where the run stands."""
        busy = {"training": self._training, "evaluating": self._evaluating}
        return PipelineStatus(
            step=self._stepper.step,
            steps=self._stepper.steps,
            max_steps=self._settings.max_steps,
            running=self._schedule.running,
            waiting=self._schedule.waiting,
            doing=next((word for word, task in busy.items() if task is not None), "collecting"),
            scenarios=self._scenarios.finished,
            stale=self._stale,
            failed=self._failed,
        )

    async def go(self) -> None:
        """Run until all steps are done, the scenarios are used up, or a stop was asked for.

        What fails beside single groups is raised, after everything that ran has been cancelled and has ended.
        """
        stopping = asyncio.create_task(self._stop.wait(), name="pipeline stop")
        reporting = asyncio.create_task(self._reporter.run(self.status), name="pipeline status")
        try:
            while self._advance():
                self._idle.note(self._schedule.running)
                waits: list[asyncio.Future[Any]] = [task for task in (stopping, reporting) if not task.done()]
                waits += [task for task in (self._reading, self._training, self._evaluating) if task]
                await asyncio.wait([*waits, *self._rollouts], return_when=asyncio.FIRST_COMPLETED)
                self._idle.note(self._schedule.running)
                if reporting.done():
                    reporting.result()
                self._collect()
            await self._stepper.conclude()
        finally:
            await _end(
                task
                for task in (
                    stopping,
                    reporting,
                    self._reading,
                    self._training,
                    self._evaluating,
                    *self._rollouts,
                )
                if task is not None
            )
            self._scenarios.take_back()

    # -- what starts

    def _advance(self) -> bool:
        """Start what can be started; False when the run is over."""
        if self._training is None and self._evaluating is None and not self._begin():
            return False
        if not self._stop.is_set():
            self._fill()
        return True

    def _begin(self) -> bool:
        """Start an evaluation or a step where one is due; False when the run is over."""
        if self._stop.is_set():
            return False
        if self._evaluation_due:
            # The next step waits for it, so that everything it samples comes from the step it is logged at.
            self._evaluation_due = False
            with self._program.model.counting("eval"):
                self._evaluating = asyncio.create_task(self._stepper.evaluate(), name="pipeline evaluation")
            return True
        if self._schedule.complete:
            return False
        exhausted = self._scenarios.exhausted and self._next is None and self._reading is None
        taken = self._schedule.take(self._stepper.step, exhausted=exhausted)
        if taken.stale:
            self._discard(taken.stale)
        if taken.batch:
            standing = {
                "pipeline/running_groups": float(self._schedule.running),
                "pipeline/waiting_groups": float(self._schedule.waiting),
            }
            step = self._stepper.train(taken.batch, standing)
            self._training = asyncio.create_task(step, name="pipeline step")
            return True
        if self._hopeless is not None:
            raise self._hopeless
        return not exhausted or self._schedule.running > 0

    def _discard(self, stale: list[FinishedGroup]) -> None:
        self._stale += len(stale)
        self._stepper.stale += stale
        self._scenarios.done(item.position for item in stale)
        behind = max(self._stepper.step - item.version for item in stale)
        self._came_to_nothing(
            len(stale),
            f"the last was sampled {behind} steps before the one it would train",
            "raise max_steps_off_policy, or lower num_rollout_workers so that rollouts end sooner",
        )

    def _fill(self) -> None:
        """Start rollouts while there is room, and read the next scenario for the room that is left."""
        while self._schedule.has_room():
            if self._next is None:
                if self._reading is None and not self._scenarios.exhausted:
                    self._reading = asyncio.create_task(self._scenarios.give(), name="pipeline scenario")
                return
            (number, scenario), self._next = self._next, None
            self._schedule.start()
            program = self._program
            group = run_group(program.rollout_fn, program.model, scenario, program.config)
            with program.model.counting("train"):  # a task keeps the context that it is made in
                task = asyncio.create_task(group, name=f"pipeline group {number}")
            self._rollouts[task] = (number, self._stepper.step)

    # -- what has ended

    def _collect(self) -> None:
        """Take up everything that has ended; raises what ended the run."""
        if self._reading is not None and self._reading.done():
            reading, self._reading = self._reading, None
            self._next = reading.result()
        for task in [task for task in self._rollouts if task.done()]:
            self._collect_group(task)
        if self._evaluating is not None and self._evaluating.done():
            evaluating, self._evaluating = self._evaluating, None
            evaluating.result()
        if self._training is not None and self._training.done():
            training, self._training = self._training, None
            self._collect_step(training.result())

    def _collect_group(self, task: asyncio.Task[TrajectoryGroup]) -> None:
        number, version = self._rollouts.pop(task)
        group = task.result()
        if group.trajectories:
            oldest = stamp_versions(group, started=version, ended=self._stepper.step)
            self._schedule.end(FinishedGroup(number, oldest, group))
            return
        self._schedule.end(None)
        self._failed += 1
        self._stepper.failed.append(group)
        self._scenarios.done([number])
        said = [f"{error.type}: {error.message}" for error in group.exceptions] or ["the group was empty"]
        self._came_to_nothing(
            1, f"the last: {said[-1]}", "run one scenario by hand and correct what it raises"
        )

    def _came_to_nothing(self, groups: int, cause: str, hint: str) -> None:
        """Give up when nothing has been trained for too long: it would go on like this for ever."""
        self._in_vain += groups
        if self._hopeless is None and self._in_vain >= self._settings.fruitless_groups:
            self._hopeless = TrainingFailed(
                f"none of the last {self._in_vain} groups could be trained",
                cause=f"they failed, or were too old when they came to training; {cause}",
                hint=f"{hint}; discard_queue_multiplier sets how many batches of such groups are put up with",
            )

    def _collect_step(self, result: TrainResult) -> None:
        self._schedule.trained()
        self._purse.spend(self._stepper.row)
        if self._purse.reason:
            self._stop.set()
        self._in_vain, self._hopeless = 0, None
        every = self._settings.eval_every_n_steps
        due = bool(every) and result.published and result.step % every == 0
        self._evaluation_due = due and self._program.eval_fn is not None
        self._reporter.stepped(
            self.status(),
            reward=result.metrics.get("train/reward"),
            published=result.published,
            reason=result.reason,
        )
        if self.on_step is not None:
            self.on_step(result, self.status())


async def _end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel all of them and wait until they have ended."""
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)
