"""Random adapters of a small model, and what each of them says by itself: the references of adapter_swaps."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from art.engine.protocol import Sampled, SampleRequest
from art.testing.engine_process import EngineProcess

ADAPTERS = 6
"""The base model among them."""
TOKENS = 16
"""Of an answer."""
PROMPTS = 40
"""Tried; those whose answers tell all adapters apart are used."""
LEAST_PROMPTS = 4
MARGIN = 2e-4
"""Log-probability by which each greedy token must be ahead of the next: a hundred times what another order of sums
changes in fp32, so that a different token is another adapter's."""
PROBE = [1, 2, 3, 4, 5, 6, 7, 8]
RANK = 4


def write_adapter(folder: Path, base: Path, *, seed: int) -> Path:
    """A random LoRA on every matrix of the layers, in PEFT's files, large enough to change what the model says."""
    config = json.loads((base / "config.json").read_text())
    width, inner = config["hidden_size"], config["intermediate_size"]
    head = config.get("head_dim") or width // config["num_attention_heads"]
    queries, keys = head * config["num_attention_heads"], head * config["num_key_value_heads"]
    shapes = {
        "self_attn.q_proj": (queries, width),
        "self_attn.k_proj": (keys, width),
        "self_attn.v_proj": (keys, width),
        "self_attn.o_proj": (width, queries),
        "mlp.gate_proj": (inner, width),
        "mlp.up_proj": (inner, width),
        "mlp.down_proj": (width, inner),
    }
    rng = np.random.default_rng(seed)
    tensors: dict[str, np.ndarray] = {}
    for layer in range(config["num_hidden_layers"]):
        for name, (rows, columns) in shapes.items():
            stem = f"base_model.model.model.layers.{layer}.{name}"
            a, b = rng.normal(0, 0.2, (RANK, columns)), rng.normal(0, 0.2, (rows, RANK))
            tensors[f"{stem}.lora_A.weight"] = a.astype(np.float32)
            tensors[f"{stem}.lora_B.weight"] = b.astype(np.float32)
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    described = {"peft_type": "LORA", "r": RANK, "lora_alpha": 2 * RANK, "bias": "none"}
    described["target_modules"] = sorted(name.partition(".")[2] for name in shapes)
    (folder / "adapter_config.json").write_text(json.dumps(described))
    return folder


@dataclass(frozen=True)
class References:
    """What each adapter says by itself. Adapter 0 is the base model."""

    folders: list[Path | None]
    probes: list[list[float]]
    prompts: list[list[int]]
    answers: list[list[list[int]]]
    """By adapter, then by prompt: TOKENS greedy tokens."""

    @classmethod
    def take(cls, base: Path, scratch: Path, *, seed: int) -> References:
        """Write the adapters, and have an engine that holds one at a time answer one call at a time."""
        folders: list[Path | None] = [None]
        folders += [
            write_adapter(scratch / str(number), base, seed=seed + number) for number in range(1, ADAPTERS)
        ]
        rng = random.Random(seed)
        tried = [[rng.randrange(256) for _ in range(rng.randrange(8, 40))] for _ in range(PROMPTS)]
        probes: list[list[float]] = []
        said: list[list[Sampled]] = []
        arguments = ["--base-model", str(base), "--dtype", "fp32", "--threads", "1"]
        with EngineProcess([*arguments, "--max-batch", "1", "--max-adapters", "1"]) as engine:
            for number, folder in enumerate(folders):
                version = "" if folder is None else f"alone@{number}"
                if folder is not None:
                    engine.call("load_adapter", {"version": version, "path": str(folder)})
                probes.append(engine.call("probe", {"version": version, "token_ids": PROBE})["logprobs"])
                asked = [greedy(prompt, version, top_logprobs=2) for prompt in tried]
                said.append([engine.generate(request)[0] for request in asked])
        clear = [place for place in range(PROMPTS) if tells_apart([answers[place] for answers in said])]
        if len(clear) < LEAST_PROMPTS:
            raise RuntimeError(f"only {len(clear)} of {PROMPTS} prompts tell the adapters apart")
        answers = [[answers[place].token_ids for place in clear] for answers in said]
        return cls(folders, probes, [tried[place] for place in clear], answers)


def tells_apart(answers: list[Sampled]) -> bool:
    """Whether every token is ahead of the next by MARGIN, and any two adapters differ in half of their tokens."""
    for answer in answers:
        if any(abs(row[0][1] - row[1][1]) < MARGIN for row in answer.top_logprobs):
            return False
    return all(
        sum(a != b for a, b in zip(one.token_ids, other.token_ids, strict=True)) >= TOKENS // 2
        for one, other in combinations(answers, 2)
    )


def greedy(prompt: list[int], version: str, **more: Any) -> SampleRequest:
    """A request for TOKENS greedy tokens, whatever they are."""
    return SampleRequest(prompt, version=version, max_tokens=TOKENS, temperature=0.0, **more)
