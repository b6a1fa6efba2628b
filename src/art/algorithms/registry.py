"""From a loss's name to its functions: the built-in ones, an import path, or a plug-in."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

import torch
from torch import Tensor

from art.algorithms import losses
from art.algorithms.losses import LossFunction, LossInputs
from art.errors import ConfigError

GROUP = "art.losses"
"""Entry points of this group are losses."""


def ratio_of(inputs: LossInputs) -> Tensor:
    """What most losses weigh a token by."""
    return inputs.ratio_N


def outside_clip(inputs: LossInputs) -> Tensor:
    """[N] of bool: tokens whose ratio is outside the clip."""
    return ~losses.within_clip(inputs)


def none_bounded(inputs: LossInputs) -> Tensor:
    """[N] of bool, all False."""
    return torch.zeros_like(inputs.ratio_N, dtype=torch.bool)


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss and what the step must know about it."""

    per_token: LossFunction
    weight: Callable[[LossInputs], Tensor] = ratio_of
    """[N]; the factor of A * d logprob in its gradient, which the correction bounds."""
    bounded: Callable[[LossInputs], Tensor] = outside_clip
    """[N] of bool; the tokens whose gradient its clip stops or bounds, for the figures."""


BUILT_IN = {
    "ppo": Loss(losses.ppo, bounded=losses.ppo_stopped),
    "gspo": Loss(losses.ppo, bounded=losses.ppo_stopped),
    "cispo": Loss(losses.cispo, weight=losses.clipped_ratio),
    "importance_sampling": Loss(losses.importance_sampling, bounded=none_bounded),
}


def find_loss(name: str) -> Loss:
    """The loss `name`. ConfigError when its module, function or plug-in is not there."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    function = _imported(name) if ":" in name else _plugged_in(name)
    if not callable(function):
        raise ConfigError(
            f"loss_fn={name!r} is no function",
            cause=f"it is a {type(function).__name__}",
            hint="a loss takes an art.algorithms.losses.LossInputs and gives one number per token",
        )
    return Loss(_checked(name, function))


def _imported(path: str) -> Any:
    module, _, attribute = path.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"loss_fn={path!r} cannot be imported",
            cause=f"{type(error).__name__}: {error}",
            hint="write package.module:function; the package must be importable where the trainer runs",
        ) from error
    return found


def _plugged_in(name: str) -> Any:
    found = list(entry_points(group=GROUP, name=name))
    if not found:
        known = sorted(point.name for point in entry_points(group=GROUP))
        raise ConfigError(
            f"There is no loss {name!r}",
            cause=f"no installed package declares it as an entry point of the group {GROUP}",
            hint=f"declared are: {', '.join(known) or 'none'}; or name it as package.module:function",
        )
    return _imported(found[0].value)


def _checked(name: str, function: LossFunction) -> LossFunction:
    """`function`, whose answer must be one number per token that depends on the policy."""

    def per_token(inputs: LossInputs) -> Tensor:
        found: Any = function(inputs)
        if not isinstance(found, Tensor) or found.shape != inputs.logprobs_N.shape:
            shape = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ConfigError(
                f"The loss {name} did not give one number per token",
                cause=f"it gave {shape} for {len(inputs.logprobs_N)} tokens",
                hint="return a tensor of the shape of inputs.logprobs_N",
            )
        if not found.requires_grad:
            raise ConfigError(
                f"The loss {name} does not depend on the policy",
                cause="its result has no gradient",
                hint="compute it from inputs.logprobs_N or inputs.ratio_N without detaching both",
            )
        return found

    return per_token
