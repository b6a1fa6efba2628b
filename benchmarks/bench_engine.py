"""The embedded engine against transformers' `generate`: tokens per second as ratios of one run.

    make bench-engine                      medians of three interleaved rounds at batch 1, 8, 32 and 64
    make bench-engine ARGS="--rounds 5"    more of them

Ours runs as it is served: a worker process with a LoRA adapter (merged), sampling at temperature 1, a log-probability
with every token, events over the channel. `generate` runs the bare base model in the same dtype, sampling alike.
The work is that of a GRPO step: groups of 8 completions of one prompt (batch 1 is a single one), prompts of 64 tokens,
new ones in every round so that no round finds another's in the cache, 64 sampled tokens, no stop token. Both sides get
the same prompts; ours computes a group's prompt once, which `generate` cannot. The same engine with its prefix cache
off shows what that is worth. Beside the bars it records a group with a longer shared prompt, cache on and off, and how
greedy tokens and log-probabilities compare.

Writes benchmarks/results/bench-engine.json; exits 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import random
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from art.engine.protocol import SampleRequest
from art.testing.engine_process import EngineProcess
from art.trainer.base_models import resolve_base_model

RESULTS = Path(__file__).parent / "results" / "bench-engine.json"
MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
PROMPT_TOKENS, NEW_TOKENS, GROUP = 64, 64, 8
TARGETS = {1: 1.3, 8: 1.6, 32: 2.0, 64: 2.0}
VERSION = "bench/adapter@1"
GREEDY_PROMPTS, GREEDY_TOKENS = 8, 48
NEAR_TIE = 0.25
"""Logits; in bf16 greedy tokens may part only where the two best are this close."""
PARITY = {"fp32": {"mean": 1e-4}, "bf16": {"mean": 0.06, "p99": 0.3, "k3": 4e-3}}
TEXT = (
    "the weather in a city is asked by people who travel to work or home and want to know if it will "
    "rain or snow today so they take a coat an umbrella or a hat and walk along the river past the "
    "market to the station"
)


def main() -> int:
    options = parse_arguments()
    console = Console()
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(options, Path(scratch), console)
        try:
            bench.measure()
            bench.compare()
        finally:
            bench.close()
    report = bench.report()
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(report, indent=1) + "\n")
    print_bars(console, report)
    return 0 if all(bar["ok"] for bar in report["bars"]) else 1


def ratio(slower: list[float], faster: list[float]) -> float:
    """The median over the rounds of the ratio within a round: a shared machine's own speed changes between rounds."""
    return median(one / other for one, other in zip(slower, faster, strict=True))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=MODEL)
    parser.add_argument(
        "--dtype",
        choices=("auto", "fp32", "bf16"),
        default="auto",
        help="of both; auto is the engine's choice",
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--batches", type=lambda text: [int(b) for b in text.split(",")], default=sorted(TARGETS)
    )
    parser.add_argument(
        "--cache-dir", type=Path, default=Path(".art/server/base_models"), help="for a converted model"
    )
    return parser.parse_args()


