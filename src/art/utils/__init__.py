"""Helpers programs use, resolved lazily: `from art.utils import iterate_dataset, retry`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from art.rollouts.allow import Refusal, allow, under
    from art.rollouts.effects import Effect, Recorded, dry_run, record
    from art.rollouts.retry import retry
    from art.rollouts.sandbox import Sandbox, SandboxResult
    from art.rollouts.toolbox import Toolbox
    from art.utils.iterate import DatasetBatch, iterate_dataset

__all__ = [
    "DatasetBatch",
    "Effect",
    "Recorded",
    "Refusal",
    "Sandbox",
    "SandboxResult",
    "Toolbox",
    "allow",
    "dry_run",
    "iterate_dataset",
    "record",
    "retry",
    "under",
]

_HOMES = {
    "DatasetBatch": "art.utils.iterate",
    "Effect": "art.rollouts.effects",
    "Recorded": "art.rollouts.effects",
    "Refusal": "art.rollouts.allow",
    "Sandbox": "art.rollouts.sandbox",
    "SandboxResult": "art.rollouts.sandbox",
    "Toolbox": "art.rollouts.toolbox",
    "allow": "art.rollouts.allow",
    "dry_run": "art.rollouts.effects",
    "iterate_dataset": "art.utils.iterate",
    "record": "art.rollouts.effects",
    "retry": "art.rollouts.retry",
    "under": "art.rollouts.allow",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
