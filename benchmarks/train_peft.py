"""Part of bench_train: the trainer's forward and backward pass against a plain PEFT loop.

SmolLM2-135M with LoRA r=8 on all linear layers, 8 rollouts of 256 shared prompt tokens and 64 trained ones. The plain
loop is what one writes with PEFT: the model on one rollout after another, log-softmax of its logits, the loss over the
trained tokens, backward. Ours computes the same log-probabilities and gradients (compared before anything is timed),
once with every rollout in a row of its own and once as one trie. Both in float32 in one process on the same threads;
ours adds the adapter to its weights anew each time, as after an update. A loop that asks for the logits of trained
positions alone (`logits_to_keep`) is recorded beside it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from bench_engine import bar, ratio, timed
from peft import PeftModel
from rich.console import Console
from safetensors.torch import save_file
from torch import Tensor
from train_policy import LORA, Point, load_policy, longest, make_choices, train_rows
from transformers import AutoModelForCausalLM

from art.tokens.samples import SampledChoice
from art.trainer.base_models import resolve_base_model
from art.trainer.forward import Policy, adapter_config
from art.trainer.memory import MAX_ROW_TOKENS

GROUP, SHARED, TRAINED = 8, 256, 64
ALONE_TARGET, TREE_TARGET = 1.5, 3.3
GRADIENT_BOUND = 1e-4
"""Of the largest difference between a gradient and PEFT's, relative to that gradient's largest number."""


def plain_loop(model: Any, choices: Sequence[SampledChoice], *, trim: bool) -> tuple[int, int]:
    """What one writes with PEFT; (tokens computed, tokens trained)."""
    computed = trained = 0
    model.zero_grad(set_to_none=True)
    for choice in choices:
        ids = torch.from_numpy(np.concatenate([choice.prompt, choice.completion]))
        count = len(choice.completion)
        keep = {"logits_to_keep": count + 1} if trim else {}
        logits = model(input_ids=ids[None, :], use_cache=False, **keep).logits[0]
        logprobs = torch.log_softmax(logits.float(), dim=-1)[-count - 1 : -1]
        (-logprobs.gather(1, ids[-count:, None]).sum()).backward()
        computed += len(ids)
        trained += count
    return computed, trained


def load_plain(folder: Path, policy: Policy, scratch: Path) -> Any:
    """The policy's adapter in PEFT, trainable."""
    save_file(policy.adapter_state(), scratch / "adapter_model.safetensors")
    (scratch / "adapter_config.json").write_text(json.dumps(adapter_config(LORA, str(folder))))
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return PeftModel.from_pretrained(base, scratch, is_trainable=True).eval()


def largest_difference(policy: Policy, model: Any) -> float:
    """Between the two sides' gradients, relative to each gradient's largest number."""
    theirs = {
        name: parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and parameter.grad is not None
    }
    assert theirs.keys() == policy.parameters.keys()
    found = 0.0
    for name, parameter in policy.parameters.items():
        ours: Tensor | None = parameter.grad
        assert ours is not None
        scale = float(theirs[name].abs().max())
        found = max(found, float((ours - theirs[name]).abs().max()) / scale)
    return found


def measure_peft(
    options: argparse.Namespace, console: Console
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    folder = Path(resolve_base_model(options.model, cache_dir=options.cache_dir).path)
    policy = load_policy(folder)
    choices = make_choices(Point(SHARED, TRAINED, GROUP, 1), policy.vocab_size)
    with tempfile.TemporaryDirectory() as scratch:
        model = load_plain(folder, policy, Path(scratch))
    kinds = {
        "peft": lambda: plain_loop(model, choices, trim=False),
        "peft, logits_to_keep": lambda: plain_loop(model, choices, trim=True),
        "ours, alone": lambda: train_rows(policy, choices, longest(choices)),
        "ours, trie": lambda: train_rows(policy, choices, MAX_ROW_TOKENS),
    }
    counts: dict[str, Any] = {}
    differences = {}
    for kind, run in kinds.items():  # also warms
        computed, trained = run()
        counts[kind] = {"computed": computed, "trained": trained}
        if kind.startswith("ours"):
            differences[kind] = largest_difference(policy, model)
    assert len({count["trained"] for count in counts.values()}) == 1, counts
    console.print(f"tokens {counts}; gradients differ by {differences}")
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(options.rounds):
        for kind, run in kinds.items():
            seconds[kind].append(timed(lambda run=run: run()))
        console.print(f"round {number + 1}: " + ", ".join(f"{k} {t[-1]:.2f} s" for k, t in seconds.items()))
    tokens = GROUP * (SHARED + TRAINED)
    speedup = {kind: round(ratio(seconds["peft"], times), 3) for kind, times in seconds.items()}
    figures = {
        "model": options.model,
        "dtype": "float32",
        "forward_pass": policy.note,
        "tokens": counts,
        "sequence_tokens_per_second": {kind: round(tokens / median(t), 1) for kind, t in seconds.items()},
        "ratio_to_peft": speedup,
        "largest_gradient_difference": differences,
        "raw_seconds": seconds,
    }
    bars = [
        bar("rows alone / plain PEFT", speedup["ours, alone"], ALONE_TARGET, least=True),
        bar("one trie / plain PEFT", speedup["ours, trie"], TREE_TARGET, least=True),
        bar("gradient difference from PEFT", max(differences.values()), GRADIENT_BOUND, least=False),
    ]
    return figures, bars
