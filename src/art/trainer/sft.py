"""Supervised fine-tuning: the model is made to give the answers of demonstrations.

One call is a row of optimizer updates on batches of examples, and publishes one step. The loss of an update is
the mean negative log-likelihood of its trained tokens (cross-entropy in nats at temperature 1),

    L = -1/N sum_i log p(y_i | what stands before it),

so a long answer weighs more than a short one, as is usual for SFT. Batches are normalised as a whole: how they are
cut into rows changes nothing. Prompts that examples share are computed once.

The optimizer's moments of supervised training lie beside those of reinforcement learning in
`optimizer.safetensors`, under `sft.`: the gradients differ by orders of magnitude, and second moments of the one would
hold back the other for a hundred updates. Calls that follow one another go on with the moments of the last, so
training a file in chunks is training it at once.

Axis legend: N trained tokens.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from art.errors import InvalidInput, TrainingFailed, boundary
from art.store.blobs import BlobStore
from art.tokens.samples import SampledChoice
from art.tokens.sft_samples import Trained, from_arrays
from art.trainer.checkpoint import CheckpointStore, TrainerState
from art.trainer.figures import check_finite
from art.trainer.forward import adapter_config
from art.trainer.jobs import STEP_HINT, Trainer
from art.trainer.optimizer import MOMENTS, Optimizer, Saved
from art.trainer.protocol import CheckpointInfo, Progress, SftJob, TrainOutcome
from art.trainer.publish import manifest_of
from art.trainer.row_plan import RowPlan

log = logging.getLogger(__name__)

OnProgress = Callable[[Progress], None]


def train_sft(trainer: Trainer, job: SftJob, *, on_progress: OnProgress) -> TrainOutcome:
    """Train the job and publish its step; a job that published before returns what it returned then.

    `on_progress` may raise to cancel, as for `Trainer.train`.
    """
    started = time.monotonic()
    store = CheckpointStore(Path(job.model_dir))
    store.remove_leftovers()
    if recorded := store.find_job(job.job_id, after=job.parent_step):
        return recorded
    if aside := store.set_aside(after=job.step - 1):
        log.warning("set aside, because they were never recorded: %s", ", ".join(map(str, aside)))
    on_progress(Progress(phase="samples", done=0, total=1))
    examples = Examples.load(job)
    on_progress(Progress(phase="samples", done=1, total=1))
    metrics = {
        "data/step_num_trajectories": float(job.sft.examples),
        "data/step_num_dropped_trajectories": float(job.sft.left_out),
    }
    if not examples.choices:
        reason = f"none of the {job.sft.examples} trajectories can be trained: all are too long"
        metrics["data/step_num_gradient_steps"] = 0.0
        return TrainOutcome(step=job.parent_step, published=False, reason=reason, metrics=metrics)
    with boundary("the training step", TrainingFailed, hint=STEP_HINT):
        run = _Run(trainer, job, store, examples)
        examples.check_tokens(run.policy.vocab_size)
        run.train(examples, on_progress)
    metrics |= run.metrics()
    check_finite(metrics, run.policy)
    metrics["time/step_trainer_s"] = time.monotonic() - started
    on_progress(Progress(phase="publish", done=0, total=1))
    outcome = TrainOutcome(step=job.step, published=True, metrics=metrics, notes=run.notes())
    return outcome.model_copy(update={"checkpoint": run.publish(examples, outcome)})


@dataclass(frozen=True)
class Examples:
    """A job's examples as the policy computes them."""

    choices: dict[int, list[SampledChoice]]
    """By example; those that were left out, or are not in the order, are not here."""
    order: list[int]
    """Examples in the order of training."""
    digest: str
    """sha256 of the tokens, what is trained of them, and the order."""

    @classmethod
    def load(cls, job: SftJob) -> Examples:
        """Read what the gateway rendered. InvalidInput when the file is damaged."""
        arrays = BlobStore(Path(job.blob_dir)).read(job.sft.blob)
        sequences, order = from_arrays(arrays)
        wanted = set(order)
        digest = hashlib.sha256()
        for name in sorted(arrays):
            digest.update(np.ascontiguousarray(arrays[name]).tobytes())
        choices = {
            example: [_choice(one, f"example {example}.{part}") for part, one in enumerate(found)]
            for example, found in sequences.items()
            if example in wanted
        }
        return cls(choices=choices, order=order, digest=digest.hexdigest())

    def batches(self, size: int) -> Iterator[list[SampledChoice]]:
        """The choices of each update, in order; an update all of whose examples were left out has none."""
        for start in range(0, len(self.order), size):
            chosen = self.order[start : start + size]
            yield [choice for example in chosen for choice in self.choices.get(example, ())]

    def check_tokens(self, vocab_size: int) -> None:
        """InvalidInput for a token that the model does not have."""
        for example, found in self.choices.items():
            top = max(max(int(one.prompt.max()), int(one.completion.max())) for one in found)
            if top >= vocab_size:
                raise InvalidInput(
                    f"example {example} holds token {top}; the model has {vocab_size} tokens",
                    cause="the tokenizer in the model's folder has more tokens than the model",
                    hint="use the tokenizer that the base model came with",
                )

    def trained(self) -> list[SampledChoice]:
        """All sequences."""
        return [choice for choices in self.choices.values() for choice in choices]

    def longest(self) -> SampledChoice:
        """The longest sequence; the first of equals."""
        return max(self.trained(), key=lambda choice: choice.length)


