"""Part of bench_train: a whole GRPO step against TRL's `GRPOTrainer` on the CPU, like for like.

Both sides train the same base model with LoRA r=8 on all linear layers of its blocks, from the same 8 prompts, 8
completions of exactly 32 tokens each, one AdamW update, in the same number format and on as many threads. Rewards are a hash
of the text, so that no group is without signal. What is compared is checked before a figure counts: prompts and completions
token for token in length, trained tokens, trained completions, and the adapter's size.

Ours is the whole loop over HTTP as a user runs it: 64 rollouts gathered, `train`, and the first answer of the new version.
TRL's step runs from its first sampled token to its updated weights, in one process. Its settings
(peers/step_task.py) are run once each, after which the fastest one and ours take turns.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any

import torch
from bench_engine import bar, ratio
from peers.step_task import ALL, TOKENS, TRL_SETTINGS
from rich.console import Console
from train_step_ours import OurSide, with_end_token

from art.trainer.base_models import resolve_base_model
from art.trainer.forward import choose_dtype

SCRIPT = Path(__file__).parent / "peers" / "trl_step.py"
STEP_TARGET = 4.0
LEAST_SETTINGS = 3
"""Of TRL's, that must have run."""
STEP_SECONDS = 600.0
"""For TRL's start or one step of it; the slowest step seen took a minute."""
END_SECONDS = 20.0


class Unavailable(Exception):
    """A setting of TRL's does not run here; the reason is reported in its place."""


class TrlSide:
    """`peers/trl_step.py` in TRL's environment, one setting. A context manager."""

    def __init__(
        self, python: Path, model: Path, setting: str, *, steps: int, dtype: str, threads: int, errors: Path
    ) -> None:
        command = [str(python), str(SCRIPT), "--model", str(model), "--setting", setting]
        command += ["--steps", str(steps), "--dtype", dtype, "--threads", str(threads)]
        self._errors = errors
        with errors.open("wb") as file:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True
            )
        try:
            self.ready = self._answer()
        except Unavailable:
            self.close()
            raise

    def step(self) -> dict[str, Any]:
        """One step. Unavailable with its last words when it ended or took too long."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("step\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise Unavailable(self._last_words()) from error
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        watchdog = threading.Timer(STEP_SECONDS, self._process.kill)
        watchdog.start()
        try:
            line = self._process.stdout.readline()
        finally:
            watchdog.cancel()
        if not line:
            self._process.wait(END_SECONDS)
            raise Unavailable(self._last_words())
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_words(self) -> str:
        words = self._errors.read_text(errors="replace").strip().splitlines()
        return words[-1][:300] if words else f"it ended with status {self._process.poll()}"

    def __enter__(self) -> TrlSide:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends with its input, or is ended."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def fastest(
    start: Callable[[str], TrlSide], settings: list[str], console: Console
) -> tuple[str, TrlSide, dict[str, dict[str, Any]]]:
    """TRL's fastest setting, still running, and what the first step of each gave or why it did not run."""
    firsts: dict[str, dict[str, Any]] = {}
    best: tuple[str, TrlSide] | None = None
    for setting in settings:
        try:
            side = start(setting)
            firsts[setting] = checked(side.step(), f"TRL, {setting}")
        except Unavailable as error:
            firsts[setting] = {"failed": str(error)}
            console.print(f"TRL, {setting}: did not run: {error}")
            continue
        console.print(f"TRL, {setting}: first step {firsts[setting]['seconds']:.1f} s")
        if best is None or firsts[setting]["seconds"] < firsts[best[0]]["seconds"]:
            if best is not None:
                best[1].close()
            best = setting, side
        else:
            side.close()
    ran = sum("seconds" in first for first in firsts.values())
    if best is None or ran < min(LEAST_SETTINGS, len(settings)):
        raise SystemExit(f"only {ran} settings of TRL ran: {firsts}")
    return *best, firsts


