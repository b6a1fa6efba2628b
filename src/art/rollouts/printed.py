"""The reward that a program prints."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from art.errors import InvalidInput, InvalidReward
from art.trajectories import check_reward


@dataclass(frozen=True)
class Printed:
    """A reward and the metrics beside it."""

    reward: float
    metrics: dict[str, float | int | bool] = field(default_factory=dict)


def printed_reward(output: bytes, who: str) -> Printed | None:
    """The reward in what `who` printed; None when there is none.

    That is the last line when it is a bare number, else the last line that is a JSON object with `reward` (and
    perhaps `metrics`: names to numbers). InvalidReward when that reward is no finite number, or the last line was
    meant as such JSON and is none.
    """
    # Not splitlines: JSON may hold U+2028 and the like as they are.
    lines = [line for line in output.decode(errors="replace").split("\n") if line.strip()]
    if not lines:
        return None
    last = _json(lines[-1])
    if isinstance(last, int | float) and not isinstance(last, bool):
        return Printed(check_reward(last, f"the reward that {who} printed"))
    for line in reversed(lines):
        found = _json(line) if line.lstrip().startswith("{") else None
        if isinstance(found, dict) and "reward" in found:
            reward = check_reward(found["reward"], f"the reward that {who} printed")
            return Printed(reward, _metrics(found.get("metrics"), who))
    if _MEANT.match(lines[-1]):
        raise InvalidReward(
            f"the last line that {who} printed is no reward",
            cause=lines[-1].strip()[:200],
            hint="Python's print(dict) writes single quotes: print(json.dumps({'reward': 0.5}))",
        )
    return None


_MEANT = re.compile(r"""\s*(\{.*['"]reward['"]\s*:|-?\d+\s*$)""")
"""A line that was meant as JSON with a reward. To take the exit status instead would train on another reward."""


def _metrics(value: object, who: str) -> dict[str, float | int | bool]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(
        isinstance(one, int | float) and _finite(one) and _plain(name) for name, one in value.items()
    ):
        raise InvalidInput(
            f"the metrics that {who} printed must be numbers by name",
            cause=f"they are {value!r}"[:500],
            hint='{"reward": 1.0, "metrics": {"turns": 3}}',
        )
    return dict(value)


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that no float holds
        return False


def _plain(name: str) -> bool:
    """A name that can be stored: no half characters, and not a whole text."""
    return len(name) <= 200 and not any("\ud800" <= char <= "\udfff" for char in name)


def _json(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
