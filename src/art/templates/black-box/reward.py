"""What a run is worth: reads what happened as JSON on stdin, prints the reward (docs/rollouts.md says what is in there)."""

from __future__ import annotations

import json
import sys

ANSWERS = ("yes", "no", "maybe")


def score(output: str, scenario: dict[str, str]) -> float:
    """1 for the right word, 0.3 for `maybe`, which is honest, 0.1 for the wrong word, else 0."""
    said = output.strip().rstrip(".!").lower()
    if said == scenario["positive"]:
        return 1.0
    if said == "maybe":
        return 0.3
    return 0.1 if said in ANSWERS else 0.0


if __name__ == "__main__":
    run = json.load(sys.stdin)
    print(json.dumps({"reward": score(run["output"], run["scenario"]), "metrics": {"calls": run["calls"]}}))
