"""What an evaluation found, run by run, and the figures made of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from art.errors import InvalidInput
from art.evals.bootstrap import bootstrap_ci, pass_at_k, quantile

MILLION = 1_000_000


class Prices(BaseModel):
    """What a million tokens cost, in any currency."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prompt: float = Field(ge=0)
    completion: float = Field(ge=0)


class EvalRun(BaseModel):
    """One run of the agent on one scenario."""

    reward: float | None = None
    """None for a run that ended without one; `error` says why."""
    seconds: float = 0.0
    """Wall time of the run, the reward function included."""
    calls: int = 0
    """Calls of the model."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    error: str = ""
    infrastructure: bool = False
    """The failure was ART's, the network's or the machine's, and says nothing about the agent."""
    rollout_id: str | None = None
    """The server's record of the run; None for a model that ART does not serve."""


class ScenarioRuns(BaseModel):
    """All runs of one scenario."""

    id: str
    runs: list[EvalRun]

    @property
    def rewards(self) -> list[float]:
        """Of the runs that have one."""
        return [run.reward for run in self.runs if run.reward is not None]

    @property
    def mean(self) -> float | None:
        """None where no run has a reward."""
        return fmean(self.rewards) if self.rewards else None


@dataclass(frozen=True)
class Latency:
    """Seconds of the runs that ended."""

    mean: float
    p50: float
    p95: float


class EvalResult(BaseModel):
    """An evaluation. `mean` and `ci95` are over scenarios, each of which counts once however often it was run."""

    model: str
    """`project/name@step`, or the name that an OpenAI-compatible service was asked for."""
    scenarios: list[ScenarioRuns]
    repeats: int
    seed: int = 0
    success_at: float = 1.0
    """A run passes whose reward is at least this."""
    prices: Prices | None = None

    @property
    def runs(self) -> list[EvalRun]:
        """All of them, scenario by scenario."""
        return [run for scenario in self.scenarios for run in scenario.runs]

    @property
    def rewards(self) -> dict[str, list[float]]:
        """By scenario."""
        return {scenario.id: scenario.rewards for scenario in self.scenarios}

    @property
    def means(self) -> dict[str, float]:
        """The mean reward of each scenario that has one."""
        return {one.id: one.mean for one in self.scenarios if one.mean is not None}

    @property
    def mean(self) -> float:
        """Mean over scenarios of their mean rewards. InvalidInput when no run has a reward."""
        if not self.means:
            raise InvalidInput(
                "no run ended with a reward", cause=self._first_error(), hint="see result.runs"
            )
        return fmean(self.means.values())

    @cached_property
    def ci95(self) -> tuple[float, float] | None:
        """95 % interval of the mean (`bootstrap.bootstrap_ci`); None where the scenarios tell nothing about it."""
        return bootstrap_ci(list(self.means.values()), seed=self.seed)

    @property
    def failures(self) -> int:
        """Runs that the agent's own exception ended."""
        return sum(bool(run.error) and not run.infrastructure for run in self.runs)

    @property
    def infra_failures(self) -> int:
        """Runs that a failure of ART, the network or the machine ended."""
        return sum(run.infrastructure for run in self.runs)

    def pass_at(self, k: int) -> float:
        """pass@k: mean over the scenarios with at least k judged runs of `bootstrap.pass_at_k`. InvalidInput for none."""
        judged = [one.rewards for one in self.scenarios if len(one.rewards) >= k]
        if not judged:
            raise InvalidInput(
                f"pass@{k} needs scenarios with at least {k} judged runs", hint=f"evaluate(..., repeats={k})"
            )
        return fmean(
            pass_at_k(len(rewards), sum(reward >= self.success_at for reward in rewards), k)
            for rewards in judged
        )

    @property
    def pass_at_k(self) -> dict[int, float]:
        """pass@k for k = 1, 2, 4, ... and `repeats`, as far as every scenario that was judged has so many runs."""
        fewest = min((len(one.rewards) for one in self.scenarios if one.rewards), default=0)
        powers = [2**power for power in range(fewest.bit_length()) if 2**power <= fewest]
        return {k: self.pass_at(k) for k in dict.fromkeys([*powers, fewest]) if k}

    @property
    def latency(self) -> Latency | None:
        """None when every run failed."""
        seconds = sorted(run.seconds for run in self.runs if not run.error)
        if not seconds:
            return None
        return Latency(mean=fmean(seconds), p50=quantile(seconds, 0.5), p95=quantile(seconds, 0.95))

    @property
    def prompt_tokens(self) -> int:
        """Of all runs."""
        return sum(run.prompt_tokens for run in self.runs)

    @property
    def completion_tokens(self) -> int:
        """Of all runs."""
        return sum(run.completion_tokens for run in self.runs)

    @property
    def cost(self) -> float | None:
        """Of all runs, at `prices`; None without prices."""
        if self.prices is None:
            return None
        spent = self.prompt_tokens * self.prices.prompt + self.completion_tokens * self.prices.completion
        return spent / MILLION

    def summary(self) -> dict[str, Any]:
        """The figures and every run as JSON data, which `load` reads."""
        latency = self.latency
        return {
            **self.model_dump(mode="json"),
            "mean": self.mean,
            "ci95": self.ci95,
            "pass_at_k": {str(k): value for k, value in self.pass_at_k.items()},
            "latency_seconds": None if latency is None else vars(latency),
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "cost": self.cost,
            "failures": self.failures,
            "infra_failures": self.infra_failures,
        }

    @classmethod
    def load(cls, data: object) -> EvalResult:
        """The result behind a `summary()`. InvalidInput for other data."""
        try:
            if not isinstance(data, dict):
                raise InvalidInput(f"an evaluation is a JSON object, not a {type(data).__name__}")
            return cls.model_validate({name: data[name] for name in cls.model_fields.keys() & data.keys()})
        except ValidationError as error:
            raise InvalidInput(
                "this is no evaluation", cause=str(error), hint="art eval --json writes one"
            ) from error

    def lines(self) -> list[str]:
        """What a person reads."""
        judged = sum(run.reward is not None for run in self.runs)
        out = [
            f"{self.model}: mean reward {self.mean:.4g}{interval(self.ci95)}"
            f" over {len(self.means)} scenarios, {judged} runs"
        ]
        passes = ", ".join(f"pass@{k} {value:.3g}" for k, value in self.pass_at_k.items())
        out.append(f"  {passes} (a run passes with a reward of at least {self.success_at:g})")
        if (latency := self.latency) is not None:
            out.append(
                f"  {latency.mean:.3g} s a run (median {latency.p50:.3g}, 95th percentile {latency.p95:.3g});"
                f" {self.prompt_tokens} prompt and {self.completion_tokens} completion tokens"
                + ("" if self.cost is None else f", cost {self.cost:.4g}")
            )
        if self.failures or self.infra_failures:
            out.append(
                f"  without a result: {self.failures} runs by the agent's exception, {self.infra_failures} by"
                f" infrastructure; the first: {self._first_error()}"
            )
        return out

    def _repr_html_(self) -> str:
        from art.notebook import evaluation_html

        return evaluation_html(self)

    def _first_error(self) -> str:
        return next((run.error.splitlines()[0] for run in self.runs if run.error), "")


def interval(ci95: tuple[float, float] | None) -> str:
    """A confidence interval behind a number."""
    return "" if ci95 is None else f" (95 % {ci95[0]:.4g} to {ci95[1]:.4g})"
