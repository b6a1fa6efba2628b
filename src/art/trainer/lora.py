"""A frozen linear layer, several matrices of one input fused, with a LoRA adapter on any of them.

Axis legend: S tokens, I input features, O output features, R ranks of all adapters of the layer together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter


@dataclass(slots=True)
class Adapter:
    """The two matrices of one target: rows `start` ... `end` of the fused output get scale * B A x."""

    name: str
    """The module's name in the model, such as `model.layers.0.mlp.up_proj`."""
    start: int
    end: int
    a_R_I: Parameter
    b_O_R: Parameter

    @classmethod
    def fresh(cls, name: str, start: int, end: int, *, inputs: int, rank: int) -> Adapter:
        """A as PEFT draws it (uniform within 1 / sqrt(inputs), from torch's generator), B zero; float32."""
        a_R_I = torch.empty(rank, inputs)
        torch.nn.init.kaiming_uniform_(a_R_I, a=math.sqrt(5))
        return cls(name, start, end, Parameter(a_R_I), Parameter(torch.zeros(end - start, rank)))


class _Fused(torch.autograd.Function):
    """y = x W^T + b, and y[:, start:end] += scale * x A^T B^T for every adapter.

    One product for all A, and one backward pass for the whole layer: autograd's own would keep the input once for
    each adapter and add three gradients of its size.
    """

    @staticmethod
    def forward(ctx: Any, x_S_I: Tensor, layer: FusedLinear, *pairs: Tensor) -> Tensor:
        y_S_O = torch.nn.functional.linear(x_S_I, layer.weight_O_I, layer.bias_O)
        a_R_I = torch.cat(pairs[::2]).to(x_S_I.dtype)
        h_S_R = x_S_I @ a_R_I.T
        for (rows, ranks), b in zip(layer.spans(), pairs[1::2], strict=True):
            y_S_O[:, rows].addmm_(h_S_R[:, ranks], b.to(x_S_I.dtype).T, alpha=layer.scale)
        ctx.save_for_backward(x_S_I, a_R_I, h_S_R, *pairs[1::2])
        ctx.layer = layer
        return y_S_O

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x_S_I, a_R_I, h_S_R, *bs = ctx.saved_tensors
        layer: FusedLinear = ctx.layer
        g_S_O = grads[0]
        slope_S_R = torch.empty_like(h_S_R)
        pairs: list[Tensor] = []
        for (rows, ranks), b in zip(layer.spans(), bs, strict=True):
            g = g_S_O[:, rows]
            slope_S_R[:, ranks] = g @ b.to(g.dtype)
            pairs.append((g.T @ h_S_R[:, ranks]).float().mul_(layer.scale))
        slope_S_R *= layer.scale
        grad_a_R_I = (slope_S_R.T @ x_S_I).float()
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = (g_S_O @ layer.weight_O_I).addmm_(slope_S_R, a_R_I)
        by_adapter = (
            gradient
            for (_, ranks), grad_b in zip(layer.spans(), pairs, strict=True)
            for gradient in (grad_a_R_I[ranks], grad_b)
        )
        return grad_x, None, *by_adapter


@dataclass(slots=True)
class FusedLinear:
    """The layer. Without adapters it is a plain linear function whose weights get no gradient."""

    weight_O_I: Tensor
    bias_O: Tensor | None
    adapters: list[Adapter]
    scale: float
    """alpha / r."""

    def __call__(self, x_S_I: Tensor, *, adapted: bool = True) -> Tensor:
        """[S, O]."""
        if not adapted or not self.adapters:
            return torch.nn.functional.linear(x_S_I, self.weight_O_I, self.bias_O)
        pairs = [matrix for adapter in self.adapters for matrix in (adapter.a_R_I, adapter.b_O_R)]
        y_S_O: Tensor = _Fused.apply(x_S_I, self, *pairs)
        return y_S_O

    def spans(self) -> Iterator[tuple[slice, slice]]:
        """Per adapter its rows of the output and its ranks among all of the layer."""
        rank = 0
        for adapter in self.adapters:
            ranks = len(adapter.a_R_I)
            yield slice(adapter.start, adapter.end), slice(rank, rank + ranks)
            rank += ranks
