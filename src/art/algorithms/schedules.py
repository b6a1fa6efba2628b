"""How the learning rate follows the number of updates."""

from __future__ import annotations

import math

from art.config.optimizer import Schedule


def scheduled_rate(
    count: int, peak: float, *, method: Schedule, warmup: int, total: int | None, floor: float
) -> float:
    """The learning rate of an update before which `count` were made.

    Update s of W warm-up updates has peak * (s + 1) / (W + 1). Behind them, with t = (s - W) / (total - W), at most 1:

        constant   peak
        linear     floor + (peak - floor) * (1 - t)
        cosine     floor + (peak - floor) * (1 + cos(pi t)) / 2     (Loshchilov and Hutter 2017, arXiv:1608.03983)

    `floor` is a rate, 0 <= floor <= peak. `total`, the warm-up included, is not looked at for `constant`.
    """
    if count < warmup:
        return peak * (count + 1) / (warmup + 1)
    if method == "constant":
        return peak
    assert total is not None, "a rate that falls does so over a number of updates"
    part = (count - warmup) / (total - warmup) if count < total else 1.0
    falls = 1 - part if method == "linear" else (1 + math.cos(math.pi * part)) / 2
    return floor + (peak - floor) * falls
