"""The part of `art doctor` that needs torch, a process of its own: `python -m art.cli._diagnosis`.

It reads the base model, plans its memory, proves its chat template, and takes two training steps with the trainer
itself: one that rewards a single token, which must become more likely, and one with a learning rate of 0, which must
move nothing. The checks are written to --out as JSON, each as soon as it is known.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from art.cli._memory_plan import plan_memory
from art.config.model import ModelConfig
from art.config.train import ResolvedTrainConfig
from art.errors import ArtError
from art.store.blobs import BlobStore
from art.testing.tiny import tiny_model
from art.tokens.proof import prove
from art.tokens.renderer import Renderer
from art.trainer.base_models import resolve_base_model
from art.trainer.checkpoint import ADAPTER, MODEL
from art.trainer.forward import choose_dtype
from art.trainer.jobs import Trainer
from art.trainer.protocol import (
    CheckpointInfo,
    ChoiceRef,
    PrepareModel,
    ResolvedBaseModel,
    TrainGroup,
    TrainJob,
    TrainOutcome,
    TrainTrajectory,
)
from art.trainer.publish import first_probe
from art.types.doctor import Check

ONE_TOKEN_RATE = {"lora": 1e-2, "full": 1e-3}
"""Learning rates of the one-token check: a step that shows in bfloat16 too."""
PROMPT_TOKENS = 16
MOVED = 1e-6
"""Nats that a log-probability may differ by between two equal passes: a GPU adds up in no fixed order."""


class Steps:
    """One model in a scratch folder, and training steps on rollouts made up for it."""

    def __init__(self, base: ResolvedBaseModel, config: ModelConfig, scratch: Path) -> None:
        self._base = base
        self._blobs = BlobStore(scratch / "blobs")
        self._trainer = Trainer()
        self._lora = config.adapter
        self.rate = ONE_TOKEN_RATE[config.training]
        self._dir = scratch / "model"
        request = PrepareModel(
            project="doctor", name="doctor", base=base, model_dir=str(self._dir), lora=self._lora
        )
        self.latest: CheckpointInfo = self._trainer.prepare_model(request)
        self.policy = self._trainer.policy(base, self._lora)

    def prompt(self) -> list[int]:
        """Tokens without a meaning."""
        return first_probe(self.policy.vocab_size, self._base.context_length, seed=1)[:PROMPT_TOKENS]

    def train(self, rewarded: list[tuple[list[int], float]], rate: float) -> TrainOutcome:
        """The next step, on completions of `prompt` with their rewards, recorded at the policy's own log-probabilities."""
        prompt, parent = self.prompt(), self.latest.step
        trajectories = []
        for number, (completion, reward) in enumerate(rewarded):
            logprobs = self.policy.probe(prompt + completion)[len(prompt) - 1 :]
            arrays = {
                "prompt_token_ids": np.array(prompt, dtype=np.int32),
                "c0.token_ids": np.array(completion, dtype=np.int32),
                "c0.logprobs": np.array(logprobs, dtype=np.float32),
            }
            ref = ChoiceRef(
                call_id=f"call-{parent}-{number}",
                choice=0,
                blob=self._blobs.append("doctor/rollout.blob", arrays),
                temperature=1.0,
                version=f"doctor/doctor@{parent}",
            )
            trajectories.append(
                TrainTrajectory(rollout_id=f"rollout-{parent}-{number}", reward=reward, choices=[ref])
            )
        config = ResolvedTrainConfig(learning_rate=self.rate)
        job = TrainJob(
            job_id=f"job-{parent}",
            project="doctor",
            name="doctor",
            batch=parent + 1,
            base=self._base,
            model_dir=str(self._dir),
            blob_dir=str(self._blobs.root),
            parent_step=parent,
            step=parent + 1,
            lora=self._lora,
            # A user may not set a rate of 0; here it is the question.
            config=config.model_copy(update={"learning_rate": rate}),
            groups=[TrainGroup(group_id="group", trajectories=trajectories)],
        )
        outcome = self._trainer.train(job, on_progress=lambda progress: None)
        self.latest = outcome.checkpoint or self.latest
        return outcome


def zero_rate(steps: Steps) -> Check:
    """A step with a learning rate of 0 publishes what it started from."""
    prompt = steps.prompt()
    completions = [prompt[:4], prompt[4:8], prompt[8:12], prompt[12:16]]
    start, before = steps.latest, steps.policy.probe(prompt)
    outcome = steps.train([(tokens, float(i % 2)) for i, tokens in enumerate(completions)], 0.0)
    after = steps.policy.probe(prompt)
    moved = max(abs(a - b) for a, b in zip(before, after, strict=True))
    changed = changed_tensors(start, steps.latest)
    figures = {"logprobs_moved": moved, "tensors_changed": len(changed), **parity_of(outcome)}
    if changed or moved > MOVED:
        return Check(
            name="zero learning rate",
            status="failed",
            detail=f"a step of size 0 changed {len(changed)} tensors and moved log-probabilities by {moved:.2g}",
            hint="this is a fault of ART or of the torch build: report it with the output of art doctor --json",
            figures=figures,
        )
    return Check(
        name="zero learning rate",
        status="ok",
        detail="a training step of size 0 moves no weight and no log-probability",
        figures=figures,
    )


