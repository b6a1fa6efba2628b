"""What programs for openpipe-art ask for and this release does not have: said by name, with what there is instead.

Such a name raises an AttributeError like any unknown one, so `hasattr` is False.
"""

from __future__ import annotations

_FILES = "a checkpoint is a folder in PEFT's format: train(...).checkpoint_path names it"
_COSTS = (
    "LocalBackend(gpu_cost_per_hour_usd=...) prices the machine, model.metrics_builder() counts paid models"
)
_ANY_AGENT = "art.wrap(agent, reward) takes the agent as it is"

MODULE = {
    "ServerlessBackend": "art.RemoteBackend(url, key) talks to any `art serve`",
    "ServerlessTrainResult": "every backend returns an art.LocalTrainResult",
    "TinkerBackend": "art.LocalBackend and art.RemoteBackend are the backends",
    "MegatronBackend": "art.LocalBackend and art.RemoteBackend are the backends",
    "dev": "its classes are plain dicts here: model._internal_config = {...} and train(..., _config={...})",
    "langgraph": _ANY_AGENT,
    "mcp": "scenarios are any list of yours; " + _ANY_AGENT,
}
MODEL = {
    "cost_calculator": _COSTS,
    "set_cost_calculator": _COSTS,
}
BACKEND = {
    "_train_sft": "await model.train_sft(trajectories) trains and records one step",
    "_experimental_pull_model_checkpoint": _FILES,
    "_experimental_pull_from_s3": _FILES,
    "_experimental_push_to_s3": _FILES,
    "_experimental_fork_checkpoint": "backend.fork(model, from_model=...) starts a model from another one's checkpoint",
}
REWARDS = {
    "ruler": "a reward is any function of what the agent returned; it may be async and ask a judge",
    "ruler_score_group": "set trajectory.reward in art.gather_trajectory_groups(..., after_each=...)",
}


def explain(owner: str, name: str, table: dict[str, str]) -> str:
    """The text of the AttributeError for `owner.name`; empty for a name that is not in the table."""
    instead = table.get(name)
    return "" if instead is None else f"{owner}.{name} is not in this release; instead: {instead}"
