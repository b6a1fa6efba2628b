"""What a LoRA makes of one matrix.

Axes: O output features, I input features, R rank.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

TINY = 1e-30
"""A row shorter than this counts as this long, as in the trainer: a row of zeros stays one."""


@dataclass(frozen=True, slots=True)
class Delta:
    """What an adapter makes of one matrix: W + scale * b @ a, whose rows DoRA then scales to the lengths m.

    DoRA (arXiv:2402.09353): row o becomes m_o * V_o / ||V_o|| with V = W + scale * b @ a.
    """

    a_R_I: Tensor
    b_O_R: Tensor
    scale: float
    magnitude_O: Tensor | None = None
    """m, with DoRA."""

    def add_to(self, weight_O_I: Tensor, *, out: Tensor | None = None) -> Tensor:
        """The merged matrix, in float32 (a bf16 sum would round most of a small delta away); in `out` where it is given."""
        merged_O_I = torch.addmm(
            weight_O_I.float(), self.b_O_R.float(), self.a_R_I.float(), alpha=self.scale, out=out
        )
        if self.magnitude_O is not None:
            norms_O = torch.linalg.vector_norm(merged_O_I, dim=1).clamp_(min=TINY)
            merged_O_I *= (self.magnitude_O.float() / norms_O)[:, None]
        return merged_O_I

    def reordered(self, order: Callable[[Tensor], Tensor]) -> Delta:
        """Of the matrix whose rows stand in another order; `order` sorts the rows of a tensor."""
        magnitude = None if self.magnitude_O is None else order(self.magnitude_O)
        return replace(self, b_O_R=order(self.b_O_R), magnitude_O=magnitude)