def _choice(sequence: Trained, name: str) -> SampledChoice:
    """A sequence as a choice whose completion starts at the first trained token."""
    first = int(np.argmax(sequence.trained))
    completion = sequence.token_ids[first:]
    return SampledChoice(
        call_id=name,
        choice=0,
        rollout=0,
        prompt=sequence.token_ids[:first],
        completion=completion,
        logprobs=np.zeros(len(completion), dtype=np.float32),
        trainable=sequence.trained[first:],
        temperature=1.0,
    )


@dataclass(slots=True)
class Figures:
    """Sums over the rows of one update."""

    loss: float = 0.0
    entropy: float = 0.0
    targets: int = 0
    computed: int = 0
    rows: int = 0


@dataclass(slots=True)
class Sums:
    """Over the updates of a call."""

    losses: list[float] = field(default_factory=list)
    grad_norms: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    entropy: float = 0.0
    targets: int = 0
    computed: int = 0
    rows: int = 0

    def add(self, update: Figures) -> None:
        """One more."""
        self.losses.append(update.loss)
        self.entropy += update.entropy
        self.targets += update.targets
        self.computed += update.computed
        self.rows += update.rows


class _Run:
    """One job on a policy whose adapter and optimizer are those of the parent step."""

    def __init__(self, trainer: Trainer, job: SftJob, store: CheckpointStore, examples: Examples) -> None:
        self._job = job
        self._store = store
        self._config = job.sft.config
        self.policy = trainer.policy(job.base, job.lora)
        self.policy.load_adapter_state(store.load_adapter(job.parent_step))
        self._state = store.load_state(job.parent_step)
        self._state.restore_rng()
        self._saved = store.load_optimizer(job.parent_step)
        saved = Saved.of("sft", self._saved, self._state.optimizers)
        before = 0 if self._config.schedule_updates is None else self._state.sft_updates
        self._optimizer = Optimizer(self.policy.parameters, self._config, saved, updates=before)
        self._rows = RowPlan(self.policy, self._config, examples.trained())
        self._trainer_notes = trainer.notes
        self._sums = Sums()

    def train(self, examples: Examples, on_progress: OnProgress) -> None:
        """All updates. TrainingFailed for a loss or gradient that is not finite."""
        peaks = self._config.learning_rates
        for number, choices in enumerate(examples.batches(self._config.batch_size)):
            if not choices:
                continue
            rate = self._optimizer.rate(peaks[number], total=len(peaks))
            self._optimizer.set_step_size(rate)
            self._sums.rates.append(rate)

            def on_row(number: int = number) -> None:
                on_progress(Progress(phase="forward", done=number, total=len(peaks)))

            loss = self._update(choices, on_row)
            figures = {"loss/train": loss, "loss/learning_rate": rate}
            on_progress(Progress(phase="update", done=number + 1, total=len(peaks), metrics=figures))

    def _update(self, choices: Sequence[SampledChoice], on_row: Callable[[], None]) -> float:
        """One optimizer update; its loss."""
        sums, gradient = self._sums, partial(self._gradient, choices, on_row)
        while (found := self._rows.attempt(gradient)) is None:
            pass
        sums.add(found)
        parameters = [p for p in self.policy.parameters.values() if p.grad is not None]
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, self._config.max_grad_norm))
        if not math.isfinite(found.loss) or not math.isfinite(norm):
            raise TrainingFailed(
                f"The loss is {found.loss} and the gradient's norm {norm}",
                cause="a forward or backward pass overflowed",
                hint="lower learning_rate; nothing was published",
            )
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        sums.grad_norms.append(norm)
        return found.loss

    def _gradient(self, choices: Sequence[SampledChoice], on_row: Callable[[], None]) -> Figures:
        """The gradient of one update, from nothing."""
        chunk = self._config.logprob_calculation_chunk_size
        if given_up := self.policy.verify(choices, chunk=chunk):
            self._rows.notes.append(given_up)
        self._optimizer.zero_grad(set_to_none=True)
        count = sum(int(choice.trainable.sum()) for choice in choices)
        found = Figures()
        for row in self.policy.rows(choices, budget=self._rows.tokens):
            on_row()
            logprobs_N, entropy_N = self.policy.logprobs(row, chunk=chunk)
            loss = nll(logprobs_N, count)
            loss.backward()
            found.loss += float(loss.detach())
            found.entropy += float(entropy_N.sum())
            found.targets += len(logprobs_N)
            found.computed += row.trie.size
            found.rows += 1
        return found

    def notes(self) -> list[str]:
        """Automatic choices with their reasons."""
        return [*self._trainer_notes, self.policy.note, *self._rows.notes, *self._optimizer.notes]

    def metrics(self) -> dict[str, float]:
        """Figures of the call; `loss/train` and `loss/grad_norm` are means over its updates."""
        sums = self._sums
        updates = len(sums.losses)
        return {
            "loss/train": sum(sums.losses) / updates,
            "loss/train_last": sums.losses[-1],
            "loss/entropy": sums.entropy / sums.targets,
            "loss/grad_norm": sum(sums.grad_norms) / updates,
            "loss/learning_rate": sums.rates[-1],
            "data/step_num_gradient_steps": float(updates),
            "data/step_num_datums": float(sums.rows),
            "data/step_trainer_tokens": float(sums.computed),
            "data/step_trained_tokens": float(sums.targets),
        }

    def publish(self, examples: Examples, outcome: TrainOutcome) -> CheckpointInfo:
        """Write the step."""
        job, policy = self._job, self.policy
        manifest = manifest_of(
            job, policy, outcome, longest=examples.longest(), sample_digest=examples.digest
        )
        moments = {name: value for name, value in self._saved.items() if not name.startswith(MOMENTS)}
        for name, value in self._optimizer.state().items():
            moments[MOMENTS + name] = value
        made = len(self._sums.losses)
        return self._store.write(
            manifest,
            adapter=policy.adapter_state(),
            adapter_config=adapter_config(job.lora, job.base.path),
            optimizer=moments,
            state=TrainerState.capture(
                batch=job.batch,
                updates=self._state.updates + made,
                sft_updates=self._state.sft_updates + made,
                optimizers={**self._state.optimizers, "sft": self._config.optimizer},
            ),
        )


def nll(logprobs_N: Tensor, count: int) -> Tensor:
    """A row's part of the loss: the negative log-likelihood of its tokens over the `count` tokens of the update."""
    return -logprobs_N.sum() / count
