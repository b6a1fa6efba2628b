"""`python -m art.testing.seeded FOLDER`: fill a server's folder with realistic content."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from art.errors import ArtError
from art.testing.seeded import Plan, seed


def main() -> int:
    """Seed as the arguments say; 2 for arguments that cannot be right."""
    parser = argparse.ArgumentParser(prog="python -m art.testing.seeded", description=__doc__)
    parser.add_argument("folder", type=Path, help="a server's folder that does not exist yet")
    defaults = Plan()
    numbers = {
        "runs": "models that were trained",
        "steps": "train calls of each",
        "groups": "groups of a step",
        "group_size": "rollouts of a group",
        "turns": "calls of a rollout",
        "answer_tokens": "tokens of an answer, about",
        "long_tokens": "tokens of the answer of one rollout more",
        "scenarios": "different questions",
        "evaluate_every": "steps between evaluations",
        "seed": "of everything that is drawn",
    }
    for name, text in numbers.items():
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=int, default=getattr(defaults, name), help=text)
    parser.add_argument("--project", default=defaults.project)
    parser.add_argument(
        "--reward-bug", choices=("length",), default="", help="what the reward pays for instead"
    )
    given = vars(parser.parse_args())
    try:
        folder = seed(given.pop("folder"), Plan(**given))
    except ArtError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    sys.stdout.write(f"{folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
