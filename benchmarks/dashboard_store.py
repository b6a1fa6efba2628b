"""The store that `bench_dashboard.py` measures: 100 runs, 1,000 steps, 100,000 trajectories, 10 million tokens.

    python benchmarks/dashboard_store.py FOLDER

Half of it is one run of 500 steps: what is slow in a list is slow there.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from art.testing.seeded import Plan, seed

PLAN = Plan(
    runs=100,
    steps=(500, 10, 5),  # the last number holds for those behind: 1,000 in all
    groups=10,
    group_size=10,
    turns=2,
    answer_tokens=20,
    scenarios=200,
    evaluate_every=100,
    long_tokens=30_000,
)
LARGE, LONG = PLAN.name_of(0), PLAN.name_of(PLAN.runs - 1)
"""The run that half of the store is, and the one with the trajectory of 30,000 tokens."""
SEEDED = "seeded.json"


def make(folder: Path) -> Path:
    """Seed `folder`, once; it takes a few minutes."""
    done = folder / SEEDED
    if not done.exists():
        began = time.perf_counter()
        seed(folder, PLAN)
        done.write_text(json.dumps({"seconds": round(time.perf_counter() - began, 1)}))
    return folder


if __name__ == "__main__":
    make(Path(sys.argv[1]))
