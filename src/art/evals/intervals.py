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

    @property
    def ci95(self) -> tuple[float, float]:
        """95 % confidence interval: mean ± 1.96 standard errors."""
        return self.value - Z95 * self.error, self.value + Z95 * self.error


def mean_of(values: Sequence[float]) -> Mean:
    """Mean and standard error s / sqrt(n) of independent values; InvalidInput for none."""
    if not values:
        raise InvalidInput("no values to take a mean of", hint="run at least one evaluation rollout")
    error = sqrt(variance(values) / len(values)) if len(values) > 1 else 0.0
    return Mean(fmean(values), error, len(values))


def improved(before: Mean, after: Mean) -> bool:
    """True when `after` is above `before` by more than 1.96 standard errors of the difference."""
    return after.value - before.value > Z95 * sqrt(before.error**2 + after.error**2)
