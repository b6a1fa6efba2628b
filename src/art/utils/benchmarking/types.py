"""Which model a chart shows, and under what name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BenchmarkModelKey:
    """One model's split in a chart."""

    name: str
    display_name: str | None = None
    """In the legend; None is the model's name."""
    split: str = "val"

    @property
    def label(self) -> str:
        """In the legend."""
        return self.display_name or self.name


def key_of(model: BenchmarkModelKey | str) -> BenchmarkModelKey:
    """A name alone means its `val` split."""
    return BenchmarkModelKey(model) if isinstance(model, str) else model
