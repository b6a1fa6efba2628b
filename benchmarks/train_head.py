"""Part of bench_train: peak memory of log-probabilities and their gradient for 4096 positions.

In chunks of 1024 against all logits at once, each in a process of its own (train_head_memory.py).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench_engine import bar
from rich.console import Console
from train_policy import CHUNK

HEAD_TARGET = 2.0


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
    return {"dtype": "float32", "peak_mb": peaks, "chunk": CHUNK}, [line]
