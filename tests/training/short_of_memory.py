"""A training step in a process that may take little more memory than it has: `python short_of_memory.py BASE FOLDER`.

The limit is set when everything is loaded and a small step has been taken, so that what fails is an allocation for a row.
Prints a line of JSON.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from trainer_kit import Recorder, Sample

from art.base_model.memory import limit_private_memory, memory_bytes, private_memory
from art.trainer.base_models import describe
from art.trainer.checkpoint import CheckpointStore
from art.trainer.footprint import footprint
from art.trainer.jobs import Trainer
from art.trainer.protocol import ResolvedBaseModel, TrainJob, TrainOutcome

NO_PARITY = {"parity_mean": 1e9, "parity_p99": 1e9, "parity_k3": 1e9}
ROLLOUTS, TOKENS = 8, 500
"""A row of all of them is just under the longest that is chosen."""
ROOM = 0.75
"""Of what a row of all rollouts keeps, on top of what the process has: half a row fits with what is not kept."""


def job(recorder: Recorder, tokens: int, **config: Any) -> TrainJob:
    """Rollouts of `tokens` tokens that share nothing."""
    rng = np.random.default_rng(0)
    members = []
    for index in range(ROLLOUTS):
        prompt, completion = rng.integers(0, 250, (2, tokens // 2)).tolist()
        one = Sample([index, *prompt[1:]], completion, [-5.5] * len(completion))
        members.append(recorder.trajectory(index % 2, recorder.call(one)))
    return recorder.job([members], config={**NO_PARITY, **config})


def step(trainer: Trainer, folder: Path, base: ResolvedBaseModel, tokens: int, **config: Any) -> TrainOutcome:
    """The first step of a new model."""
    recorder = Recorder(folder, base)
    trainer.prepare_model(recorder.prepare())
    return trainer.train(job(recorder, tokens, **config), on_progress=lambda progress: None)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    store = CheckpointStore(folder / "project" / "models" / "agent")
    return {**store.load_adapter(1), **store.load_optimizer(1)}


def main() -> None:
    base_folder, folder = map(Path, sys.argv[1:])
    torch.set_num_threads(1)
    base = describe(base_folder, name="tiny", source="folder")
    trainer = Trainer(dtype="fp32", limit_memory=True)
    step(trainer, folder / "first", base, 20)
    policy = trainer.policy(base, Recorder(folder, base).lora)
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    whole = ROLLOUTS * (TOKENS - 1)
    room = int(ROOM * whole * footprint(policy).plain)
    policy.known.limit = private_memory()[1] + room
    limit_private_memory(policy.known.limit)
    outcome = step(trainer, folder / "short", base, TOKENS)
    limit_private_memory(None)
    rows, policy.known.row_limit = policy.known.row_limit or 0, None
    step(trainer, folder / "plain", base, TOKENS, packed_sequence_length=rows or None)
    short, plain = weights(folder / "short"), weights(folder / "plain")
    told = {
        "limited": private_memory()[1] < limit < 1.5 * memory_bytes(policy.device),
        "whole": whole,
        "rows": rows,
        "notes": outcome.notes,
        "datums": outcome.metrics["data/step_num_datums"],
        "equal": all(torch.equal(short[name], plain[name]) for name in short | plain),
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
