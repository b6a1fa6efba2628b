"""What the trainer found of a step's choices before its first update, for people to compare with what was served.

Axis legend: N trained tokens of a row, T sampled tokens of a choice.
"""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
from torch import Tensor

from art.store.traces import ChoiceTrace, FloatArray, trace_file, write_traces
from art.trainer.batch import Batch
from art.trainer.forward import Row

log = logging.getLogger(__name__)

Found = dict[tuple[str, int], FloatArray]
"""By choice, [T]; NaN where nothing was trained."""


def note(found: Found, row: Row, logprobs_N: Tensor) -> None:
    """Add a row's log-probabilities. They are copied: nothing of the step's arithmetic depends on it."""
    values_N = logprobs_N.detach().float().cpu().numpy()
    for index, choice in enumerate(row.choices):
        mine = row.trie.choice == index
        values_T = found.setdefault(
            (choice.call_id, choice.choice), np.full(len(choice.completion), np.nan, dtype=np.float32)
        )
        values_T[row.trie.offset[mine]] = values_N[mine]


def leave(model_dir: Path, job_id: str, batch: Batch, found: Found) -> str | None:
    """Leave the step's traces for the server, which keeps them with its rollouts; what kept it from that, if anything.

    A step is worth more than its traces: one that was trained is published without them.
    """
    nothing = np.empty(0, dtype=np.float32)
    traces = [
        ChoiceTrace(
            call_id=choice.call_id,
            choice=choice.choice,
            advantage=member.advantage,
            logprobs=found.get((choice.call_id, choice.choice), nothing),
        )
        for member in batch.trained
        for choice in member.choices
    ]
    try:
        write_traces(trace_file(model_dir, job_id), traces)
    except OSError as error:
        log.warning("the traces of %s were not written: %s", job_id, error)
        return f"the trainer's log-probabilities of this step were not kept: {error}"
    return None
