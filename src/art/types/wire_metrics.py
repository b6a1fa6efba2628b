"""What the read API tells of figures: part of `wire_views`, which names it too."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


class MetricInfo(BaseModel):
    """What a figure means; `art.types.metrics` is where it comes from."""

    name: str
    """`section/name`, or a pattern whose `*` is one part of a name."""
    title: str
    unit: str
    """`tokens`, `s`, `USD`, `nats`, `1` for a ratio, `` for a reward."""
    meaning: str
    """One line for a person."""
    direction: Literal["up", "down", ""] = ""
    """Which way is better; empty where neither is."""
    warn_below: float | None = None
    warn_above: float | None = None
    warning: str = ""
    """What is likely wrong past these, and what to do."""


class MetricList(BaseModel):
    metrics: list[MetricInfo]
    sections: dict[str, str] = Field(default_factory=dict)
    """First part of a name to its title, in the order in which a person looks at them."""
