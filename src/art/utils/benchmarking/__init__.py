"""Tables and charts over many models, from what was logged of them (`pip install 'agent-reinforcement-trainer[benchmarking]'`)."""

from __future__ import annotations

from typing import Any

_INSTEAD = {
    "load_aggregated_trajectories": "load_trajectories(...) gives the frame: .group_by('model', 'split', 'step').agg(...)",
    "load_latest_metrics": "a model's history.jsonl has its rows; art.plot reads it",
    "filter_rename_model_split": "filter the frame of load_trajectories by its columns model and split",
    "pull_model_trajectories": "trajectories are in the server's folder: `art export` writes them to a file",
    "log_constant_metrics_wandb": "art.plot.compare draws several runs into one figure",
    "display_image_grid": "a notebook shows figures side by side",
    "generate_comparison_table": "art.evals.compare(a, b) compares two evaluations, with intervals",
    "load_benchmarked_models": "load_trajectories(...) gives the frame",
}
"""What programs for openpipe-art may ask for and is not here, and what there is instead."""


def __getattr__(name: str) -> Any:
    if name in _INSTEAD:
        raise AttributeError(
            f"art.utils.benchmarking.{name} is not in this release; instead: {_INSTEAD[name]}"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
