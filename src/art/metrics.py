"""`MetricsBuilder`: figures and costs that a program counts while a step runs, and that go into the step's row.

`model.metrics_builder()` is the one of a model: what is added to it comes into the next row that the model logs.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import Token
from dataclasses import dataclass, field
from typing import Any

from art.config.budget import ModelPrice
from art.costs.prices import ModelPricing, get_model_pricing
from art.costs.tracking import active, named, provider_name, track_api_cost
from art.costs.usage import cost_of
from art.errors import InvalidInput
from art.types.cumulative import advance, is_cumulative
from art.utils.console import Notices

__all__ = ["CostExtractor", "MetricsBuilder", "track_api_cost"]

CostExtractor = Callable[[Any], float | None]
"""USD of a provider's answer; None where it cannot tell."""

UNPRICED = "data/step_num_unpriced_calls"
SCENARIOS = "data/cum/num_unique_scenarios"
_notices = Notices()


@dataclass
class _Pending:
    figures: dict[str, float] = field(default_factory=dict)
    scenarios: set[str] = field(default_factory=set)


@dataclass
class _Shared:
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Not asyncio's: rollouts may count from threads, and a model is bound to no event loop."""
    pending: dict[str, _Pending] = field(default_factory=dict)
    """By scope."""
    totals: dict[str, float] = field(default_factory=dict)
    scenarios: set[str] = field(default_factory=set)
    extractors: dict[str, CostExtractor] = field(default_factory=dict)
    prices: dict[str, ModelPricing] = field(default_factory=dict)
    used: bool = False
    """Something was counted, by this program or by the one whose state it took over."""


