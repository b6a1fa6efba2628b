"""Prices of paid models, from the data file beside this module; a program may add its own."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from art.config.budget import ModelPrice

MILLION = 1_000_000
_DATE = re.compile(r"-(\d{4}-\d{2}-\d{2}|\d{8}|latest)$")
"""What providers put behind a model's name for one of its snapshots."""


@dataclass(frozen=True)
class ModelPricing:
    """What a million tokens of a model cost, in USD, and how that is known."""

    prefill: float
    """Prompt tokens."""
    sample: float
    """Completion tokens."""
    train: float | None = None
    """Trained tokens, where the provider trains; None where it does not, or nobody knows."""
    cached_prefill: float | None = None
    """Prompt tokens read from a cache; None is the price of any other prompt token."""
    cache_creation: float | None = None
    """Prompt tokens written to a cache; None is the price of any other prompt token."""
    as_of: str = ""
    """Date, or month, of the source."""
    source: str = ""

    @classmethod
    def of(cls, price: ModelPrice) -> ModelPricing:
        """A price that a user configured."""
        return cls(
            prefill=price.prompt,
            sample=price.completion,
            cached_prefill=price.cached_prompt,
            cache_creation=price.cache_creation,
            source="the program",
        )


@cache
def _table() -> dict[str, ModelPricing]:
    """The data file. Read at the first question, not when the module is imported."""
    data = tomllib.loads(files("art.costs").joinpath("prices.toml").read_text(encoding="utf-8"))
    found = {}
    for source in data["source"]:
        for name, price in source["models"].items():
            found[name] = ModelPricing(**price, as_of=source["as_of"], source=source["url"])
    return found


class _Prices(MutableMapping[str, ModelPricing]):
    """The data file's prices and those that a program put beside or over them."""

    def __getitem__(self, name: str) -> ModelPricing:
        return _table()[name]

    def __setitem__(self, name: str, price: ModelPricing) -> None:
        _table()[name] = price

    def __delitem__(self, name: str) -> None:
        del _table()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_table())

    def __len__(self) -> int:
        return len(_table())


MODEL_PRICING: MutableMapping[str, ModelPricing] = _Prices()
"""By model name, as providers write it. Assign to add a price for the whole program."""


def get_model_pricing(
    model_name: str, registered: Mapping[str, ModelPricing] | None = None
) -> ModelPricing | None:
    """The price of a model; None when nobody knows. `registered`: prices that win over the table.

    `openai/gpt-4.1` and `gpt-4.1-2025-04-14` are `gpt-4.1`, unless they have a price of their own.
    """
    for name in _names(model_name.strip()):
        for table in (registered or {}, MODEL_PRICING):
            if name in table:
                return table[name]
    return None


def _names(model_name: str) -> Iterator[str]:
    """The name, then without its provider, each also without its date."""
    for name in dict.fromkeys((model_name, model_name.rpartition("/")[2])):
        yield name
        if (undated := _DATE.sub("", name)) != name:
            yield undated


def tokens_to_cost(tokens: float, price_per_million: float) -> float:
    """USD."""
    return tokens * price_per_million / MILLION
