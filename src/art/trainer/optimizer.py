"""The optimizer of a step, and its state as tensors of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import Parameter

from art.config.optimizer import OptimizerConfig


def make_optimizer(
    parameters: Mapping[str, Parameter], config: OptimizerConfig, saved: Mapping[str, Tensor]
) -> torch.optim.AdamW:
    """AdamW that goes on from `saved`. Its step size is set before each update: here it is 0."""
    optimizer = torch.optim.AdamW(
        parameters.values(),
        lr=0.0,
        betas=(config.adam_beta1, config.adam_beta2),
        eps=config.adam_epsilon,
        weight_decay=config.weight_decay,
    )
    load_moments(optimizer, parameters, saved)
    return optimizer


def set_step_size(optimizer: torch.optim.Optimizer, size: float) -> None:
    """For the updates to come."""
    for group in optimizer.param_groups:
        group["lr"] = size


def save_moments(optimizer: torch.optim.Optimizer, parameters: Mapping[str, Parameter]) -> dict[str, Tensor]:
    """Adam's state by parameter name, as tensors."""
    return {
        f"{name}.{key}": value.detach().cpu().clone()
        for name, parameter in parameters.items()
        for key, value in optimizer.state[parameter].items()
    }


def load_moments(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, Parameter], saved: Mapping[str, Tensor]
) -> None:
    """Put Adam's state back; without any, Adam starts anew."""
    for name, parameter in parameters.items():
        for key in ("step", "exp_avg", "exp_avg_sq"):
            if (value := saved.get(f"{name}.{key}")) is not None:
                on_device = value if key == "step" else value.to(parameter.device)
                optimizer.state[parameter][key] = on_device.clone()
