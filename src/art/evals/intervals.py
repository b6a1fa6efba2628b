"""Means with confidence intervals, and whether a difference is more than chance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, variance

from art.errors import InvalidInput

Z95 = 1.959964
"""Two-sided 95 % quantile of the normal distribution; good from some thirty values on."""


@dataclass(frozen=True, slots=True)
class Mean:
    """A sample's mean, with the standard error of that mean."""

    value: float
    error: float
    count: int
    bounded: bool = False
    """Every value lies in [0, 1]."""

    @property
    def ci95(self) -> tuple[float, float]:
        """95 % confidence interval.

        In general the mean ± 1.96 standard errors. For values in [0, 1] it is Wilson's score interval (Wilson
        1927): it stays inside [0, 1] and keeps a width where all values are equal. It is exact in form for
        values of 0 and 1 and wider than needed for others, whose variance is at most p (1 - p).
        """
        if not self.bounded:
            return self.value - Z95 * self.error, self.value + Z95 * self.error
        z2 = Z95**2 / self.count
        spread = Z95 * sqrt((self.value * (1 - self.value) + z2 / 4) / self.count)
        low, high = ((self.value + z2 / 2 + sign * spread) / (1 + z2) for sign in (-1, 1))
        return max(0.0, low), min(1.0, high)


def mean_of(values: Sequence[float]) -> Mean:
    """Mean and standard error s / sqrt(n) of independent values; InvalidInput for none."""
    if not values:
        raise InvalidInput("no values to take a mean of", hint="run at least one evaluation rollout")
    error = sqrt(variance(values) / len(values)) if len(values) > 1 else 0.0
    return Mean(fmean(values), error, len(values), bounded=all(0 <= value <= 1 for value in values))


def improved(before: Mean, after: Mean) -> bool:
    """True when `after` is above `before` by more than 1.96 standard errors of the difference."""
    return after.value - before.value > Z95 * sqrt(before.error**2 + after.error**2)
