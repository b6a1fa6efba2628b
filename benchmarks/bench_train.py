"""The trainer's forward and backward pass against a plain PEFT loop, tries against plain rows, and the head's memory.

    make bench-train                           medians of five interleaved rounds, about ten minutes
    make bench-train ARGS="--only peft"        one part of it: peft, tree or head

peft: SmolLM2-135M with LoRA r=8 on all linear layers, 8 rollouts of 256 shared prompt tokens and 64 trained ones. The plain
loop is what one writes with PEFT: the model on one rollout after another, log-softmax of its logits, the loss over the
trained tokens, backward. Ours computes the same log-probabilities and gradients (compared before anything is timed),
once with every rollout in a row of its own and once as one trie. Both in float32 in one process on the same threads;
ours adds the adapter to its weights anew each time, as after an update. A loop that asks for the logits of trained
positions alone (`logits_to_keep`) is recorded beside it.

tree: a model of SmolLM2's width with two layers; a grid of prompt, completion, group and turns, as one trie (cut into
rows as a job is) against a row for each rollout. The bar is on the share of the saving that becomes speed.

head: peak memory of log-probabilities and their gradient for 4096 positions, in chunks of 1024 against all logits at
once, each in a process of its own.

Writes benchmarks/results/bench-train.json; exits 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import peft
import torch
import transformers
from bench_engine import bar, cpu_name, ratio, timed
from peft import PeftModel
from rich.console import Console
from rich.table import Table
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from art.config.model import LoraConfig
from art.tokens.samples import SampledChoice
from art.trainer.base_models import resolve_base_model
from art.trainer.forward import Policy, adapter_config
from art.trainer.memory import MAX_ROW_TOKENS

RESULTS = Path(__file__).parent / "results" / "bench-train.json"
MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
GROUP, SHARED, TRAINED = 8, 256, 64
ALONE_TARGET, TREE_TARGET = 1.5, 3.3
GRADIENT_BOUND = 1e-4
"""Of the largest difference between a gradient and PEFT's, relative to that gradient's largest number."""
SHARE_TARGET, SMALL_TARGET, SMALL_TOKENS = 0.7, 0.95, 1000
"""Of the ratio of computed tokens that becomes speed; where at most SMALL_TOKENS are saved, of the plain rows' speed."""
HEAD_TARGET = 2.0
LORA = LoraConfig(r=8, alpha=16.0)
CHUNK = 1024
"""The default of logprob_calculation_chunk_size."""


@dataclass(frozen=True)
class Point:
    """One place of the grid: tokens of the shared prompt and of a completion, rollouts, calls of each."""

    prompt: int
    completion: int
    group: int
    turns: int

    @property
    def name(self) -> str:
        return f"prompt {self.prompt}, completion {self.completion}, group {self.group}, turns {self.turns}"


RESULT_TOKENS = 16
"""Between two calls: what a tool or a user says."""
GRID = (
    Point(64, 32, 4, 1),
    Point(64, 512, 4, 1),
    Point(64, 32, 16, 10),
    Point(256, 64, 8, 1),
    Point(256, 32, 8, 5),
    Point(256, 512, 8, 1),
    Point(512, 128, 8, 2),
    Point(1024, 32, 4, 1),
    Point(1024, 128, 16, 1),
    Point(2048, 64, 8, 1),
    Point(2048, 512, 4, 1),
    Point(2048, 32, 16, 2),
)


