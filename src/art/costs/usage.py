"""The cost of one answer of a paid model: what the provider says, else its tokens at the model's price."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from art.costs.prices import ModelPricing, tokens_to_cost


@dataclass(frozen=True)
class Usage:
    """Tokens of one answer, as they are billed: no token is in two fields."""

    prompt: float = 0.0
    cached_prompt: float = 0.0
    cache_creation: float = 0.0
    completion: float = 0.0

    def cost(self, price: ModelPricing) -> float:
        """USD at a price."""
        cached = price.prefill if price.cached_prefill is None else price.cached_prefill
        created = price.prefill if price.cache_creation is None else price.cache_creation
        return (
            tokens_to_cost(self.prompt, price.prefill)
            + tokens_to_cost(self.cached_prompt, cached)
            + tokens_to_cost(self.cache_creation, created)
            + tokens_to_cost(self.completion, price.sample)
        )


def usage_of(response: Any) -> Usage | None:
    """The tokens that an answer of OpenAI's or Anthropic's form says it used; None when it says nothing.

    OpenAI counts cached tokens among its prompt tokens (`prompt_tokens_details`), Anthropic beside its input tokens
    (`cache_read_input_tokens`): that field tells the two forms apart where both say `input_tokens`.
    """
    usage = _field(response, "usage")
    prompt = _number(usage, "prompt_tokens", "input_tokens")
    completion = _number(usage, "completion_tokens", "output_tokens")
    read = _number(usage, "cache_read_input_tokens")
    created = _number(usage, "cache_creation_input_tokens")
    if prompt is None and completion is None and read is None and created is None:
        return None
    if read is not None or created is not None:
        return Usage(prompt or 0.0, read or 0.0, created or 0.0, completion or 0.0)
    details = _field(usage, "prompt_tokens_details") or _field(usage, "input_tokens_details")
    cached = min(_number(details, "cached_tokens") or 0.0, prompt or 0.0)
    return Usage((prompt or 0.0) - cached, cached, 0.0, completion or 0.0)


def cost_said(response: Any) -> float | None:
    """USD as the answer itself says: `usage.cost` of OpenRouter and its like; None when it does not."""
    cost = _field(_field(response, "usage"), "cost")
    found = _as_number(cost)
    return _as_number(_field(cost, "total_cost")) if found is None else found


def cost_of(response: Any, price: ModelPricing | None) -> float | None:
    """USD: what the answer says, else its tokens at `price`; None when neither is known."""
    said = cost_said(response)
    if said is not None:
        return said
    usage = usage_of(response)
    return None if usage is None or price is None else usage.cost(price)


def _field(owner: Any, name: str) -> Any:
    if owner is None:
        return None
    return owner.get(name) if isinstance(owner, Mapping) else getattr(owner, name, None)


def _number(owner: Any, *names: str) -> float | None:
    """The first of the fields that is a number."""
    found = (_as_number(_field(owner, name)) for name in names)
    return next((number for number in found if number is not None), None)


def _as_number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if value >= 0 and value != float("inf") else None