class Bench:
    """Two engines (prefix cache on and off) and a transformers model, and what was measured on them."""

    def __init__(self, options: argparse.Namespace, scratch: Path, console: Console) -> None:
        self.options = options
        self.console = console
        self.load_at_start = os.getloadavg()[0]
        if self.load_at_start > 0.5:
            console.print(
                f"[yellow]load average {self.load_at_start:.1f}: other work spoils the figures[/yellow]"
            )
        folder = Path(resolve_base_model(options.model, cache_dir=options.cache_dir).path)
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.adapter = make_adapter(folder, scratch / "adapter")
        arguments = ["--base-model", str(folder), "--dtype", options.dtype, "--context", "1024"]
        self.engines = {
            "ours": EngineProcess([*arguments, "--prefix-cache"]),
            "ours, cache off": EngineProcess([*arguments, "--no-prefix-cache"]),
        }
        for engine in self.engines.values():
            check = engine.call("load_adapter", {"version": VERSION, "path": str(self.adapter)})
            assert not check["unmatched"], check
        self.dtype = self.engines["ours"].capabilities.dtype
        self.model = load_model(folder, self.dtype)
        self.seconds: dict[int, dict[str, list[float]]] = {}
        self.group_seconds: dict[str, list[float]] = {}
        self.figures: dict[str, Any] = {}

    def close(self) -> None:
        for engine in self.engines.values():
            engine.close()

    def measure(self) -> None:
        """Time everything, one after the other within a round, so that a disturbance hits all alike."""
        rng = random.Random(0)
        for kind in ("generate", *self.engines):
            self._run(kind, self.prompts(rng, 2))  # warm
        for number in range(self.options.rounds):
            for batch in self.options.batches:
                # Ordered as a program that gathers groups would send them.
                prompts = [prompt for prompt in self.prompts(rng, -(-batch // GROUP)) for _ in range(GROUP)][
                    :batch
                ]
                for kind in ("generate", *self.engines):
                    seconds = timed(lambda kind=kind, prompts=prompts: self._run(kind, prompts))
                    self.seconds.setdefault(batch, {}).setdefault(kind, []).append(seconds)
                row = {
                    kind: f"{batch * NEW_TOKENS / times[-1]:.0f}"
                    for kind, times in self.seconds[batch].items()
                }
                self.console.print(f"round {number + 1}, batch {batch}: tokens/s {row}")
            group = self.prompts(rng, 1, tokens=256) * GROUP
            for kind in self.engines:
                seconds = timed(lambda kind=kind, group=group: self._run(kind, group, new_tokens=16))
                self.group_seconds.setdefault(kind, []).append(seconds)

    def compare(self) -> None:
        """Greedy tokens against `generate`, and log-probabilities of sampled tokens against a PEFT forward."""
        prompts = self.prompts(random.Random(1), GREEDY_PROMPTS)
        requests = [SampleRequest(prompt, max_tokens=GREEDY_TOKENS, temperature=0.0) for prompt in prompts]
        gaps: list[float] = []
        for prompt, ours in zip(prompts, self.engines["ours"].generate(*requests), strict=True):
            theirs = generate(self.model, [prompt], GREEDY_TOKENS, do_sample=False)[0]
            gaps += first_gap(self.model, prompt, ours.token_ids, theirs)
        self.figures["greedy"] = {
            "choices": len(prompts),
            "equal": len(prompts) - len(gaps),
            "largest_gap_of_two_best_logits_where_they_part": max(gaps, default=0.0),
        }
        sampled = self.engines["ours"].generate(*self._requests(prompts, seed=7))
        peft = PeftModel.from_pretrained(self.model, self.adapter).eval()
        differences = torch.cat(
            [
                forward_logprobs(peft, prompt, choice.token_ids) - torch.tensor(choice.logprobs)
                for prompt, choice in zip(prompts, sampled, strict=True)
            ]
        ).double()
        self.figures["parity"] = {
            "tokens": len(differences),
            "mean": float(differences.abs().mean()),
            "p99": float(differences.abs().quantile(0.99)),
            "max": float(differences.abs().max()),
            "k3": float((differences.exp() - 1 - differences).mean()),
        }

    def report(self) -> dict[str, Any]:
        """The result file."""
        speed = {
            str(batch): {kind: round(batch * NEW_TOKENS / median(times), 1) for kind, times in kinds.items()}
            for batch, kinds in self.seconds.items()
        }
        ratios = {
            str(batch): {kind: round(ratio(kinds["generate"], kinds[kind]), 3) for kind in self.engines}
            for batch, kinds in self.seconds.items()
        }
        figures = {
            "model": self.options.model,
            "dtype": self.dtype,
            "notes": self.engines["ours"].capabilities.notes,
            "rounds": self.options.rounds,
            "tokens_per_second": speed,
            "ratio_to_generate": ratios,
            "group_of_8_with_256_prompt_tokens_seconds": {
                k: round(median(t), 3) for k, t in self.group_seconds.items()
            },
            **self.figures,
            "raw_seconds": self.seconds,
        }
        machine = {
            "platform": platform.platform(),
            "cpu": cpu_name(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "load_average": [round(self.load_at_start, 2), round(os.getloadavg()[0], 2)],
            "huge_pages": "hugetlb=1" in os.environ.get("GLIBC_TUNABLES", ""),
        }
        return {
            "machine": machine,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "figures": figures,
            "bars": [*self._speed_bars(ratios), *self._equality_bars()],
        }

    def prompts(self, rng: random.Random, count: int, *, tokens: int = PROMPT_TOKENS) -> list[list[int]]:
        """Token ids of random English words, `tokens` of them."""
        return [
            self.tokenizer.encode(" ".join(rng.choices(TEXT.split(), k=tokens))).ids[:tokens]
            for _ in range(count)
        ]

    def _run(self, kind: str, prompts: list[list[int]], *, new_tokens: int = NEW_TOKENS) -> None:
        if kind == "generate":
            sampled = generate(
                self.model, prompts, new_tokens, do_sample=True, temperature=1.0, top_k=0, top_p=1.0
            )
        else:
            requests = self._requests(prompts, seed=0, max_tokens=new_tokens)
            sampled = [choice.token_ids for choice in self.engines[kind].generate(*requests)]
        assert [len(tokens) for tokens in sampled] == [new_tokens] * len(prompts)

    def _requests(
        self, prompts: list[list[int]], *, seed: int, max_tokens: int = NEW_TOKENS
    ) -> list[SampleRequest]:
        return [
            SampleRequest(prompt, version=VERSION, max_tokens=max_tokens, seed=1000 * seed + number)
            for number, prompt in enumerate(prompts)
        ]

    def _speed_bars(self, ratios: dict[str, dict[str, float]]) -> list[dict[str, Any]]:
        return [
            bar(f"ours / generate at batch {batch}", ratios[str(batch)]["ours"], TARGETS[batch], least=True)
            for batch in self.options.batches
            if batch in TARGETS
        ]

    def _equality_bars(self) -> list[dict[str, Any]]:
        greedy, parity = self.figures["greedy"], self.figures["parity"]
        gap = greedy["largest_gap_of_two_best_logits_where_they_part"]
        exact = self.dtype == "fp32"
        bars = [
            bar("greedy choices equal to generate", greedy["equal"], greedy["choices"], least=True)
            if exact
            else bar("logit gap where greedy parts", gap, NEAR_TIE, least=False)
        ]
        return bars + [
            bar(f"log-probability difference, {name}", parity[name], bound, least=False)
            for name, bound in PARITY[self.dtype].items()
        ]


def bar(name: str, value: float, target: float, *, least: bool) -> dict[str, Any]:
    """One line of the verdict; `least` says that the target is a lower bound."""
    return {
        "name": name,
        "value": value,
        "target": target,
        "ok": value >= target if least else value <= target,
    }


def make_adapter(folder: Path, target: Path) -> Path:
    """A random LoRA of rank 8 on every linear layer, large enough to change what is sampled."""
    torch.manual_seed(0)
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        LoraConfig(r=8, lora_alpha=16, target_modules="all-linear"),
    )
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.01)
    model.save_pretrained(target)
    return target


def load_model(folder: Path, dtype: str) -> Any:
    """The base model in transformers, free of the folder's own generation defaults."""
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16 if dtype == "bf16" else torch.float32
    ).eval()
    # A stop token would end rows early; suppressing it (min_new_tokens) would change the distribution.
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


