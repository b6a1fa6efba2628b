"""Part of bench_train: the trainer's forward and backward pass against a plain PEFT loop.

SmolLM2-135M with LoRA r=8 on all linear layers, 8 rollouts of 256 shared prompt tokens and 64 trained ones. The plain
loop is what one writes with PEFT: the model on one rollout after another, log-softmax of its logits, the loss over the
trained tokens, backward. Ours computes the same log-probabilities and gradients (compared after the timing): as one trie;
with nothing shared, which are rollouts of the same lengths on prompts of their own, packed as the trainer packs them; and with
every rollout in a row of its own. Both in float32 in one process on the same threads, and
held against PEFT in float64 (its float32 is itself off by more than 1e-4 here, so that it is no reference);
ours adds the adapter to its weights anew each time, as after an update. A loop that asks for the logits of trained
positions alone (`logits_to_keep`) is recorded beside it, and so are the products of matrices that no loop over rows can do
without: each token by each frozen matrix, forward and backward. The plain loop's time over theirs is what a perfect trainer
of rows would reach on this machine.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
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

from art.base_model.files import read_json
from art.base_model.llama import LlamaConfig
from art.tokens.samples import SampledChoice
from art.trainer.base_models import resolve_base_model
from art.trainer.forward import Policy, adapter_config
from art.trainer.memory import MAX_ROW_TOKENS

GROUP, SHARED, TRAINED = 8, 256, 64
UNSHARED_TARGET, TREE_TARGET = 1.5, 3.3
PACKING_BOUND = 1e-4
"""Of the largest difference between the gradients of rows alone and of one trie."""
ROUNDING_BOUND = 2.0
"""Our error in float32 over that of PEFT's float32, both against PEFT in float64."""
Gradients = dict[str, Tensor]


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


class Products:
    """The products of matrices of one pass over rows: inputs by weights and slopes by weights, the head's for trained tokens."""

    def __init__(self, folder: Path, choices: Sequence[SampledChoice]) -> None:
        config = LlamaConfig.read(read_json(folder / "config.json"))
        hidden, mlp = config.hidden_size, config.mlp_size
        query, key = config.query_heads * config.head_dim, config.kv_heads * config.head_dim
        shapes = [(query + 2 * key, hidden), (hidden, query), (2 * mlp, hidden), (hidden, mlp)]
        self._layers = [torch.randn(shape) for _ in range(config.layers) for shape in shapes]
        self._head_V_E = torch.randn(config.vocab_size, hidden)
        self._rows = [(len(c.path) - 1, len(c.completion)) for c in choices]
        sizes = {size for weight in [*self._layers, self._head_V_E] for size in weight.shape}
        self._inputs = {size: torch.randn(max(row for row, _ in self._rows), size) for size in sizes}

    @torch.no_grad()
    def __call__(self) -> tuple[int, int]:
        """(tokens computed, tokens trained)."""
        for tokens, trained in self._rows:
            work = [(weight, tokens) for weight in self._layers] + [(self._head_V_E, trained)]
            for weight_O_I, count in work:
                self._inputs[weight_O_I.shape[1]][:count] @ weight_O_I.T
            for weight_O_I, count in reversed(work):
                self._inputs[weight_O_I.shape[0]][:count] @ weight_O_I
        return sum(tokens for tokens, _ in self._rows), sum(trained for _, trained in self._rows)


def load_plain(folder: Path, policy: Policy, scratch: Path) -> Any:
    """The policy's adapter in PEFT, trainable."""
    save_file(policy.adapter_state(), scratch / "adapter_model.safetensors")
    (scratch / "adapter_config.json").write_text(json.dumps(adapter_config(LORA, str(folder))))
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return PeftModel.from_pretrained(base, scratch, is_trainable=True).eval()


def gradients(parameters: Iterable[tuple[str, Tensor]]) -> Gradients:
    """A copy of those of the parameters that are trained."""
    return {name: p.grad.clone() for name, p in parameters if p.requires_grad and p.grad is not None}


def largest_difference(found: Gradients, reference: Gradients) -> float:
    """Over all matrices, relative to each one's largest number."""
    assert found.keys() == reference.keys()
    return max(
        float((found[name].double() - right.double()).abs().max() / right.double().abs().max())
        for name, right in reference.items()
    )


