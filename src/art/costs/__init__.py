"""What paid models cost: prices by model, and the cost of an answer."""

from __future__ import annotations

from art.costs.prices import MODEL_PRICING, ModelPricing, get_model_pricing, tokens_to_cost
from art.costs.usage import Usage, cost_of, usage_of

__all__ = [
    "MODEL_PRICING",
    "ModelPricing",
    "Usage",
    "cost_of",
    "get_model_pricing",
    "tokens_to_cost",
    "usage_of",
]
