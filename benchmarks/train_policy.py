"""What bench_train's parts share: groups of random rollouts, a policy with an adapter, and a pass over its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from art.config.model import LoraConfig
from art.tokens.samples import SampledChoice
from art.trainer.forward import Policy

LORA = LoraConfig(r=8, alpha=16.0)
CHUNK = 1024
"""The default of logprob_calculation_chunk_size."""
RESULT_TOKENS = 16
"""Between two calls: what a tool or a user says."""


@dataclass(frozen=True)
class Point:
    """A group of rollouts: tokens of the shared prompt and of a completion, rollouts, calls of each."""

    prompt: int
    completion: int
    group: int
    turns: int

    @property
    def name(self) -> str:
        return f"prompt {self.prompt}, completion {self.completion}, group {self.group}, turns {self.turns}"


def make_choices(point: Point, vocab: int, *, seed: int = 0) -> list[SampledChoice]:
    """A group of rollouts of random tokens; every call continues its rollout's one before."""
    rng = np.random.default_rng(seed)
    prompt = rng.integers(0, vocab, point.prompt)
    choices = []
    for rollout in range(point.group):
        history = prompt
        for turn in range(point.turns):
            completion = rng.integers(0, vocab, point.completion)
            choices.append(
                SampledChoice(
                    call_id=f"{rollout}.{turn}",
                    choice=0,
                    rollout=rollout,
                    prompt=history,
                    completion=completion,
                    logprobs=np.zeros(len(completion), dtype=np.float32),
                    trainable=np.ones(len(completion), dtype=np.bool_),
                    temperature=1.0,
                )
            )
            history = np.concatenate([history, completion, rng.integers(0, vocab, RESULT_TOKENS)])
    return choices


def load_policy(folder: Path) -> Policy:
    """In float32, with an adapter that does something."""
    policy = Policy.load(folder, lora=LORA, dtype=torch.float32)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in policy.parameters.items():
            if "lora_B" in name:
                parameter.normal_(std=0.01, generator=generator)
    return policy


def train_rows(policy: Policy, choices: Sequence[SampledChoice], budget: int) -> tuple[int, int]:
    """Forward and backward over all rows, as a step does; (tokens computed, tokens trained)."""
    computed = trained = 0
    with torch.no_grad():
        for parameter in policy.parameters.values():
            parameter.grad = None
            parameter.mul_(1.0)  # an update would have changed it
    for row in policy.rows(choices, budget=budget):
        logprobs, _ = policy.logprobs(row, chunk=CHUNK)
        (-logprobs.sum()).backward()
        computed += row.trie.size
        trained += len(row.target)
    return computed, trained


def longest(choices: Sequence[SampledChoice]) -> int:
    """The budget that leaves every rollout a row of its own, where all are of one length."""
    return max(len(choice.path) for choice in choices)