def unshared(vocab: int) -> list[SampledChoice]:
    """As many rollouts as the group has, each on a prompt of its own."""
    apart = (make_choices(Point(SHARED, TRAINED, 1, 1), vocab, seed=seed)[0] for seed in range(1, GROUP + 1))
    return [replace(choice, call_id=str(number), rollout=number) for number, choice in enumerate(apart)]


def compare_gradients(
    policy: Policy, model: Any, choices: Sequence[SampledChoice], apart: Sequence[SampledChoice]
) -> dict[str, float]:
    """Each kind against PEFT in float64, and ours against one another. Leaves the model in float64."""
    found: dict[str, Gradients] = {}
    for kind, budget in (("packed", MAX_ROW_TOKENS), ("apart", longest(apart))):
        train_rows(policy, apart, budget)
        found[kind] = gradients(policy.parameters.items())
    packing = largest_difference(found.pop("packed"), found.pop("apart"))
    plain_loop(model, choices, trim=False)
    found["peft"] = gradients(model.named_parameters())
    for kind, budget in (("ours, alone", longest(choices)), ("ours, trie", MAX_ROW_TOKENS)):
        train_rows(policy, choices, budget)
        found[kind] = gradients(policy.parameters.items())
    model.double()
    plain_loop(model, choices, trim=False)
    exact = gradients(model.named_parameters())
    differences = {f"{kind} - float64": largest_difference(grads, exact) for kind, grads in found.items()}
    differences["ours, packed - alone"] = packing
    differences["ours, trie - alone"] = largest_difference(found["ours, trie"], found["ours, alone"])
    differences["ours, trie - peft"] = largest_difference(found["ours, trie"], found["peft"])
    return differences


def measure_peft(
    options: argparse.Namespace, console: Console
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    folder = Path(resolve_base_model(options.model, cache_dir=options.cache_dir).path)
    policy = load_policy(folder)
    choices = make_choices(Point(SHARED, TRAINED, GROUP, 1), policy.vocab_size)
    apart = unshared(policy.vocab_size)
    with tempfile.TemporaryDirectory() as scratch:
        model = load_plain(folder, policy, Path(scratch))
    kinds = {
        "peft": lambda: plain_loop(model, choices, trim=False),
        "peft, logits_to_keep": lambda: plain_loop(model, choices, trim=True),
        "ours, alone": lambda: train_rows(policy, choices, longest(choices)),
        "ours, packed": lambda: train_rows(policy, apart, MAX_ROW_TOKENS),
        "ours, trie": lambda: train_rows(policy, choices, MAX_ROW_TOKENS),
        "products alone": Products(folder, choices),
    }
    counts: dict[str, Any] = {}
    for kind, run in kinds.items():  # also warms
        computed, trained = run()
        counts[kind] = {"computed": computed, "trained": trained}
    assert len({count["trained"] for count in counts.values()}) == 1, counts
    console.print(f"tokens {counts}")
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(options.rounds):
        for kind, run in kinds.items():
            seconds[kind].append(timed(lambda run=run: run()))
        console.print(f"round {number + 1}: " + ", ".join(f"{k} {t[-1]:.2f} s" for k, t in seconds.items()))
    differences = compare_gradients(policy, model, choices, apart)
    console.print(f"gradients differ by {differences}")
    rounding = max(differences["ours, alone - float64"], differences["ours, trie - float64"])
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
        bar("rows alone / plain PEFT", speedup["ours, alone"], UNSHARED_TARGET, least=True),
        bar("nothing shared, packed / plain PEFT", speedup["ours, packed"], UNSHARED_TARGET, least=True),
        bar("one trie / plain PEFT", speedup["ours, trie"], TREE_TARGET, least=True),
        bar("gradients: trie - alone", differences["ours, trie - alone"], PACKING_BOUND, least=False),
        bar("gradients: packed - alone", differences["ours, packed - alone"], PACKING_BOUND, least=False),
        bar(
            "gradients: our error / PEFT's, against float64",
            rounding / differences["peft - float64"],
            ROUNDING_BOUND,
            least=False,
        ),
    ]
    return figures, bars