def checked(step: dict[str, Any], who: str) -> dict[str, Any]:
    """The step, if it trained all that it was to train."""
    wanted = {"tokens": ALL * TOKENS, "lengths": [TOKENS], "kept": ALL}
    found = {name: step[name] for name in wanted}
    if found != wanted:
        raise SystemExit(f"{who}: the step is not the one to be compared: {found} instead of {wanted}")
    return step


def require_alike(theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    """SystemExit where the two sides were not given the same."""
    for name in ("prompt_tokens", "trainable", "dtype", "threads"):
        if theirs[name] != ours[name]:
            raise SystemExit(f"not like for like: {name} is {ours[name]} here and {theirs[name]} in TRL")


def measure_step(
    options: argparse.Namespace, console: Console
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    if not options.trl_python.exists():
        raise SystemExit(f"{options.trl_python} is not there: `make bench-train` makes TRL's environment")
    chosen, why = choose_dtype(options.dtype)
    dtype = "bf16" if chosen == torch.bfloat16 else "fp32"
    console.print(f"a whole step in {dtype} ({why}), {options.threads} threads on either side")
    resolved = Path(resolve_base_model(options.model, cache_dir=options.cache_dir).path)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        scratch = Path(name)
        model = with_end_token(resolved, scratch / "model", options.end_token)
        with OurSide(model, scratch, dtype=dtype, threads=options.threads) as our_side:
            warm = checked(our_side.step(), "ours")
            console.print(f"ours, first step {warm['seconds']:.1f} s; {'; '.join(warm['notes'])}")

            def start(setting: str) -> TrlSide:
                return TrlSide(
                    options.trl_python,
                    model,
                    setting,
                    steps=options.rounds + 1,
                    dtype=dtype,
                    threads=options.threads,
                    errors=scratch / f"{setting}.err",
                )

            best, trl_side, firsts = fastest(start, list(TRL_SETTINGS), console)
            with trl_side:
                require_alike(
                    trl_side.ready,
                    {**warm, "dtype": str(chosen).removeprefix("torch."), "threads": options.threads},
                )
                rounds = take_turns(trl_side, our_side, options.rounds, console)
            ready = trl_side.ready
    return report(options, ready, rounds, {"best": best, "first_steps": firsts, "our_first_step": warm})


def take_turns(
    trl_side: TrlSide, our_side: OurSide, rounds: int, console: Console
) -> dict[str, list[dict[str, Any]]]:
    """A step of each, `rounds` times."""
    steps: dict[str, list[dict[str, Any]]] = {"trl": [], "ours": []}
    for number in range(rounds):
        steps["trl"].append(checked(trl_side.step(), "TRL"))
        steps["ours"].append(checked(our_side.step(), "ours"))
        shown = ", ".join(f"{side} {taken[-1]['seconds']:.2f} s" for side, taken in steps.items())
        console.print(f"round {number + 1}: {shown}")
    return steps


def report(
    options: argparse.Namespace,
    ready: dict[str, Any],
    rounds: dict[str, list[dict[str, Any]]],
    chosen: dict[str, Any],
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Figures and the bar."""
    seconds = {side: [step["seconds"] for step in steps] for side, steps in rounds.items()}
    faster = ratio(seconds["trl"], seconds["ours"])
    figures = {
        "model": options.model,
        "dtype": ready["dtype"],
        "threads": ready["threads"],
        "versions": ready["versions"],
        "trainable_parameters": ready["trainable"],
        "prompt_tokens": ready["prompt_tokens"],
        "completions": ALL,
        "tokens_of_each": TOKENS,
        "trained_tokens": {side: steps[0]["tokens"] for side, steps in rounds.items()},
        "median_seconds": {side: round(median(taken), 3) for side, taken in seconds.items()},
        "times_faster": round(faster, 3),
        "trl_setting": chosen["best"],
        "trl_first_steps": chosen["first_steps"],
        "our_first_step": chosen["our_first_step"],
        "raw": rounds,
    }
    return figures, [bar("a whole GRPO step, times faster than TRL", faster, STEP_TARGET, least=True)]