def one_token(steps: Steps) -> Check:
    """Of two single tokens, the rewarded one becomes more likely beside the other."""
    prompt = steps.prompt()
    good, bad = prompt[0], next(token for token in prompt if token != prompt[0])

    def margin() -> float:
        return steps.policy.probe([*prompt, good])[-1] - steps.policy.probe([*prompt, bad])[-1]

    before = margin()
    outcome = steps.train([([good], 1.0), ([bad], 0.0)], steps.rate)
    gained = margin() - before
    figures = {"gained_nats": gained, **parity_of(outcome)}
    ok = gained > 0
    return Check(
        name="one token",
        status="ok" if ok else "failed",
        detail=f"a step that rewards one token over another moves it by {gained:+.3g} nats",
        hint=""
        if ok
        else "the gradient points the wrong way: report it with the output of art doctor --json",
        figures=figures,
    )


def changed_tensors(start: CheckpointInfo, end: CheckpointInfo) -> list[str]:
    """Names of the trained tensors that differ."""
    before, after = (
        load_file(next(file for name in (ADAPTER, MODEL) if (file := Path(each.path) / name).exists()))
        for each in (start, end)
    )
    return [name for name, tensor in before.items() if not torch.equal(tensor, after[name])]


def parity_of(outcome: TrainOutcome) -> dict[str, float]:
    """The parity check's figures."""
    return {name: value for name, value in outcome.metrics.items() if name.startswith("parity/")}


def arithmetic() -> Check:
    """Number format, threads and device of engine and trainer."""
    dtype, reason = choose_dtype("auto")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "the CPU"
    name, threads = str(dtype).removeprefix("torch."), torch.get_num_threads()
    return Check(
        name="arithmetic",
        status="ok",
        detail=f"{name} on {device} with {threads} threads: {reason}",
        figures={"dtype": name, "threads": threads, "cuda": torch.cuda.is_available()},
    )


def template(base: ResolvedBaseModel) -> Check:
    """That earlier turns stay as they were served (tokens/proof.py)."""
    proof = prove(Renderer.load(Path(base.path)))
    return Check(
        name="chat template",
        status="note" if proof.notes else "ok",
        detail="; ".join(["earlier turns stay as they were served", *proof.notes]),
        figures={"stop_token_ids": sorted(proof.stop_token_ids), "tools": not proof.tools_refused},
    )


def attempt(name: str, question: Callable[[], Check]) -> Check:
    """The check, or what kept it from being made."""
    try:
        return question()
    except ArtError as error:
        detail = f"{error.message}: {error.cause}" if error.cause else error.message
        return Check(name=name, status="failed", detail=detail, hint=error.hint)


def checks(config: ModelConfig, scratch: Path, cache_dir: Path) -> Iterator[Check]:
    """All checks of this process in order; what depends on a failed one is skipped. No base model: a tiny one."""
    yield attempt("arithmetic", arithmetic)
    found: list[ResolvedBaseModel] = []

    def describe() -> Check:
        name = config.base_model or str(tiny_model(scratch / "tiny"))
        base = resolve_base_model(name, cache_dir=cache_dir, quantization=config.quantization)
        found.append(base)
        shown = base.name if config.base_model else "a tiny model of our own (--base-model checks yours)"
        detail = f"{shown}: {base.parameters / 1e6:.3g} million parameters, context {base.context_length}"
        return Check(name="base model", status="ok", detail=detail, figures=base.model_dump())

    yield attempt("base model", describe)
    if not found:
        return
    base = found[0]
    yield attempt("chat template", lambda: template(base))
    memory = attempt("memory", lambda: plan_memory(base, config).check())
    yield memory
    if memory.status == "failed":
        for name in ("one token", "zero learning rate"):
            yield Check(name=name, status="skipped", detail="the model cannot be loaded here")
        return
    steps: list[Steps] = []

    def first() -> Check:
        steps.append(Steps(base, config, scratch))
        return one_token(steps[0])

    one = attempt("one token", first)
    yield one
    if one.status == "ok":
        yield attempt("zero learning rate", lambda: zero_rate(steps[0]))
    else:
        yield Check(
            name="zero learning rate", status="skipped", detail="the trainer does not train as it should"
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m art.cli._diagnosis")
    parser.add_argument(
        "--config", type=ModelConfig.model_validate_json, required=True, help="a ModelConfig as JSON"
    )
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--cache-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="one JSON object a line")
    options = parser.parse_args()
    with options.out.open("a") as out:
        for check in checks(options.config, options.scratch, options.cache_dir):
            out.write(json.dumps(check.model_dump()) + "\n")
            out.flush()
    return 0


if __name__ == "__main__":
    # Not sys.exit: threads of native code may keep the process alive.
    status = main()
    sys.stderr.flush()
    os._exit(status)
