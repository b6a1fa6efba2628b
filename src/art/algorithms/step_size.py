"""How an update's step size follows from what the update learns from."""

from __future__ import annotations

import math


def step_size(
    learning_rate: float, *, rollouts: int, power: float, reward_deviation: float | None = None
) -> float:
    """learning_rate * rollouts ** power * reward_deviation, the last where it is given.

    Adam's update does not grow with the gradient, so a larger batch asks for a larger step: power 0.5 is the
    square-root rule (Malladi et al. 2022, arXiv:2205.10287), 1 the linear one (Goyal et al. 2017,
    arXiv:1706.02677). `reward_deviation`, the mean over groups of the rewards' standard deviation, gives back what
    dividing each group by its own takes away: batches that hardly differ move the policy less.
    """
    scaled = learning_rate * math.pow(rollouts, power)
    return scaled if reward_deviation is None else scaled * reward_deviation