def main() -> int:
    options = parse_arguments()
    console = Console()
    load = os.getloadavg()[0]
    if load > 0.5:
        console.print(f"[yellow]load average {load:.1f}: other work spoils the figures[/yellow]")
    figures: dict[str, Any] = {}
    bars: list[dict[str, Any]] = []
    for part in options.only or PARTS:
        found, lines = PARTS[part](options, console)
        figures[part] = found
        bars += lines
    report = {
        "machine": {
            "platform": platform.platform(),
            "cpu": cpu_name(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "peft": peft.__version__,
            "load_average": [round(load, 2), round(os.getloadavg()[0], 2)],
            "huge_pages": "hugetlb=1" in os.environ.get("GLIBC_TUNABLES", ""),
        },
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "figures": {"rounds": options.rounds, "dtype": "float32", **figures},
        "bars": bars,
    }
    print_bars(console, bars)
    if not options.only:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(report, indent=1) + "\n")
        console.print(f"written to {RESULTS}")
    return 0 if all(line["ok"] for line in bars) else 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", action="append", choices=("peft", "tree", "head"), help="writes no result")
    parser.add_argument(
        "--cache-dir", type=Path, default=Path(".art/server/base_models"), help="for a converted model"
    )
    return parser.parse_args()


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


# -- peft


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


# -- tree


def make_narrow(folder: Path) -> Path:
    """SmolLM2's width and heads, two layers, a small vocabulary; random weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=4096,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=2,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def measure_tree(
    options: argparse.Namespace, console: Console
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    with tempfile.TemporaryDirectory() as scratch:
        policy = load_policy(make_narrow(Path(scratch)))
    cases = {point: make_choices(point, policy.vocab_size, seed=i) for i, point in enumerate(GRID)}
    budgets = {"plain": longest, "trie": lambda choices: MAX_ROW_TOKENS}
    seconds: dict[str, dict[str, list[float]]] = {}
    tokens: dict[str, dict[str, int]] = {}
    order = list(GRID)
    for number in range(options.rounds + 1):  # the first one warms
        random.Random(number).shuffle(order)
        for point in order:
            choices = cases[point]
            for kind, budget in budgets.items():
                spent = timed(
                    lambda choices=choices, budget=budget: train_rows(policy, choices, budget(choices))
                )
                if number:
                    seconds.setdefault(point.name, {}).setdefault(kind, []).append(spent)
                else:
                    rows = policy.rows(choices, budget=budget(choices))
                    tokens.setdefault(point.name, {})[kind] = sum(row.trie.size for row in rows)
        console.print(f"grid, round {number} of {options.rounds}")
    points: dict[str, Any] = {}
    bars = []
    for point in GRID:
        times, count = seconds[point.name], tokens[point.name]
        speedup = ratio(times["plain"], times["trie"])
        fewer = count["plain"] / count["trie"]
        points[point.name] = {
            "tokens": count,
            "ratio_of_tokens": round(fewer, 3),
            "speedup": round(speedup, 3),
            "raw_seconds": times,
        }
        if count["plain"] - count["trie"] > SMALL_TOKENS:
            bars.append(bar(f"share of the saving: {point.name}", speedup / fewer, SHARE_TARGET, least=True))
        else:
            bars.append(bar(f"speed: {point.name}", speedup, SMALL_TARGET, least=True))
    return {"points": points}, bars


# -- head


def measure_head(
    options: argparse.Namespace, console: Console
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    script = Path(__file__).with_name("train_head_memory.py")
    peaks: dict[str, float] = {}
    for kind in ("chunked", "full"):
        done = subprocess.run(
            [sys.executable, str(script), kind, str(CHUNK)], capture_output=True, text=True, check=True
        )
        peaks[kind] = json.loads(done.stdout)["peak_mb"]
    console.print(f"head: {peaks} MB")
    line = bar(
        "peak memory, full logits / chunked head", peaks["full"] / peaks["chunked"], HEAD_TARGET, least=True
    )
    return {"peak_mb": peaks, "chunk": CHUNK}, [line]


PARTS = {"peft": measure_peft, "tree": measure_tree, "head": measure_head}


def print_bars(console: Console, bars: Sequence[dict[str, Any]]) -> None:
    table = Table("bar", "value", "target", "", title="bench-train, float32")
    for line in bars:
        ok = "ok" if line["ok"] else "[red]missed[/red]"
        table.add_row(line["name"], f"{line['value']:.3g}", f"{line['target']:g}", ok)
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
