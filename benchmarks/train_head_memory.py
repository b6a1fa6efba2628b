"""Peak memory of log-probabilities and their gradient, in chunks or from all logits: `chunked` or `full`, and the chunk.

Prints {"peak_mb": ...}, above what the process held before. Run by bench_train.py, a process for each kind: what one has
allocated must not count for the other.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from art.trainer.head import chunked_logprobs

POSITIONS, HIDDEN, VOCABULARY = 4096, 576, 49_152
"""Trained tokens of a large row, and SmolLM2's sizes."""


def status_mb(name: str) -> float:
    """A figure of /proc/self/status in MB."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) / 1024


def main() -> int:
    kind, chunk = sys.argv[1], int(sys.argv[2])
    torch.manual_seed(0)
    hidden_NE = torch.randn(POSITIONS, HIDDEN, requires_grad=True)
    head_VE = torch.randn(VOCABULARY, HIDDEN).mul_(0.02)
    target_N = torch.randint(0, VOCABULARY, (POSITIONS,))
    small = torch.randn(8, 8, requires_grad=True)
    (
        small @ small
    ).sum().backward()  # what the first product and the first backward pass allocate for themselves
    before = status_mb("VmRSS")
    if kind == "chunked":
        logprobs_N, _ = chunked_logprobs(hidden_NE, head_VE, target_N, torch.ones(POSITIONS), chunk=chunk)
    else:
        logits_NV = hidden_NE @ head_VE.T
        logprobs_N = torch.log_softmax(logits_NV, dim=-1).gather(1, target_N[:, None])[:, 0]
    (-logprobs_N.sum()).backward()
    print(json.dumps({"peak_mb": round(status_mb("VmHWM") - before, 1)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
