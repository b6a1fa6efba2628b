"""The optimizer of a step, its step size, and its state as tensors of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import Parameter

from art.algorithms.schedules import scheduled_rate
from art.config.optimizer import OptimizerConfig

Kind = Literal["rl", "sft"]
"""Of a job. Each has an optimizer state of its own."""
MOMENTS = "sft."
"""Before the names of supervised training's state."""
FIRST = "adamw"
"""Whose state it is where a checkpoint does not say so."""


@dataclass(frozen=True, slots=True)
class Saved:
    """What a checkpoint holds of the optimizer of one kind of job."""

    optimizer: str | None
    """None before the first update."""
    tensors: dict[str, Tensor]
    """By parameter and the optimizer's own name: `<parameter>.exp_avg`."""

    @classmethod
    def of(cls, kind: Kind, tensors: Mapping[str, Tensor], optimizers: Mapping[str, str]) -> Saved:
        """Of all the checkpoint's tensors, and the optimizers by kind that its state names."""
        supervised = kind == "sft"
        ours = {
            name.removeprefix(MOMENTS): value
            for name, value in tensors.items()
            if name.startswith(MOMENTS) == supervised
        }
        return cls(optimizers.get(kind, FIRST if ours else None), ours)


class Optimizer:
    """One of torch's, over named parameters, which knows how many updates there were before."""

    def __init__(
        self,
        parameters: Mapping[str, Parameter],
        config: OptimizerConfig,
        saved: Saved,
        *,
        updates: int = 0,
    ) -> None:
        """Goes on from `saved`; from another optimizer's state it starts anew, and says so in `notes`."""
        self.updates = updates
        """Made so far, with those of earlier steps: what the learning rate goes by."""
        self.notes: list[str] = []
        self._config = config
        self._parameters = parameters
        self._torch = _build(list(parameters.values()), config)
        stateless = config.optimizer == "sgd" and config.sgd_momentum == 0
        if saved.optimizer == config.optimizer and not stateless:
            self._load(saved.tensors)
        elif saved.optimizer not in (None, config.optimizer):
            self.notes.append(
                f"the optimizer is {config.optimizer} and was {saved.optimizer}: it starts without moments"
            )

    def rate(self, peak: float, *, total: int | None = None) -> float:
        """What warm-up and schedule leave of the learning rate `peak` for the next update.

        `total` is how many updates the schedule spans where `schedule_updates` does not say it.
        """
        config = self._config
        return scheduled_rate(
            self.updates,
            peak,
            method=config.learning_rate_schedule,
            warmup=config.warmup_updates,
            total=config.schedule_updates or total,
            floor=peak * config.learning_rate_floor,
        )

    def set_step_size(self, size: float) -> None:
        """Of the updates to come. Before it is set, updates move nothing."""
        for group in self._torch.param_groups:
            group["lr"] = size

    def zero_grad(self, *, set_to_none: bool = True) -> None:
        self._torch.zero_grad(set_to_none=set_to_none)

    def step(self) -> None:
        """One update."""
        self._torch.step()
        self.updates += 1

    def state(self) -> dict[str, Tensor]:
        """By parameter name, as tensors. Empty for SGD without momentum, which has none."""
        return {
            f"{name}.{key}": value.detach().cpu().clone()
            for name, parameter in self._parameters.items()
            for key, value in self._torch.state[parameter].items()
        }

    def _load(self, saved: Mapping[str, Tensor]) -> None:
        for full, value in saved.items():
            name, _, key = full.rpartition(".")
            if (parameter := self._parameters.get(name)) is not None:
                # Counts of steps stay on the CPU, where torch's optimizers keep them.
                on_device = value if key == "step" else value.to(parameter.device)
                self._torch.state[parameter][key] = on_device.clone()


def _build(parameters: list[Parameter], config: OptimizerConfig) -> torch.optim.Optimizer:
    decay = config.weight_decay
    if config.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=0.0, momentum=config.sgd_momentum, weight_decay=decay)
    if config.optimizer == "adafactor":
        return torch.optim.Adafactor(parameters, lr=0.0, weight_decay=decay)
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    return kind(
        parameters,
        lr=0.0,
        betas=(config.adam_beta1, config.adam_beta2),
        eps=config.adam_epsilon,
        weight_decay=decay,
    )
