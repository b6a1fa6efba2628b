"""Training against TRL and against a plain PEFT loop, tries against plain rows, and the head's memory.

    make bench-train                           medians of five interleaved rounds, about twenty minutes
    make bench-train ARGS="--only peft"        one part of it: step, peft, tree or head

step: a whole GRPO step against TRL's `GRPOTrainer`, in TRL's own environment (train_step.py).
peft: the trainer's forward and backward pass against a plain PEFT loop (train_peft.py).
tree: one trie against a row for each rollout, over a grid of shapes (train_tree.py).
head: peak memory of the LM head in chunks against all logits at once (train_head.py).

Writes benchmarks/results/bench-train.json, where each part keeps its own date, machine, load and bars, so that parts may be run on
their own; medians of fewer than five rounds are shown and not written. Exits 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from bench_engine import cpu_name
from rich.console import Console
from rich.table import Table
from train_head import measure_head
from train_peft import measure_peft
from train_step import measure_step
from train_tree import measure_tree

from art.config.environment import MALLOC_TUNABLES

RESULTS = Path(__file__).parent / "results" / "bench-train.json"
MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
END_TOKEN = "<filename>"
"""A mark of SmolLM2's vocabulary for code; over completions of these prompts its probabilities add up to 2e-5 a step."""
LEAST_ROUNDS = 5
PARTS = {"step": measure_step, "peft": measure_peft, "tree": measure_tree, "head": measure_head}


def main() -> int:
    options = parse_arguments()
    as_workers()
    torch.set_num_threads(options.threads)
    console = Console()
    bars: list[dict[str, Any]] = []
    kept = options.rounds >= LEAST_ROUNDS
    for part in options.only or PARTS:
        load = os.getloadavg()[0]
        if load > 0.5:
            console.print(f"[yellow]load average {load:.1f}: other work spoils the figures[/yellow]")
        figures, lines = PARTS[part](options, console)
        bars += lines
        if kept:
            keep(part, {**about(options, load), **figures, "bars": lines})
    print_bars(console, bars)
    if kept:
        console.print(f"written to {RESULTS}")
    else:
        console.print(f"not written: {options.rounds} of at least {LEAST_ROUNDS} rounds")
    return 0 if all(line["ok"] for line in bars) else 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--rounds", type=int, default=LEAST_ROUNDS)
    parser.add_argument("--only", action="append", choices=tuple(PARTS), help="repeatable")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--cache-dir", type=Path, default=Path(".art/server/base_models"), help="for a converted model"
    )
    step = parser.add_argument_group("step")
    step.add_argument("--trl-python", type=Path, default=Path(".venv-trl/bin/python"))
    step.add_argument("--dtype", choices=("auto", "fp32", "bf16"), default="auto", help="of both sides")
    step.add_argument("--end-token", default=END_TOKEN, help="one that the model does not write")
    return parser.parse_args()


def as_workers() -> None:
    """Start anew with the allocator's settings of ART's workers, for both sides: glibc reads them as a process starts.
    Without them the large tensors of a packed row are mapped, faulted in and given back at each use."""
    wanted = ":".join(MALLOC_TUNABLES)
    if os.environ.get("GLIBC_TUNABLES") != wanted:
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "GLIBC_TUNABLES": wanted})


def now() -> str:
    """The time, as the results note it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def about(options: argparse.Namespace, load: float) -> dict[str, Any]:
    """How a part was run."""
    return {
        "date": now(),
        "rounds": options.rounds,
        "threads": options.threads,
        "load_average": [round(load, 2), round(os.getloadavg()[0], 2)],
        "machine": {
            "platform": platform.platform(),
            "cpu": cpu_name(),
            "cores": os.cpu_count(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "peft": peft.__version__,
            "allocator": os.environ["GLIBC_TUNABLES"],
        },
    }


def keep(part: str, figures: dict[str, Any]) -> None:
    """Write the part beside those that are there; after each part, so that an hour is not lost to the last one."""
    before = json.loads(RESULTS.read_text())["figures"] if RESULTS.exists() else {}
    merged = {name: figures if name == part else before[name] for name in PARTS if name in {part, *before}}
    report = {
        "date": now(),
        "figures": merged,
        "bars": [line for one in merged.values() for line in one["bars"]],
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(report, indent=1) + "\n")


def print_bars(console: Console, bars: Sequence[dict[str, Any]]) -> None:
    table = Table("bar", "value", "target", "", title="bench-train")
    for line in bars:
        ok = "ok" if line["ok"] else "[red]missed[/red]"
        table.add_row(line["name"], f"{line['value']:.3g}", f"{line['target']:g}", ok)
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
