"""Confidence intervals by resampling, and whether a paired difference is more than chance. Pure functions, seeded.

Axis legend: S scenarios.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import product
from math import comb
from statistics import fmean

from art.errors import InvalidInput
from art.evals.intervals import mean_of

RESAMPLES = 2000
"""Enough that the ends of a 95 % interval move by a few hundredths of its width between seeds."""
EXACT_UP_TO = 12
"""Scenarios of which all 2^S signs are tried; more are sampled."""
CONFIDENCE = 0.95


def bootstrap_ci(means_S: Sequence[float], *, seed: int = 0) -> tuple[float, float] | None:
    """95 % percentile bootstrap interval of the mean over scenarios (Efron and Tibshirani 1993, chapter 13).

    Scenarios are drawn with replacement, each with all its runs: runs of one scenario are alike, so counting them
    as independent would make the interval too narrow. Where all scenarios have one mean the bootstrap has no
    width; for means in [0, 1] Wilson's interval (`intervals.Mean.ci95`) stands instead, and otherwise None, as
    for a single scenario: nothing is known about the others. InvalidInput for none.
    """
    if not means_S:
        raise InvalidInput("no scenario has a run with a reward", hint="see the runs' errors")
    if len(set(means_S)) == 1:
        mean = mean_of(means_S)
        return mean.ci95 if mean.bounded else None
    return percentile_ci(means_S, seed=seed)


def percentile_ci(values_S: Sequence[float], *, seed: int) -> tuple[float, float]:
    """The percentile bootstrap itself."""
    rng = random.Random(seed)
    count = len(values_S)
    drawn = sorted(fmean(rng.choices(values_S, k=count)) for _ in range(RESAMPLES))
    tail = (1 - CONFIDENCE) / 2
    return quantile(drawn, tail), quantile(drawn, 1 - tail)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Linear interpolation between the order statistics (type 7 of Hyndman and Fan 1996)."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def sign_flip_p(differences_S: Sequence[float], *, seed: int = 0) -> float:
    """Two-sided p-value of the paired permutation test (Fisher 1935): if a and b were the same, each scenario's
    difference could as well have the other sign.

    The share of sign patterns whose mean is at least as far from 0 as the one seen; exact up to EXACT_UP_TO
    scenarios, else from RESAMPLES random patterns, (hits + 1) / (patterns + 1).
    """
    sizes = [abs(value) for value in differences_S]
    seen = abs(sum(differences_S)) * (1 - 1e-9)  # equal sums that were added in another order are equal
    if len(sizes) <= EXACT_UP_TO:
        patterns = list(product((1, -1), repeat=len(sizes)))
        hits = sum(abs(sum(s * v for s, v in zip(signs, sizes, strict=True))) >= seen for signs in patterns)
        return hits / len(patterns)
    rng = random.Random(seed)
    hits = sum(abs(sum(rng.choice((v, -v)) for v in sizes)) >= seen for _ in range(RESAMPLES))
    return (hits + 1) / (RESAMPLES + 1)


def pass_at_k(runs: int, passed: int, k: int) -> float:
    """Probability that at least one of k runs passes, estimated without bias from `passed` of `runs`:

        1 - C(runs - passed, k) / C(runs, k)        (Chen et al. 2021, arXiv:2107.03374, equation 1)

    InvalidInput unless 1 <= k <= runs.
    """
    if not 1 <= k <= runs:
        raise InvalidInput(
            f"pass@{k} cannot be estimated from {runs} runs", hint="raise repeats to at least k"
        )
    return 1 - comb(runs - passed, k) / comb(runs, k)
