"""Helpers programs use, resolved lazily: `from art.utils import iterate_dataset, retry`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from art.rollouts.retry import retry
    from art.utils.iterate import DatasetBatch, iterate_dataset

__all__ = ["DatasetBatch", "iterate_dataset", "retry"]

_HOMES = {
    "DatasetBatch": "art.utils.iterate",
    "iterate_dataset": "art.utils.iterate",
    "retry": "art.rollouts.retry",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
