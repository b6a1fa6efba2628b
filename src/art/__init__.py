"""ART: make an LLM agent better at its own task, from its own runs.

Names are resolved when they are first used: `import art` loads neither torch nor openai nor a web framework.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from art import errors
    from art.backends.local import LocalBackend
    from art.backends.protocol import Backend
    from art.backends.remote import RemoteBackend
    from art.backends.results import LocalTrainResult, TrainResult
    from art.config.model import LoraConfig
    from art.config.sft import TrainSFTConfig
    from art.config.train import TrainConfig
    from art.errors import ArtError
    from art.evals.evaluation import evaluate
    from art.model import Model, TrainableModel
    from art.rollouts.auto import auto_trajectory, capture_auto_trajectory
    from art.rollouts.batches import trajectory_group_batches
    from art.rollouts.fit import fit
    from art.rollouts.fit_report import FitResult
    from art.rollouts.gather import gather_trajectories, gather_trajectory_groups
    from art.rollouts.pipeline import PipelineTrainer as PipelineTrainer  # beside __all__, which is full
    from art.rollouts.retry import retry
    from art.rollouts.session import rollout
    from art.rollouts.wrap import wrap
    from art.rollouts.yielded import capture_yielded_trajectory, yield_trajectory
    from art.trajectories import (
        History,
        Messages,
        MessagesAndChoices,
        Tools,
        Trajectory,
        TrajectoryGroup,
    )
    from art.utils.iterate import iterate_dataset

__all__ = [
    "ArtError",
    "Backend",
    "FitResult",
    "History",
    "LocalBackend",
    "LocalTrainResult",
    "LoraConfig",
    "Messages",
    "MessagesAndChoices",
    "Model",
    "RemoteBackend",
    "Tools",
    "TrainConfig",
    "TrainResult",
    "TrainSFTConfig",
    "TrainableModel",
    "Trajectory",
    "TrajectoryGroup",
    "auto_trajectory",
    "capture_auto_trajectory",
    "capture_yielded_trajectory",
    "errors",
    "evaluate",
    "fit",
    "gather_trajectories",
    "gather_trajectory_groups",
    "iterate_dataset",
    "retry",
    "rollout",
    "trajectory_group_batches",
    "wrap",
    "yield_trajectory",
]

_HOMES = {
    "ArtError": "art.errors",
    "Backend": "art.backends.protocol",
    "FitResult": "art.rollouts.fit_report",
    "History": "art.trajectories",
    "LocalBackend": "art.backends.local",
    "LocalTrainResult": "art.backends.results",
    "LoraConfig": "art.config.model",
    "Messages": "art.trajectories",
    "MessagesAndChoices": "art.trajectories",
    "Model": "art.model",
    "PipelineTrainer": "art.rollouts.pipeline",
    "RemoteBackend": "art.backends.remote",
    "Tools": "art.trajectories",
    "TrainConfig": "art.config.train",
    "TrainResult": "art.backends.results",
    "TrainSFTConfig": "art.config.sft",
    "TrainableModel": "art.model",
    "Trajectory": "art.trajectories",
    "TrajectoryGroup": "art.trajectories",
    "auto_trajectory": "art.rollouts.auto",
    "capture_auto_trajectory": "art.rollouts.auto",
    "capture_yielded_trajectory": "art.rollouts.yielded",
    "evaluate": "art.evals.evaluation",
    "fit": "art.rollouts.fit",
    "gather_trajectories": "art.rollouts.gather",
    "gather_trajectory_groups": "art.rollouts.gather",
    "iterate_dataset": "art.utils.iterate",
    "retry": "art.rollouts.retry",
    "rollout": "art.rollouts.session",
    "trajectory_group_batches": "art.rollouts.batches",
    "wrap": "art.rollouts.wrap",
    "yield_trajectory": "art.rollouts.yielded",
}
_MODULES = ("costs", "errors", "evals", "metrics", "pipeline_trainer", "plot", "rewards", "utils")
"""Submodules that `art.name` reaches without an import of their own."""


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    elif name in _MODULES:
        value = import_module(f"art.{name}")
    elif name == "__version__":
        from importlib.metadata import version

        value = version("agent-reinforcement-trainer")
    else:
        from art.missing import MODULE, explain

        raise AttributeError(explain("art", name, MODULE) or f"module 'art' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