@torch.inference_mode()
def generate(model: Any, prompts: list[list[int]], new_tokens: int, **sampling: Any) -> list[list[int]]:
    ids = torch.tensor(prompts)
    out = model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=new_tokens, **sampling
    )
    return out[:, ids.shape[1] :].tolist()


@torch.inference_mode()
def forward_logits(model: Any, prompt: list[int], tokens: list[int]) -> torch.Tensor:
    return model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1].float()


def forward_logprobs(model: Any, prompt: list[int], tokens: list[int]) -> torch.Tensor:
    logprobs = forward_logits(model, prompt, tokens).log_softmax(-1)
    return logprobs.gather(1, torch.tensor(tokens)[:, None]).squeeze(1)


def first_gap(model: Any, prompt: list[int], ours: list[int], theirs: list[int]) -> list[float]:
    """The gap of the two best logits where two greedy completions first differ; empty when they are equal."""
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b), None)
    if at is None:
        return []
    best = forward_logits(model, prompt, theirs[: at + 1])[-1].topk(2).values
    return [float(best[0] - best[1])]


def timed(call: Callable[[], None]) -> float:
    """Seconds a call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
        platform.processor(),
    )


def print_bars(console: Console, report: dict[str, Any]) -> None:
    table = Table("bar", "value", "target", "", title=f"bench-engine, {report['figures']['dtype']}")
    for line in report["bars"]:
        digits = 6 if math.fabs(line["value"]) < 0.1 else 2
        table.add_row(
            line["name"],
            f"{line['value']:.{digits}f}",
            f"{line['target']:g}",
            "ok" if line["ok"] else "[red]missed[/red]",
        )
    console.print(table)
    console.print(f"written to {RESULTS}")


if __name__ == "__main__":
    sys.exit(main())
