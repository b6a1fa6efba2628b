"""What the trainer's tests share: rollouts sampled by plain transformers and PEFT, written as the store writes them.

Nothing here uses the trainer's forward pass, so that parity and learning are checked against another path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from art.config.model import LoraConfig
from art.config.train import ResolvedTrainConfig
from art.store.blobs import BlobStore
from art.trainer.protocol import (
    ChoiceRef,
    PrepareModel,
    ResolvedBaseModel,
    TrainGroup,
    TrainJob,
    TrainTrajectory,
)

LORA = LoraConfig(r=4, alpha=8.0)
STOP = 257
"""<|im_end|> of the tiny model."""


@dataclass
class Sample:
    """One sampled completion."""

    prompt: list[int]
    tokens: list[int]
    logprobs: list[float]


def load_peft(base: Path, checkpoint: Path) -> Any:
    """The checkpoint as any PEFT user loads it."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    return PeftModel.from_pretrained(model, checkpoint).eval()


@torch.no_grad()
def sample(
    model: Any,
    prompt: Sequence[int],
    count: int,
    *,
    seed: int,
    max_tokens: int = 8,
    temperature: float = 1.0,
) -> list[Sample]:
    """`count` completions of one prompt, with the log-probabilities they were sampled at."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.tensor([list(prompt)] * count)
    done = torch.zeros(count, dtype=torch.bool)
    samples = [Sample(prompt=list(prompt), tokens=[], logprobs=[]) for _ in range(count)]
    for _ in range(max_tokens):
        logprobs = torch.log_softmax(model(input_ids=ids).logits[:, -1].float() / temperature, dim=-1)
        drawn = torch.multinomial(logprobs.exp(), 1, generator=generator)[:, 0]
        for row, token in enumerate(drawn.tolist()):
            if not done[row]:
                samples[row].tokens.append(token)
                samples[row].logprobs.append(float(logprobs[row, token]))
        done |= drawn == STOP
        ids = torch.cat([ids, drawn[:, None]], dim=1)
        if done.all():
            break
    return samples


class Recorder:
    """Writes samples into blobs and makes jobs of them."""

    def __init__(self, root: Path, base: ResolvedBaseModel, *, lora: LoraConfig | None = LORA) -> None:
        self.base = base
        self.lora = lora
        self.model_dir = root / "project" / "models" / "agent"
        self.blob_dir = root / "blobs"
        self._blobs = BlobStore(self.blob_dir)
        self._calls = 0

    def prepare(self, **changes: Any) -> PrepareModel:
        return PrepareModel(
            project="project",
            name="agent",
            base=self.base,
            model_dir=str(self.model_dir),
            lora=self.lora,
            **changes,
        )

    def call(
        self,
        sampled: Sample,
        *,
        step: int = 0,
        temperature: float = 1.0,
        weight: float = 1.0,
        version: str | None = None,
        trainable: Sequence[bool] | None = None,
    ) -> ChoiceRef:
        """Record one call with one choice."""
        self._calls += 1
        arrays: dict[str, np.ndarray[Any, Any]] = {
            "prompt_token_ids": np.array(sampled.prompt, dtype=np.int32),
            "c0.token_ids": np.array(sampled.tokens, dtype=np.int32),
            "c0.logprobs": np.array(sampled.logprobs, dtype=np.float32),
        }
        if trainable is not None:
            arrays["c0.trainable"] = np.array(trainable, dtype=np.bool_)
        return ChoiceRef(
            call_id=f"call-{self._calls}",
            choice=0,
            blob=self._blobs.append("project/rollout.blob", arrays),
            temperature=temperature,
            version=version or f"project/agent@{step}",
            weight=weight,
        )

    def trajectory(self, reward: float, *choices: ChoiceRef, weight: float = 1.0) -> TrainTrajectory:
        return TrainTrajectory(
            rollout_id=f"rollout-{choices[0].call_id if choices else self._calls}",
            reward=reward,
            choices=list(choices),
            weight=weight,
        )

    def job(
        self, groups: Sequence[Sequence[TrainTrajectory]], *, parent: int = 0, **changes: Any
    ) -> TrainJob:
        config = {"learning_rate": 1e-3, **changes.pop("config", {})}
        return TrainJob(
            job_id=changes.pop("job_id", f"job-{parent + 1}"),
            project="project",
            name="agent",
            batch=parent + 1,
            base=self.base,
            model_dir=str(self.model_dir),
            blob_dir=str(self.blob_dir),
            parent_step=parent,
            step=parent + 1,
            lora=self.lora,
            config=ResolvedTrainConfig(**config),
            groups=[
                TrainGroup(group_id=f"group-{index}", trajectories=list(members))
                for index, members in enumerate(groups)
            ],
            **changes,
        )

    def sampled_job(
        self,
        model: Any,
        prompts: Sequence[Sequence[int]],
        reward: Callable[[Sample], float],
        *,
        parent: int,
        size: int = 8,
        seed: int = 0,
        **changes: Any,
    ) -> tuple[TrainJob, list[float]]:
        """A job of fresh one-call rollouts, and their rewards."""
        rewards: list[float] = []
        groups = []
        for index, prompt in enumerate(prompts):
            members = []
            for sampled in sample(model, prompt, size, seed=seed * 1000 + index):
                rewards.append(reward(sampled))
                members.append(self.trajectory(rewards[-1], self.call(sampled, step=parent)))
            groups.append(members)
        return self.job(groups, parent=parent, **changes), rewards
