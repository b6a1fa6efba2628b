"""`PipelineTrainer`: rollouts, training and evaluation side by side, so that none waits for the slowest rollout."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Iterable, Mapping, Sequence, Sized
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from art.backends.options import train_config
from art.config.budget import Budget
from art.errors import Conflict
from art.rollouts.pipeline_groups import GroupRolloutFn
from art.rollouts.pipeline_retention import CheckpointRetentionStrategy, Retention
from art.rollouts.pipeline_run import OnTrained, PipelineRun, PipelineSettings
from art.rollouts.pipeline_scenarios import Position, Scenarios
from art.rollouts.pipeline_signals import first_signal_asks
from art.rollouts.pipeline_status import StatusReporter
from art.rollouts.pipeline_step import EvalFn, Program
from art.rollouts.purse import Purse, budget_of

if TYPE_CHECKING:
    from art.backends.protocol import Backend
    from art.integrations.registry import Asked
    from art.model import TrainableModel

STOPPING = "stopping after the step in hand; Ctrl-C again stops at once"


class PipelineTrainer:
    """Trains `model` on groups as they come in, while further rollouts run.

    `rollout_fn(model, scenario, config)` makes the group of one scenario (`make_group_rollout_fn` makes one from a
    function of one trajectory). `scenarios` is an iterable or an asynchronous one, and may be endless.
    `eval_fn(model, step, config)` returns trajectories or groups, or a dict of them by split.

    Rollouts: `num_rollout_workers` groups at a time. With B = `min_batch_size` and k the step being worked on (the
    first is 1), accepted + running <= (max_steps_off_policy + k) * B. Groups sampled more than
    `max_steps_off_policy` published steps before the one they would be trained on are discarded and counted.
    `queue_maxsize`: finished groups that may wait while a step trains. So many groups in a row as
    `discard_queue_multiplier` smallest batches hold may fail or be discarded before the run gives up.

    Training: `min_batch_size` to `max_batch_size` groups (default: ten times as many) a train call, `max_steps`
    train calls at most, in addition to those of earlier runs. `learning_rate` to `packed_sequence_length` are
    options of `backend.train`, where None is its default; `train_options` are the further ones, by name.

    Evaluation: before the first step if `eval_at_start`, and at every published step that `eval_every_n_steps`
    divides (0: never). The next step waits for it; rollouts do not.

    Checkpoints: every `checkpoint_retention_interval` train calls what `checkpoint_retention_strategy` does not
    keep is deleted. Every published step is saved, so that `save_checkpoint` changes nothing.

    `budget` (art.config.budget.Budget, or a mapping with `usd`, `tokens`, `seconds`) ends the run after the step that reaches
    it, earlier runs counted; `stopped_by` then says so.

    `trackers`: where rows are reported to besides the model's `report_metrics`, as in `art.fit`.

    Resuming: after each step the model's state says which scenarios are done; `resume` goes on there, gives those
    out again whose groups were not trained, and needs the same scenarios in the same order.

    `on_step(result, status)`, an attribute, is told of each train call when it has ended.

    InvalidInput and ConfigError name an option that cannot be.
    """

    on_step: OnTrained | None = None
    _asked_to_stop = False

    def __init__(
        self,
        model: TrainableModel[Any, Any],
        backend: Backend,
        rollout_fn: GroupRolloutFn,
        scenarios: Iterable[Any] | AsyncIterable[Any],
        config: Any = None,
        eval_fn: EvalFn | None = None,
        *,
        num_rollout_workers: int = 16,
        min_batch_size: int = 4,
        max_batch_size: int | None = None,
        max_steps_off_policy: int = 4,
        queue_maxsize: int | None = None,
        learning_rate: float | None = None,
        loss_fn: str | None = None,
        loss_fn_config: Mapping[str, Any] | None = None,
        normalize_advantages: bool = True,
        adam_params: Any = None,
        packed_sequence_length: int | None = None,
        max_steps: int | None = None,
        discard_queue_multiplier: int = 100,
        log_interval_seconds: float = 60.0,
        status_ewa_alpha: float = 0.2,
        total_scenarios: int | None = None,
        eval_every_n_steps: int = 20,
        eval_at_start: bool = True,
        save_checkpoint: bool = True,
        checkpoint_retention_strategy: CheckpointRetentionStrategy | None = None,
        checkpoint_retention_interval: int = 1,
        resume: bool = True,
        budget: Budget | Mapping[str, Any] | None = None,
        trackers: Sequence[Asked] = (),
        **train_options: Any,
    ) -> None:
        self._settings = PipelineSettings(
            num_rollout_workers=num_rollout_workers,
            min_batch_size=min_batch_size,
            max_batch_size=max_batch_size,
            max_steps_off_policy=max_steps_off_policy,
            queue_maxsize=queue_maxsize,
            max_steps=max_steps,
            discard_queue_multiplier=discard_queue_multiplier,
            eval_every_n_steps=eval_every_n_steps,
            eval_at_start=eval_at_start,
        )
        named = {"learning_rate": learning_rate, "loss_fn": loss_fn, "loss_fn_config": loss_fn_config}
        named |= {"adam_params": adam_params, "packed_sequence_length": packed_sequence_length}
        options = {**_options(named, normalize_advantages, save_checkpoint), **train_options}
        train_config(options, type(backend).__name__)  # refused now, not after the first batch was sampled
        retention = Retention(checkpoint_retention_strategy, checkpoint_retention_interval)
        self._program = Program(model, backend, rollout_fn, config, eval_fn, options, retention)
        if total_scenarios is None and isinstance(scenarios, Sized):
            total_scenarios = len(scenarios)
        self._reporter = StatusReporter(model.name, log_interval_seconds, status_ewa_alpha, total_scenarios)
        self._resume, self._source, self._trackers = resume, scenarios, trackers
        self._budget, self.stopped_by = budget_of(budget), ""
        self._scenarios: Scenarios | None = None
        self._run: PipelineRun | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def train(self, handle_signals: bool = True) -> None:
        """Run until `max_steps` are done, the scenarios are used up, or a stop is asked for.

        What fails beside single groups is raised: a step, an evaluation, the scenarios; TrainingFailed when group
        after group fails. Everything that runs has ended then. Calling it again goes on.
        `handle_signals`: the first Ctrl-C (or SIGTERM) ends it after the step in hand; the second does what it
        would do without this.
        """
        if self._loop is not None:
            raise Conflict(
                "this PipelineTrainer is training already", hint="make another one, or await the first"
            )
        self._loop = asyncio.get_running_loop()
        try:
            with first_signal_asks(self._signalled) if handle_signals else nullcontext():
                async with self._program.model.tracking.during(self._trackers):
                    await self._train()
        finally:
            self._run, self._loop, self._asked_to_stop = None, None, False

    def request_stop(self) -> None:
        """End `train` after the step in hand; rollouts that still run are cancelled. From any thread.

        Before `train` it keeps the next `train` from starting anything.
        """
        self._asked_to_stop = True
        loop = self._loop
        if loop is not None:
            loop.call_soon_threadsafe(self._pass_on_stop)

    def _pass_on_stop(self) -> None:
        if self._run is not None:
            self._run.request_stop()

    def _signalled(self) -> None:
        self._reporter.tell(STOPPING)
        self.request_stop()

    async def _train(self) -> None:
        model = self._program.model
        await model.register(self._program.backend)
        info = await model.info()
        said = ""
        if self._scenarios is None:
            position = Position.of_state(model.read_state()) if self._resume else Position()
            position = position.settled(info.batch)
            self._scenarios = Scenarios(self._source, position)
            said = _where_it_stands(position, info.step)
        self._reporter.begin(said)
        purse = Purse(self._budget, self._reporter.tell)
        await purse.look_back(model)
        self._run = PipelineRun(
            self._program, self._settings, self._reporter, scenarios=self._scenarios, info=info, purse=purse
        )
        self._run.on_step = self.on_step
        if self._asked_to_stop or purse.reason:
            self._run.request_stop()
        try:
            await self._run.go()
        finally:
            self.stopped_by = purse.reason
        self._reporter.tell(purse.reason)


def _options(named: Mapping[str, Any], normalize_advantages: bool, save_checkpoint: bool) -> dict[str, Any]:
    """What differs from `backend.train`'s defaults."""
    options = {name: value for name, value in named.items() if value is not None}
    # Only where it was set: openpipe-art's scale_rewards may be given in its place.
    options |= {} if normalize_advantages else {"normalize_advantages": False}
    return options | ({} if save_checkpoint else {"save_checkpoint": False})


def _where_it_stands(position: Position, step: int) -> str:
    """From where a run goes on; empty for a fresh start."""
    if not position.next:
        return ""
    done = position.next - len(position.open)
    again = (
        f", {len(position.open)} of the first {position.next} are given out again" if position.open else ""
    )
    return f"resuming at step {step}: {done} scenarios are done{again}"
