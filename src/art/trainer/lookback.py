"""What is known before the first update: the log-probabilities that ratios and penalties start from.

Usually those that were recorded, and nothing is computed. Two options cost a forward pass each: the policy's own
numbers instead of the recorded ones, and those of a reference that the policy is not to stray from.

Axis legend: N trained tokens of a row, T sampled tokens of a choice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from art.algorithms.kl import ESTIMATORS
from art.errors import UnsupportedOption
from art.tokens.samples import FloatArray, SampledChoice
from art.trainer.adapter_files import read_adapter
from art.trainer.batch import Batch
from art.trainer.checkpoint import CheckpointStore
from art.trainer.forward import Policy, Row
from art.trainer.protocol import TrainJob

Key = tuple[str, int]
"""A choice: its call and its index there."""
OnRow = Callable[[int, int], None]
"""Called after each row with (rows done, rows in all); raises to stop the job."""


@dataclass(frozen=True, slots=True)
class LookBack:
    """Log-probabilities by choice, each [T], in nats at the call's temperature; 0 where nothing is trained."""

    old: Mapping[Key, FloatArray]
    """What ratios are taken to."""
    reference: Mapping[Key, FloatArray] | None = None
    """None: the step has no penalty."""
    mean_kl: float | None = None
    """Mean over the batch's trained tokens of the penalty's estimator, in nats."""


def look_back(
    job: TrainJob, batch: Batch, policy: Policy, *, row_tokens: int, on_row: OnRow | None = None
) -> LookBack:
    """Compute what `job.config` needs to know of `policy` as it is now, the step's parent.

    NotFound or InvalidInput for a reference step or adapter that cannot be read.
    """
    config = job.config
    old: Mapping[Key, FloatArray] = {(one.call_id, one.choice): one.logprobs for one in batch.choices}
    if not config.precalculate_logprobs and not config.kl_penalty_coef:
        return LookBack(old)
    rows = policy.rows(batch.choices, budget=row_tokens)
    total = len(rows) * (int(config.precalculate_logprobs) + int(config.kl_penalty_coef > 0))
    done = 0

    def computed() -> dict[Key, FloatArray]:
        nonlocal done
        found: dict[Key, FloatArray] = {}
        for row in rows:
            found |= _logprobs(policy, row, chunk=config.logprob_calculation_chunk_size)
            done += 1
            if on_row is not None:
                on_row(done, total)
        return found

    if config.precalculate_logprobs:
        old = computed()
    if not config.kl_penalty_coef:
        return LookBack(old)
    with reference_policy(job, policy):
        reference = computed()
    kl_N = ESTIMATORS[config.estimator](_all(batch.choices, old), _all(batch.choices, reference))
    return LookBack(old, reference, float(kl_N.mean()))


@contextmanager
def reference_policy(job: TrainJob, policy: Policy) -> Iterator[None]:
    """Inside, `policy` is the reference: the base model, a step of the model, or an adapter in a folder."""
    step, folder = job.config.kl_penalty_reference_step, job.config.kl_ref_adapter_path
    if step is None and folder is None:
        with policy.adapter_off():
            yield
        return
    if step is not None:
        tensors = CheckpointStore(Path(job.model_dir)).load_adapter(step)
    else:
        if job.lora is None:
            raise UnsupportedOption(
                f"kl_ref_adapter_path={folder!r} cannot be applied",
                cause="all weights of the model are trained, and an adapter is none of its steps",
                hint="use kl_penalty_reference_step, or leave both out for the base model",
            )
        tensors = read_adapter(Path(folder or ""), job.lora, option="kl_ref_adapter_path")
    trained = policy.adapter_state()
    policy.load_adapter_state(tensors)
    try:
        yield
    finally:
        policy.load_adapter_state(trained)


def gather(row: Row, values: Mapping[Key, FloatArray]) -> Tensor:
    """[N], on the CPU; the values of the row's targets."""
    trie = row.trie
    found = torch.empty(len(trie.target), dtype=torch.float32)
    for index, choice in enumerate(row.choices):
        mine = trie.choice == index
        found[torch.from_numpy(mine)] = torch.from_numpy(
            values[choice.call_id, choice.choice][trie.offset[mine]]
        )
    return found


@torch.no_grad()
def _logprobs(policy: Policy, row: Row, *, chunk: int) -> dict[Key, FloatArray]:
    """By choice of the row, [T]."""
    computed = policy.logprobs(row, chunk=chunk)[0].cpu().numpy()
    found: dict[Key, FloatArray] = {}
    for index, choice in enumerate(row.choices):
        values = np.zeros(len(choice.completion), dtype=np.float32)
        mine = row.trie.choice == index
        values[row.trie.offset[mine]] = computed[mine]
        found[choice.call_id, choice.choice] = values
    return found


def _all(choices: Sequence[SampledChoice], values: Mapping[Key, FloatArray]) -> Tensor:
    """The values of all trained tokens, in float64."""
    trained = [values[choice.call_id, choice.choice][choice.trainable] for choice in choices]
    return torch.from_numpy(np.concatenate(trained)).double()
