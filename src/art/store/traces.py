"""What the trainer found of each choice before its first update, on its way from the trainer to the store.

One file a job, in the model's folder, until the job's end is recorded: then it lies with the tokens of its rollouts, and
goes with them. safetensors: the log-probabilities of all choices end to end, and in the header which are whose.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from art.errors import InvalidInput

FOLDER = "traces"
"""Below the model's own."""
LOGPROBS, CHOICES = "logprobs", "choices"
MOST_TOKENS = 16_000_000
"""Of one job, 64 MB; what is beyond is left out, with its advantage kept."""

FloatArray = npt.NDArray[np.float32]
_HEADER = TypeAdapter(list[tuple[str, int, float | None, int]])
"""Call, choice, advantage, tokens that follow."""


@dataclass(frozen=True, slots=True)
class ChoiceTrace:
    """Of one trained choice."""

    call_id: str
    choice: int
    advantage: float | None
    """What its loss was multiplied with; one for the whole choice."""
    logprobs: FloatArray
    """[T], the trainer's own before the first update, in nats at the call's temperature; NaN where nothing was trained.
    Empty for a choice that only a later update of the job trained."""


def trace_file(model_dir: Path, job_id: str) -> Path:
    """Where a job leaves its traces."""
    return model_dir / FOLDER / f"{job_id}.safetensors"


def write_traces(file: Path, traces: Sequence[ChoiceTrace]) -> None:
    """Leave the traces of a job, whole or not at all; those that other jobs left and nobody took are removed."""
    header, arrays, left = [], [], MOST_TOKENS
    for trace in traces:
        kept = trace.logprobs if len(trace.logprobs) <= left else trace.logprobs[:0]
        left -= len(kept)
        header.append((trace.call_id, trace.choice, trace.advantage, len(kept)))
        arrays.append(kept)
    logprobs = np.concatenate([*arrays, np.empty(0, dtype=np.float32)]).astype(np.float32)
    body = save({LOGPROBS: logprobs}, metadata={CHOICES: json.dumps(header)})
    file.parent.mkdir(parents=True, exist_ok=True)
    for old in file.parent.iterdir():
        old.unlink(missing_ok=True)
    temporary = file.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_bytes(body)
    temporary.replace(file)


def read_traces(file: Path) -> list[ChoiceTrace]:
    """The traces of a job; none where it left none. InvalidInput for a file that is damaged."""
    if not file.is_file():
        return []
    try:
        with safe_open(file, framework="numpy") as handle:
            header = _HEADER.validate_json((handle.metadata() or {}).get(CHOICES, ""))
            logprobs = handle.get_tensor(LOGPROBS)
    except (SafetensorError, ValidationError, OSError) as error:
        raise InvalidInput(f"the traces {file} cannot be read", cause=str(error)) from error
    if sum(length for *_, length in header) != len(logprobs):
        raise InvalidInput(f"the traces {file} are damaged", cause="they have not the length that they say")
    found, at = [], 0
    for call_id, choice, advantage, length in header:
        found.append(ChoiceTrace(call_id, choice, advantage, logprobs[at : at + length]))
        at += length
    return found
