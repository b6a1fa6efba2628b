"""What a run may use up before it ends, and what paid models cost."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field

COST = "costs/cum/all"
TOKENS = "data/cum/actor_tokens"
SECONDS = "time/cum/wall_s"
UNPRICED = "data/cum/num_unpriced_calls"


class Budget(BaseModel):
    """Bounds of a whole run, the programs that it was resumed in counted together. None is none.

    A run ends after the step that reaches one of them, with the reason.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    usd: float | None = Field(default=None, gt=0)
    """Of `costs/cum/all`: paid models whose price is known, and the machine where its price an hour is given."""
    tokens: int | None = Field(default=None, ge=1)
    """Of `data/cum/actor_tokens`: tokens that training rollouts sampled."""
    seconds: float | None = Field(default=None, gt=0)
    """Of `time/cum/wall_s`: seconds of its steps; pauses between two programs do not count."""

    def used_up(self, totals: Mapping[str, float]) -> str:
        """Why the run ends, for a person; empty while there is something left. `totals`: the run's newest sums."""
        if self.usd is not None and (cost := totals.get(COST, 0.0)) >= self.usd:
            unpriced = totals.get(UNPRICED, 0.0)
            more = f", and {unpriced:.0f} calls whose price nobody knows" if unpriced else ""
            return f"the budget of {self.usd:g} USD is used up: the run has cost {cost:.4g} USD{more}"
        if self.tokens is not None and (tokens := totals.get(TOKENS, 0.0)) >= self.tokens:
            return f"the budget of {self.tokens} tokens is used up: the run has sampled {tokens:.0f}"
        if self.seconds is not None and (seconds := totals.get(SECONDS, 0.0)) >= self.seconds:
            return f"the budget of {self.seconds:g} s is used up: the run's steps took {seconds:.0f} s"
        return ""

    def without_effect(self, totals: Mapping[str, float]) -> str:
        """What to tell when nothing of a run that has made a step has a price; empty otherwise."""
        if self.usd is None or COST in totals:
            return ""
        return (
            f"budget: nothing of this run has a price so far, so {self.usd:g} USD cannot end it; give "
            "gpu_cost_per_hour_usd to the backend, or count paid models with art.metrics.track_api_cost"
        )


class ModelPrice(BaseModel):
    """What a million tokens of a paid model cost, in USD."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prompt: float = Field(ge=0)
    completion: float = Field(ge=0)
    cached_prompt: float | None = Field(default=None, ge=0)
    """Prompt tokens that were read from a cache; None is the price of any other prompt token."""
    cache_creation: float | None = Field(default=None, ge=0)
    """Prompt tokens that were written to a cache; None is the price of any other prompt token."""
