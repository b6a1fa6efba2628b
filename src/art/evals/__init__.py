"""Evaluation: rewards with confidence intervals, pass@k, latency and cost; comparison of two evaluations.

Resolved lazily: `from art.evals import compare, evaluate`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from art.evals.comparison import Comparison, compare
    from art.evals.evaluation import evaluate
    from art.evals.result import EvalResult, EvalRun, Prices, ScenarioRuns

__all__ = ["Comparison", "EvalResult", "EvalRun", "Prices", "ScenarioRuns", "compare", "evaluate"]

_HOMES = {
    "Comparison": "art.evals.comparison",
    "EvalResult": "art.evals.result",
    "EvalRun": "art.evals.result",
    "Prices": "art.evals.result",
    "ScenarioRuns": "art.evals.result",
    "compare": "art.evals.comparison",
    "evaluate": "art.evals.evaluation",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
