"""Whether a run's reward looks like one for its task, or like one that can be cheated.

Nothing here is proof: a warning is a reason to read rollouts. Each is told only where chance alone would hardly do it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from art.store.extremes import links_of, newest, points_of
from art.store.group_lists import mean_and_deviation
from art.store.sql import Conn
from art.types.policy import Purpose
from art.types.wire_views import Points, RewardCheck, RewardLink, RewardWarning

CLEAR = 0.4
"""|r| from which a correlation with length is worth a person's time; half of it for tool errors, which should cost reward."""
SURE = 4.0
"""Standard errors from which nothing is put down to chance: many runs are looked at, again and again."""
ROSE, STAYED = 0.5, 0.2
"""Change from the first third of the steps to the last, in standard deviations: at least, and at most."""
RARE, SETTLED = 0.05, 0.95
"""A share below or above these has no room, or is a flag for something rare."""
LOGGED = 40
"""Newest trajectories of a split that are looked at for a judge's score."""


def reward_check(conn: Conn, project: str, model: str) -> RewardCheck:
    """Of the newest training rollouts that have a reward."""
    points = points_of(newest(conn, project, model, Purpose.TRAIN))
    links = links_of(points)
    warnings = [warning for link in links[:2] if (warning := _follows(link)) is not None]
    warnings += _flat(points)
    warnings += [_judged_twice(name) for name in _judges(conn, project, model)]
    return RewardCheck(rollouts=len(points.reward), links=links, warnings=warnings)


def _follows(link: RewardLink) -> RewardWarning | None:
    """Reward that goes with length, or with tool errors."""
    bound = CLEAR if link.name == "sampled_tokens" else CLEAR / 2
    if link.r is None or link.r < bound or link.r * math.sqrt(link.rollouts) < SURE:
        return None
    if link.within is not None and link.within < bound / 2:  # both rose over the steps, and that is all
        return None
    said = f"(r = {link.r:+.2f})"
    if link.name == "sampled_tokens":
        return RewardWarning(
            kind="length",
            name=link.name,
            message=f"Reward follows length {said}.",
            detail="Longer rollouts earn more. If the task does not ask for length, read the best ones: more right, or only longer?",
        )
    return RewardWarning(
        kind="tool_errors",
        name=link.name,
        message=f"Reward rises with tool errors {said}.",
        detail="It may count calls whether they work or not, or take an error's text for an answer.",
    )


def _flat(points: Points) -> list[RewardWarning]:
    """Shares (0 to 1) of the program that stay where they are while the reward rises."""
    ends = _thirds(points.step)
    if ends is None:
        return []
    rise = _rise(points.reward, *ends)
    if rise is None or rise[0] < ROSE or rise[1] < SURE:
        return []
    before, after = (_mean(points.reward, places) for places in ends)
    found = []
    for name, column in points.metrics.items():
        change = _rise(column, *ends)
        if change is None or change[0] > STAYED or not all(0 <= value <= 1 for value in _known(column)):
            continue
        first, last = (_mean(column, places) for places in ends)
        if not RARE <= last <= SETTLED:
            continue
        found.append(
            RewardWarning(
                kind="flat_metric",
                name=f"metrics.{name}",
                message=f"Reward rises and {name} does not.",
                detail=f"From the first third of the steps to the last, reward went from {before:.3f} to {after:.3f} and {name}"
                f" from {first:.3f} to {last:.3f}. If {name} is what the task is about, the reward pays for something else.",
            )
        )
    return found


def _thirds(steps: Sequence[int]) -> tuple[list[int], list[int]] | None:
    """Places of the rollouts of the first and of the last third of the steps; None with fewer than three steps."""
    known = sorted(set(steps))
    if len(known) < 3:
        return None
    third = len(known) // 3
    early, late = known[third - 1], known[-third]
    return (
        [place for place, step in enumerate(steps) if step <= early],
        [place for place, step in enumerate(steps) if step >= late],
    )


def _rise(
    column: Sequence[float | None], early: Sequence[int], late: Sequence[int]
) -> tuple[float, float] | None:
    """By how many standard deviations the mean rose, and how many standard errors that is; None without a spread."""
    first, last = _known(column[place] for place in early), _known(column[place] for place in late)
    if len(first) < 2 or len(last) < 2:
        return None
    (before, one), (after, other) = mean_and_deviation(first), mean_and_deviation(last)
    if before is None or after is None or one is None or other is None or not (one or other):
        return None
    rise = (after - before) / math.hypot(one, other) * math.sqrt(2)
    if not math.isfinite(rise):  # rewards beyond what their differences hold
        return None
    return rise, rise / math.sqrt(1 / len(first) + 1 / len(last))


def _mean(column: Sequence[float | None], places: Iterable[int]) -> float:
    """Of the values that are known there, one at least."""
    mean, _ = mean_and_deviation(_known(column[place] for place in places))
    assert mean is not None
    return mean


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _judges(conn: Conn, project: str, model: str) -> list[str]:
    """Metrics of a judge that logged trajectories of training and of evaluation both have."""
    by_split = []
    for split in ("train", "val"):
        found = conn.execute(
            "SELECT DISTINCT metric.key FROM (SELECT body FROM logged_trajectories WHERE project = ? AND name = ?"
            " AND split = ? ORDER BY step DESC LIMIT ?) AS logged, json_each(logged.body, '$.metrics') AS metric",
            (project, model, split, LOGGED),
        )
        by_split.append({str(row[0]) for row in found})
    both = by_split[0] & by_split[1]
    return sorted(name for name in both if any(word in name.lower() for word in ("judge", "ruler")))


def _judged_twice(name: str) -> RewardWarning:
    return RewardWarning(
        kind="same_judge",
        name=name,
        message=f"Training and evaluation were scored by the same judge ({name}).",
        detail="Whatever deceives it in training deceives it in evaluation too: a rising evaluation reward confirms nothing.",
    )
