"""What a pipeline may do next: how many rollouts may run, and which finished groups are trained.

No I/O and no clock: the loop in `pipeline_run` asks, and tells what has happened.

Let B be the batch size, k the step being worked on (1 for the first), and *accepted* the groups that were taken
into a batch or wait for one. With batches of B groups

    accepted + running <= (max_steps_off_policy + k) * B

holds at all times (AReaL, arXiv:2505.24298, whose policy version i is k - 1). Groups that end in
the order they began are then trained at most `max_steps_off_policy` steps after they were sampled; those that were
overtaken may be older, and are discarded when they come to training. A batch larger than B moves the bound by
its own size, so that one large batch does not stop the rollouts for the steps after it.
"""

from __future__ import annotations

from dataclasses import dataclass

from art.trajectories import TrajectoryGroup


@dataclass(frozen=True, eq=False)
class FinishedGroup:
    """A group whose rollouts have ended, on its way to training."""

    position: int
    """Of its scenario among all scenarios, from 0."""
    version: int
    """The published step that its oldest rollout started with."""
    group: TrajectoryGroup


@dataclass(frozen=True)
class Taken:
    """What came of looking for a batch: the batch (empty: not enough yet), and what was too old for it."""

    batch: list[FinishedGroup]
    stale: list[FinishedGroup]


class Schedule:
    """Counts groups from their start to their training.

    `workers`: groups that run at the same time. `batch`, `max_batch`: groups of one train call. `queue_maxsize`:
    finished groups that may wait while a step trains; more keep their workers busy. `max_steps`: train calls
    of this run; None is no bound.
    """

    def __init__(
        self,
        *,
        workers: int,
        batch: int,
        max_batch: int,
        max_steps_off_policy: int,
        queue_maxsize: int | None = None,
        max_steps: int | None = None,
    ) -> None:
        self._workers = workers
        self._batch = batch
        self._max_batch = max_batch
        self._max_steps_off_policy = max_steps_off_policy
        self._queue_maxsize = queue_maxsize
        self._max_steps = max_steps
        self._waiting: list[FinishedGroup] = []
        self.running = 0
        self.taken = 0
        """Groups handed to train calls, the one in hand included."""
        self.steps = 0
        """Train calls that have ended."""
        self.training = False
        """A train call is in hand."""

    @property
    def waiting(self) -> int:
        """Groups that have ended and are in no batch yet."""
        return len(self._waiting)

    @property
    def accepted(self) -> int:
        """Groups taken into a batch, or waiting for one."""
        return self.taken + self.waiting

    @property
    def bound(self) -> int:
        """What `accepted + running` may come to."""
        ahead = self._max_steps_off_policy + 1
        if self._max_steps is not None:  # what no step of this run will train is not sampled
            ahead = min(ahead, self._max_steps - self.steps)
        return self.taken + (ahead - self.training) * self._batch

    @property
    def complete(self) -> bool:
        """All steps of the run are done."""
        return self._max_steps is not None and self.steps >= self._max_steps

    def has_room(self) -> bool:
        """Whether one more group may start."""
        blocked = 0
        if self.training and self._queue_maxsize is not None:
            blocked = max(0, self.waiting - self._queue_maxsize)
        return self.running + blocked < self._workers and self.accepted + self.running < self.bound

    def start(self) -> None:
        """A group starts; there must be room."""
        assert self.has_room(), "a group was started past the bound"
        self.running += 1

    def end(self, finished: FinishedGroup | None) -> None:
        """A running group has ended; None when nothing of it can be trained."""
        self.running -= 1
        if finished is not None:
            self._waiting.append(finished)

    def take(self, step: int, *, exhausted: bool) -> Taken:
        """The next batch, the groups sampled longest ago first, to be trained on top of `step`.

        `exhausted`: no further scenario will come, so that the rest may be less than a batch.
        """
        assert not self.training, "one step at a time"
        fresh: list[FinishedGroup] = []
        stale: list[FinishedGroup] = []
        for item in sorted(self._waiting, key=lambda item: item.version):
            too_old = step - item.version > self._max_steps_off_policy
            (stale if too_old else fresh).append(item)
        enough = len(fresh) >= self._batch or (exhausted and not self.running and fresh)
        batch = fresh[: self._max_batch] if enough else []
        self._waiting = fresh[len(batch) :]
        self.taken += len(batch)
        self.training = bool(batch)
        return Taken(batch=batch, stale=stale)

    def trained(self) -> None:
        """The train call in hand has ended."""
        self.training = False
        self.steps += 1
