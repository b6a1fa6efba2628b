"""Two evaluations of the same scenarios, compared scenario by scenario."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import Any

from art.errors import InvalidInput
from art.evals.bootstrap import percentile_ci, sign_flip_p
from art.evals.result import EvalResult, interval

ALPHA = 0.05


@dataclass(frozen=True)
class Comparison:
    """How `b` differs from `a`."""

    a: str
    b: str
    scenarios: int
    """Those that both have a reward for; only these are compared."""
    mean_a: float
    mean_b: float
    difference: float
    """Mean over scenarios of b's mean reward minus a's."""
    ci95: tuple[float, float] | None
    """Paired bootstrap interval of the difference; None where all scenarios differ alike, or there is one."""
    p_value: float
    """Of the paired sign-flip test (`bootstrap.sign_flip_p`)."""
    wins: int
    """Scenarios in which b is better."""
    losses: int
    unpaired: int
    """Scenarios that only one of the two has a reward for."""

    @property
    def significant(self) -> bool:
        """True when the difference is more than chance explains: p under 0.05, and 0 outside the interval."""
        outside = self.ci95 is None or not self.ci95[0] <= 0 <= self.ci95[1]
        return self.p_value < ALPHA and outside

    def summary(self) -> dict[str, Any]:
        """As JSON data."""
        return {**vars(self), "significant": self.significant}

    def lines(self) -> list[str]:
        """What a person reads."""
        verdict = "more than chance explains" if self.significant else "within what chance explains"
        out = [
            f"{self.b} against {self.a}: {self.difference:+.4g}{interval(self.ci95)}, {verdict}"
            f" (p {self.p_value:.3g}); better in {self.wins}, worse in {self.losses} of {self.scenarios} scenarios"
        ]
        if self.unpaired:
            out.append(
                f"  {self.unpaired} scenarios have a reward in one of the two only and were not compared"
            )
        return out


def compare(a: EvalResult, b: EvalResult, *, seed: int = 0) -> Comparison:
    """How `b` differs from `a`, paired by scenario: what makes a scenario easy or hard drops out.

    Scenarios are paired by their ids (a scenario's own `id`, else a digest of its content). The interval is the
    percentile bootstrap of the paired differences. InvalidInput when no scenario has a reward in both.
    """
    means_a, means_b = a.means, b.means
    common = [name for name in means_a if name in means_b]
    if not common:
        raise InvalidInput(
            f"{a.model} and {b.model} were evaluated on different scenarios",
            cause="no scenario has a reward in both",
            hint="evaluate both on one list of scenarios",
        )
    differences = [means_b[name] - means_a[name] for name in common]
    alike = len(set(differences)) == 1
    return Comparison(
        a=a.model,
        b=b.model,
        scenarios=len(common),
        mean_a=fmean(means_a[name] for name in common),
        mean_b=fmean(means_b[name] for name in common),
        difference=fmean(differences),
        ci95=None if alike else percentile_ci(differences, seed=seed),
        p_value=sign_flip_p(differences, seed=seed),
        wins=sum(value > 0 for value in differences),
        losses=sum(value < 0 for value in differences),
        unpaired=len(means_a.keys() ^ means_b.keys()),
    )
