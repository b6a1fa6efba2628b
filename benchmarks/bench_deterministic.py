"""What `--deterministic` costs the engine: the ordinary one and the deterministic one, side by side in one run.

Groups of 8 completions of one prompt of 64 tokens, 32 sampled tokens; then the same rollouts' second turn, whose prompt
holds the first turn: the deterministic engine computes its sampled tokens again. Both worker processes with the same
number of threads; rounds are interleaved.

The ratio of processor seconds stands beside that of the clock.

Writes benchmarks/results/bench-deterministic.json. The bar: no batch takes more than three times as long.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from art.engine.protocol import SampleRequest
from art.testing.engine_process import EngineProcess
from art.trainer.base_models import resolve_base_model

RESULTS = Path(__file__).parent / "results" / "bench-deterministic.json"
MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
PROMPT_TOKENS, NEW_TOKENS, TAIL_TOKENS, GROUP = 64, 32, 16, 8
KINDS = ("ordinary", "deterministic")
MOST = 3.0
"""Times as long as ordinary."""
Took = tuple[float, float]
"""Seconds of the clock, and of the processors."""
Seconds = dict[tuple[int, int], dict[str, list[Took]]]
"""By (batch, turn) and engine, one for each round."""


def main() -> int:
    """Measure, print, write; 1 when the bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--dtype", choices=("auto", "fp32", "bf16"), default="auto")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--cache-dir", type=Path, default=Path(".art/server/base_models"), help="for a converted model"
    )
    options = parser.parse_args()
    load = os.getloadavg()[0]
    folder = resolve_base_model(options.model, cache_dir=options.cache_dir).path
    arguments = ["--base-model", folder, "--dtype", options.dtype, "--context", "1024"]
    arguments += ["--threads", str(options.threads)]
    engines = {kind: EngineProcess([*arguments, *flags(kind)]) for kind in KINDS}
    try:
        seconds = measure(engines, rounds=options.rounds, batches=options.batches)
        notes = {kind: engine.capabilities.notes for kind, engine in engines.items()}
    finally:
        for engine in engines.values():
            engine.close()
    report = summary(
        seconds, {"model": options.model, "threads": options.threads, "notes": notes, "load": load}
    )
    RESULTS.write_text(json.dumps(report, indent=1) + "\n")
    columns = ("batch", "turn", *KINDS, "ratio", "processor_ratio")
    table = Table(*columns, title="bench-deterministic")
    for row in report["figures"]["rows"]:
        table.add_row(*(str(row[name]) for name in columns))
    Console().print(table, "tokens sampled a second; written to", RESULTS)
    return 0 if all(bar["ok"] for bar in report["bars"]) else 1


def flags(kind: str) -> list[str]:
    return ["--deterministic"] if kind == "deterministic" else []


def measure(engines: dict[str, EngineProcess], *, rounds: int, batches: Sequence[int]) -> Seconds:
    """Seconds by (batch, turn) and engine."""
    rng = random.Random(0)
    vocabulary = engines["ordinary"].capabilities.vocab_size
    seconds: Seconds = {}

    def tokens(count: int) -> list[int]:
        return [rng.randrange(10, vocabulary) for _ in range(count)]

    for number in range(rounds + 1):
        for batch in batches:
            prompts = [tokens(PROMPT_TOKENS) for _ in range(-(-batch // GROUP))]
            first = [prompts[member // GROUP] for member in range(batch)]
            tails = [tokens(TAIL_TOKENS) for _ in range(batch)]
            for kind, engine in engines.items():
                took, said = timed(engine, first)
                turns = [prompt + one + tail for prompt, one, tail in zip(first, said, tails, strict=True)]
                again, _ = timed(engine, turns)
                if number:  # the first round warms up
                    seconds.setdefault((batch, 1), {}).setdefault(kind, []).append(took)
                    seconds.setdefault((batch, 2), {}).setdefault(kind, []).append(again)
    return seconds


def timed(engine: EngineProcess, prompts: list[list[int]]) -> tuple[Took, list[list[int]]]:
    """How long it took, and what was sampled."""
    requests = [
        SampleRequest(prompt, max_tokens=NEW_TOKENS, seed=seed) for seed, prompt in enumerate(prompts)
    ]
    began, before = time.perf_counter(), processor_seconds(engine.process.pid)
    choices = engine.generate(*requests)
    took = time.perf_counter() - began, processor_seconds(engine.process.pid) - before
    return took, [choice.token_ids for choice in choices]


def processor_seconds(pid: int) -> float:
    """What a process has used of the processors: on a machine that others use, too, the steadier measure."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def summary(seconds: Seconds, about: dict[str, Any]) -> dict[str, Any]:
    """The result file: medians over the rounds, ratios within a round."""
    rows, bars = [], []
    for (batch, turn), took in seconds.items():
        pairs = list(zip(took["deterministic"], took["ordinary"], strict=True))
        speeds = {
            kind: round(batch * NEW_TOKENS / median(wall for wall, _ in took[kind]), 1) for kind in KINDS
        }
        clock, processor = (
            round(median(slow[at] / max(fast[at], 0.01) for slow, fast in pairs), 2) for at in (0, 1)
        )
        rows.append({"batch": batch, "turn": turn, **speeds, "ratio": clock, "processor_ratio": processor})
        name = f"batch {batch}, turn {turn}"
        bars.append({"name": name, "value": clock, "target": MOST, "ok": clock <= MOST})
    return {
        "machine": {"platform": platform.platform(), "cores": os.cpu_count()},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "figures": {**about, "rows": rows, "seconds": {f"{b}/{t}": one for (b, t), one in seconds.items()}},
        "bars": bars,
    }


if __name__ == "__main__":
    sys.exit(main())
