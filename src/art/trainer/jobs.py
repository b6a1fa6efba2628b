"""What the trainer does when asked: publish a model's step 0, and train a job into the next step."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from art.base_model.memory import limit_private_memory, memory_bytes
from art.config.model import LoraConfig
from art.errors import InvalidInput, TrainingFailed, boundary
from art.trainer import parity, trace
from art.trainer.adapter_files import read_adapter
from art.trainer.batch import Batch, load_batch
from art.trainer.checkpoint import CheckpointStore, TrainerState
from art.trainer.figures import batch_metrics, check_finite, step_metrics
from art.trainer.forward import Dtype, Policy, adapter_config, choose_dtype
from art.trainer.lookback import look_back
from art.trainer.optimizer import Optimizer, Saved
from art.trainer.protocol import (
    CheckpointInfo,
    PrepareModel,
    Progress,
    ResolvedBaseModel,
    TrainJob,
    TrainOutcome,
)
from art.trainer.publish import first_manifest, manifest_of, starts
from art.trainer.row_plan import RowPlan
from art.trainer.step import Tally, Updater

log = logging.getLogger(__name__)

STEP_HINT = "nothing was published and the batch can be sent again; when memory ran out, set packed_sequence_length lower"


class Trainer:
    """Holds one loaded base model, and runs requests one after another."""

    def __init__(self, *, dtype: Dtype = "auto", limit_memory: bool = False) -> None:
        """`limit_memory`: let this process run out of memory before the machine does, which cannot be answered."""
        self._limit_memory = limit_memory
        self._dtype, reason = choose_dtype(dtype)
        self.notes = [f"training in {str(self._dtype).removeprefix('torch.')}: {reason}"]
        self._policy: Policy | None = None
        self._loaded: tuple[str, str, LoraConfig | None] | None = None

    def policy(self, base: ResolvedBaseModel, lora: LoraConfig | None) -> Policy:
        """The policy of this base and adapter shape, loaded when it is not the one in memory."""
        wanted = (base.path, base.sha256, lora)
        if self._policy is None or self._loaded != wanted:
            self._policy = None  # released before the next is loaded: two may not fit
            if self._limit_memory:
                limit_private_memory(None)
            self._policy = Policy.load(Path(base.path), lora=lora, dtype=self._dtype)
            self._loaded = wanted
            if self._limit_memory and self._policy.device.type == "cpu":
                limit = self._policy.body.taken.left(memory_bytes(self._policy.device))
                self._policy.known.limit = limit
                limit_private_memory(limit)
        return self._policy

    def prepare_model(self, request: PrepareModel) -> CheckpointInfo:
        """Publish the first step of a model that is not registered yet.

        What lies in its folder was left by a registration that did not end, or by a server whose store is gone. Its
        first step is kept where it is the one asked for; all else is set aside, never served under the new name.
        """
        store = CheckpointStore(Path(request.model_dir))
        if removed := store.remove_leftovers():
            log.info("removed unfinished checkpoints: %s", ", ".join(removed))
        steps = store.steps()
        kept = steps[0] if steps and starts(store, steps[0], request) else None
        if aside := store.set_aside(after=-1 if kept is None else kept):
            log.warning("set aside, because no model had them: %s", ", ".join(map(str, aside)))
        if kept is not None:
            return store.manifest(kept).info(store.folder(kept))
        if request.fork_of is not None:
            return store.fork(
                Path(request.fork_of), project=request.project, name=request.name, history=request.history
            )
        tensors = (
            read_adapter(Path(request.initial_adapter), request.lora, option="initial_adapter")
            if request.initial_adapter and request.lora is not None
            else None
        )
        policy = self.policy(request.base, request.lora)
        policy.load_adapter_state(policy.fresh_adapter if tensors is None else tensors)
        torch.manual_seed(request.seed)
        return store.write(
            first_manifest(request, policy),
            adapter=policy.adapter_state(),
            adapter_config=adapter_config(request.lora, request.base.path),
            optimizer={},
            state=TrainerState.capture(batch=0, updates=0),
        )

    def train(self, job: TrainJob, *, on_progress: Callable[[Progress], None]) -> TrainOutcome:
        """Train the job and publish its step; a job that published before returns what it returned then.

        `on_progress` may raise to cancel: nothing is published then, and the next job starts from its
        parent's files as every job does.
        """
        started = time.monotonic()
        store = CheckpointStore(Path(job.model_dir))
        store.remove_leftovers()
        if recorded := store.find_job(job.job_id, after=job.parent_step):
            return recorded
        aside = store.set_aside(after=job.step - 1)
        if aside:
            log.warning("set aside, because they were never recorded: %s", ", ".join(map(str, aside)))
        on_progress(Progress(phase="samples", done=0, total=1))
        limit = job.config.max_sequence_length or job.base.context_length
        batch = load_batch(job, max_length=min(limit, job.base.context_length))
        on_progress(Progress(phase="samples", done=1, total=1))
        metrics = batch_metrics(batch)
        if not batch.trained:
            metrics["time/step_trainer_s"] = time.monotonic() - started
            return TrainOutcome(
                step=job.parent_step,
                published=False,
                reason=batch.why_nothing(),
                metrics=metrics,
                rollouts=batch.rollout_outcomes(),
                fates=batch.choice_fates(),
                notes=batch.notes,
            )
        with boundary("the training step", TrainingFailed, hint=STEP_HINT):
            policy, optimizer, state = self._resume(job, store)
            check_tokens(batch, policy.vocab_size)
            rows = RowPlan(policy, job.config, batch.choices)
            update = partial(self._update, job, batch, rows, on_progress=on_progress)
            while (tally := rows.attempt(partial(update, policy, optimizer))) is None:
                policy, optimizer, state = self._resume(job, store)
        metrics |= step_metrics(tally)
        check_finite(metrics, policy)
        untold = trace.leave(Path(job.model_dir), job.job_id, batch, tally.found)
        metrics["time/step_trainer_s"] = time.monotonic() - started
        on_progress(Progress(phase="publish", done=0, total=1))
        outcome = TrainOutcome(
            step=job.step,
            published=True,
            metrics=metrics,
            rollouts=batch.rollout_outcomes(),
            fates=batch.choice_fates(),
            notes=[
                *batch.notes,
                *self.notes,
                policy.note,
                *rows.notes,
                *optimizer.notes,
                *filter(None, [untold]),
            ],
        )
        info = self._publish(job, store, batch, policy, optimizer, state, outcome)
        return outcome.model_copy(update={"checkpoint": info})

    def _resume(self, job: TrainJob, store: CheckpointStore) -> tuple[Policy, Optimizer, TrainerState]:
        """Adapter, optimizer and random state of the parent step, always from its files."""
        policy = self.policy(job.base, job.lora)
        policy.load_adapter_state(store.load_adapter(job.parent_step))
        state = store.load_state(job.parent_step)
        state.restore_rng()
        saved = Saved.of("rl", store.load_optimizer(job.parent_step), state.optimizers)
        before = state.updates - state.sft_updates
        optimizer = Optimizer(policy.parameters, job.config, saved, updates=before)
        return policy, optimizer, state

    def _update(
        self,
        job: TrainJob,
        batch: Batch,
        rows: RowPlan,
        policy: Policy,
        optimizer: Optimizer,
        *,
        on_progress: Callable[[Progress], None],
    ) -> Tally:
        def on_lookback(done: int, total: int) -> None:
            on_progress(Progress(phase="lookback", done=done, total=total))

        def on_row(done: int, total: int) -> None:
            on_progress(Progress(phase="forward", done=done, total=total))

        def check_parity(tally: Tally) -> None:
            parity.check(torch.cat(tally.differences), batch.choices, policy, job.config)

        if given_up := policy.verify(batch.choices, chunk=job.config.logprob_calculation_chunk_size):
            rows.notes.append(given_up)
        known = look_back(job, batch, policy, row_tokens=rows.tokens, on_row=on_lookback)
        updater = Updater(policy, optimizer, job.config, row_tokens=rows.tokens, on_row=on_row)
        tally = updater.run(batch, known, before_first_update=check_parity)
        on_progress(Progress(phase="update", done=len(tally.grad_norms), total=len(tally.grad_norms)))
        return tally

    def _publish(
        self,
        job: TrainJob,
        store: CheckpointStore,
        batch: Batch,
        policy: Policy,
        optimizer: Optimizer,
        parent: TrainerState,
        outcome: TrainOutcome,
    ) -> CheckpointInfo:
        manifest = manifest_of(
            job,
            policy,
            outcome,
            longest=max(batch.choices, key=lambda choice: choice.length),
            sample_digest=batch.digest(),
        )
        updates = parent.updates + int(outcome.metrics["data/step_num_gradient_steps"])
        return store.write(
            manifest,
            adapter=policy.adapter_state(),
            adapter_config=adapter_config(job.lora, job.base.path),
            optimizer=optimizer.state(),
            state=TrainerState.capture(
                batch=job.batch,
                updates=updates,
                sft_updates=parent.sft_updates,
                optimizers={**parent.optimizers, "rl": job.config.optimizer},
            ),
        )


def check_tokens(batch: Batch, vocab_size: int) -> None:
    """InvalidInput for a token the model does not have: the record belongs to another model."""
    for choice in batch.choices:
        path = choice.path
        top = max(int(path.max()), int(choice.completion.max()))
        if top >= vocab_size or int(path.min()) < 0:
            raise InvalidInput(
                f"call {choice.call_id} holds token {top}; the model has {vocab_size} tokens",
                cause="the call was recorded with another base model",
                hint="train on rollouts of this model",
            )