class MetricsBuilder:
    """Counts for one `cost_context` (`train`, `eval`): costs of answers come under `costs/{cost_context}/...`.

    May be used from any task and any thread. `flush` gives what was counted since the last time, with the sums of the
    costs and of the run. InvalidInput for a name or a value that cannot be.
    """

    def __init__(
        self, cost_context: str, *, _shared: _Shared | None = None, _scope: str | None = None
    ) -> None:
        self.cost_context = named(cost_context, "cost_context")
        self._scope = _scope or self.cost_context
        self._shared = _shared or _Shared()

    # -- counting

    def add_metric(self, key: str, value: float) -> None:
        """Add to a metric with its section: `time/step_actor_s`. Sums over the run are made here, and refused."""
        if "/" not in key:
            raise InvalidInput(f"the metric {key!r} has no section", hint="write it like data/step_num_calls")
        if is_cumulative(key):
            raise InvalidInput(
                f"{key} is a sum over the run, and is made by flush()", hint="add the step's own value"
            )
        number = float(value)
        if not math.isfinite(number):
            raise InvalidInput(f"{key} is {number}", hint="give a finite number")
        with self._shared.lock:
            figures = self._pending().figures
            for known in figures:
                if known.startswith(f"{key}/") or key.startswith(f"{known}/"):
                    raise InvalidInput(
                        f"{key} and {known} cannot both be counted",
                        cause="one is the sum of what is under it",
                        hint="add to the longer name alone",
                    )
            figures[key] = figures.get(key, 0.0) + number
            self._shared.used = True

    def add_cost(self, path: str, usd: float) -> None:
        """Add USD under `costs/{path}`."""
        self.add_metric(f"costs/{named(path, 'path')}", usd)

    def add_response_cost(
        self,
        source: str,
        response: Any,
        *,
        provider: str,
        model_name: str,
        prompt_price_per_million: float | None = None,
        completion_price_per_million: float | None = None,
        cached_prompt_price_per_million: float | None = None,
        cache_creation_price_per_million: float | None = None,
        cache_read_price_per_million: float | None = None,
    ) -> float | None:
        """Add what an answer of a paid model cost, under `costs/{cost_context}/{source}`; the USD.

        In this order: what the answer itself says, the provider's registered extractor, its tokens at the prices given
        here, registered (`register_model_pricing`), or known (`art.costs.MODEL_PRICING`). None where nothing of this
        tells: the call is then counted in `data/step_num_unpriced_calls`, and said once, never taken for free.
        """
        where = named(source.strip("/"), "source")
        given = _given_prices(
            prompt=prompt_price_per_million,
            completion=completion_price_per_million,
            cached_prompt=cached_prompt_price_per_million,
            cache_creation=cache_creation_price_per_million,
            cache_read=cache_read_price_per_million,
        )
        name = named(model_name, "model_name")
        price = _priced(given, get_model_pricing(name, self._shared.prices))
        extractor = self._shared.extractors.get(provider_name(provider))
        cost = cost_of(response, None)
        if cost is None and extractor is not None:
            cost = extractor(response)
        if cost is None:
            cost = cost_of(response, price)
        if cost is None:
            self.add_metric(UNPRICED, 1.0)
            why = (
                "its price is not known"
                if price is None
                else "its answer does not say how many tokens it used"
            )
            _notices.show(
                [f"the cost of {name} is not counted: {why} (register_model_pricing, docs/metrics.md)"]
            )
            return None
        self.add_cost(f"{self.cost_context}/{where}", cost)
        return cost

    def add_data(
        self,
        step_num_scenarios: int | None = None,
        step_actor_tokens: int | None = None,
        scenario_ids: Iterable[str] | None = None,
    ) -> None:
        """Add counts; each different scenario id counts once in the run."""
        self._add_given("data", step_num_scenarios=step_num_scenarios, step_actor_tokens=step_actor_tokens)
        if scenario_ids is not None:
            found = {str(one) for one in scenario_ids}
            with self._shared.lock:
                self._pending().scenarios |= found
                self._shared.used = True

    def add_user_timing(
        self,
        step_wall_s: float | None = None,
        step_actor_s: float | None = None,
        step_eval_s: float | None = None,
    ) -> None:
        """Add seconds."""
        self._add_given("time", step_wall_s=step_wall_s, step_actor_s=step_actor_s, step_eval_s=step_eval_s)

    def add_idle_times(
        self, step_trainer_idle_s: float | None = None, step_actor_idle_s: float | None = None
    ) -> None:
        """Add seconds in which nothing was trained, or no rollout ran."""
        self._add_given(
            "throughput", step_trainer_idle_s=step_trainer_idle_s, step_actor_idle_s=step_actor_idle_s
        )

    def _add_given(self, section: str, **values: float | None) -> None:
        for name, value in values.items():
            if value is not None:
                self.add_metric(f"{section}/{name}", value)

    @contextmanager
    def measure(self, key: str) -> Iterator[None]:
        """Add the seconds that were spent inside."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.add_metric(key, time.monotonic() - started)

    # -- what was counted

    async def flush(self) -> dict[str, float]:
        """What was counted since the last time, with sums; for `model.log(metrics=...)` of another model, or a file."""
        with self._shared.lock:
            pending = self._shared.pending.pop(self._scope, _Pending())
            self._shared.totals, added = advance(self._shared.totals, pending.figures)
            self._shared.scenarios |= pending.scenarios
            if pending.scenarios:
                added[SCENARIOS] = float(len(self._shared.scenarios))
            return {**pending.figures, **added}

    def take(self) -> dict[str, float]:
        """What was counted since the last time, without sums: whoever keeps the run makes them. See `give_back`."""
        with self._shared.lock:
            pending = self._shared.pending.get(self._scope)
            if pending is None:
                return {}
            figures, pending.figures = pending.figures, {}
            return figures

    def give_back(self, figures: Mapping[str, float]) -> None:
        """Count again what was taken and has come nowhere."""
        with self._shared.lock:
            pending = self._pending().figures
            for key, value in figures.items():
                pending[key] = pending.get(key, 0.0) + value

    @property
    def used(self) -> bool:
        """Whether anything was ever counted."""
        return self._shared.used

    def know(self, totals: Mapping[str, float]) -> None:
        """Take over the run's sums from whoever keeps them."""
        with self._shared.lock:
            self._shared.totals |= totals

    def _pending(self) -> _Pending:
        return self._shared.pending.setdefault(self._scope, _Pending())

    # -- the active builder

    def activate(self) -> Token[MetricsBuilder]:
        """Count what `track_api_cost` finds in this task, and in those it starts from now on, here."""
        return active.set(self)

    @contextmanager
    def activate_context(self) -> Iterator[MetricsBuilder]:
        """`activate` for a block."""
        token = self.activate()
        try:
            yield self
        finally:
            active.reset(token)

    @staticmethod
    def get_active() -> MetricsBuilder:
        """The active builder; LookupError when there is none."""
        return active.get()

    def for_cost_context(self, cost_context: str, *, buffer_scope: str | None = None) -> MetricsBuilder:
        """A builder with the same sums and prices that counts under another context, and is flushed by itself."""
        name = named(cost_context, "cost_context")
        scope = name if buffer_scope is None else named(buffer_scope, "buffer_scope")
        if (name, scope) == (self.cost_context, self._scope):
            return self
        return MetricsBuilder(name, _shared=self._shared, _scope=scope)

    # -- prices and state

    def register_cost_extractor(self, provider: str, extractor: CostExtractor) -> None:
        """`extractor(response)` tells the USD of an answer of `provider`, or None."""
        self._shared.extractors[provider_name(provider)] = extractor

    def register_model_pricing(
        self,
        model_name: str,
        *,
        prompt_per_million: float,
        completion_per_million: float,
        cached_prompt_per_million: float | None = None,
        cache_creation_per_million: float | None = None,
        cache_read_per_million: float | None = None,
    ) -> None:
        """USD for a million tokens of a model; wins over `art.costs.MODEL_PRICING`."""
        given = _given_prices(
            prompt=prompt_per_million,
            completion=completion_per_million,
            cached_prompt=cached_prompt_per_million,
            cache_creation=cache_creation_per_million,
            cache_read=cache_read_per_million,
        )
        price = _priced(given, None)
        assert price is not None, "both prices are given"
        self._shared.prices[named(model_name, "model_name")] = price

    def register_price(self, model_name: str, price: ModelPrice) -> None:
        """A price as a configuration has it."""
        self._shared.prices[named(model_name, "model_name")] = ModelPricing.of(price)

    def state_dict(self) -> dict[str, Any]:
        """The sums over the run, as JSON data."""
        with self._shared.lock:
            return {
                "cum_state": dict(self._shared.totals),
                "unique_scenario_ids": sorted(self._shared.scenarios),
            }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`; what was counted and not flushed is dropped."""
        totals = {str(key): float(value) for key, value in state.get("cum_state", {}).items()}
        scenarios = {str(one) for one in state.get("unique_scenario_ids", [])}
        with self._shared.lock:
            self._shared.totals, self._shared.scenarios = totals, scenarios
            self._shared.pending.clear()
            self._shared.used = True


def _given_prices(
    *,
    prompt: float | None,
    completion: float | None,
    cached_prompt: float | None,
    cache_creation: float | None,
    cache_read: float | None,
) -> dict[str, float]:
    """Prices by ModelPricing's field. OpenAI's word for tokens read from a cache is `cached_prompt`, Anthropic's `cache_read`."""
    named = {
        "prefill": prompt,
        "sample": completion,
        "cached_prefill": cache_read if cached_prompt is None else cached_prompt,
        "cache_creation": cache_creation,
    }
    found = {name: float(value) for name, value in named.items() if value is not None}
    for name, value in found.items():
        if not 0 <= value < math.inf:
            raise InvalidInput(f"the price {name} is {value}", hint="give USD for a million tokens")
    return found


def _priced(given: Mapping[str, float], known: ModelPricing | None) -> ModelPricing | None:
    """The known price with what is given in its place; None while prompt or completion have none."""
    if known is None:
        if not {"prefill", "sample"} <= given.keys():
            return None
        known = ModelPricing(given["prefill"], given["sample"], source="the program")
    return ModelPricing(**{**vars(known), **given})
