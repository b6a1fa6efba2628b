"""A frozen linear layer, several matrices of one input fused, with a LoRA adapter on any of them.

A layer's weight is W + scale B A. With DoRA (arXiv:2402.09353) row o of it is scaled to the length m_o, which is trained:

    W'_o = m_o / n_o * (W + scale B A)_o,   n_o = ||(W + scale B A)_o||

with n taken as a constant in the gradient (section 4.3 of the paper), as PEFT does. So the layer is the plain one without
its bias, whose outputs are then multiplied by m / n.

Axis legend: S tokens, I input features, O output features, R ranks of all adapters of the layer together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from art.trainer.quantized import PackedStack

TINY = 1e-30
"""A row shorter than this counts as this long: a row of zeros stays one."""
LINE = 16
"""Numbers of float32 in a cache line: ranks are padded to whole ones, so that rows begin at one."""


@dataclass(slots=True)
class Adapter:
    """The matrices of one target: rows `start` ... `end` of the fused output get scale * B A x."""

    name: str
    """The module's name in the model, such as `model.layers.0.mlp.up_proj`."""
    start: int
    end: int
    a_R_I: Parameter
    b_O_R: Parameter
    magnitude_O: Parameter | None = None
    """m, with DoRA; float32."""

    @classmethod
    def fresh(cls, name: str, start: int, end: int, *, inputs: int, rank: int) -> Adapter:
        """A as PEFT draws it (uniform within 1 / sqrt(inputs), from torch's generator), B zero; float32."""
        a_R_I = torch.empty(rank, inputs)
        torch.nn.init.kaiming_uniform_(a_R_I, a=math.sqrt(5))
        return cls(name, start, end, Parameter(a_R_I), Parameter(torch.zeros(end - start, rank)))

    def add_magnitude(self, weight_O_I: Tensor) -> None:
        """Make it DoRA: m starts as the lengths of its rows of the layer's weight."""
        self.magnitude_O = Parameter(self.norms(weight_O_I, scale=0.0))

    def parameters(self) -> Iterator[tuple[str, Parameter]]:
        """What is trained, by the names that PEFT gives it inside the module."""
        yield "lora_A.default.weight", self.a_R_I
        yield "lora_B.default.weight", self.b_O_R
        if self.magnitude_O is not None:
            yield "lora_magnitude_vector.default.weight", self.magnitude_O

    @torch.no_grad()
    def norms(self, weight_O_I: Tensor, *, scale: float) -> Tensor:
        """n of the adapter's rows, in float32. `weight_O_I` is the whole layer's."""
        rows = weight_O_I[self.start : self.end].float()
        summed = torch.addmm(rows, self.b_O_R, self.a_R_I, alpha=scale)
        return torch.linalg.vector_norm(summed, dim=1).clamp_(min=TINY)


class _Fused(torch.autograd.Function):
    """y = x W^T + b, and y[:, start:end] += scale * x A^T B^T for every adapter.

    One product for all A, and one backward pass for the whole layer: autograd's own would keep the input once for
    each adapter and add three gradients of its size.
    """

    @staticmethod
    def forward(ctx: Any, x_S_I: Tensor, layer: FusedLinear, *pairs: Tensor) -> Tensor:
        y_S_O = torch.nn.functional.linear(x_S_I, layer.weight_O_I, layer.inner_bias)
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
            pairs.append(_b_gradient(g, h_S_R[:, ranks], layer.scale))
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


def _b_gradient(g_S_O: Tensor, h_S_R: Tensor, scale: float) -> Tensor:
    """[O, R] in float32. The product is taken the other way round, 4 to 16 times faster on a CPU: the inner loops of a
    product run along its columns, and R is a handful."""
    return (h_S_R.T @ g_S_O).float().mul_(scale).T


class _Merged(torch.autograd.Function):
    """The same function, computed as y = x W'^T + b with W' = W + scale B A.

    The product with W' gives A x as well, and the one backward gives scale B^T g beside the input's gradient (see
    FusedLinear.joined), so of all the narrow products of an adapter only its own gradients are left.
    """

    @staticmethod
    def forward(ctx: Any, x_S_I: Tensor, layer: FusedLinear, *pairs: Tensor) -> Tensor:
        joined, bias = layer.joined()
        outputs, inputs = layer.weight_O_I.shape
        both_S_OR = torch.nn.functional.linear(x_S_I, joined[:, :inputs], bias)
        ctx.save_for_backward(x_S_I, both_S_OR[:, outputs:], joined)
        ctx.layer = layer
        return both_S_OR[:, :outputs]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x_S_I, h_S_R, joined = ctx.saved_tensors
        layer: FusedLinear = ctx.layer
        g_S_O = grads[0]
        outputs, inputs = layer.weight_O_I.shape
        grad_x = None
        if ctx.needs_input_grad[0]:
            both_S_IR = g_S_O @ joined[:outputs]
            grad_x, slope_S_R = both_S_IR[:, :inputs], both_S_IR[:, inputs:]
        else:
            slope_S_R = g_S_O @ joined[:outputs, inputs:]
        grad_a_R_I = slope_S_R.T @ x_S_I
        by_adapter = (
            gradient
            for rows, ranks in layer.spans()
            for gradient in (grad_a_R_I[ranks], _b_gradient(g_S_O[:, rows], h_S_R[:, ranks], layer.scale))
        )
        return grad_x, None, *by_adapter


@dataclass(slots=True)
class FusedLinear:
    """The layer. Without adapters it is a plain linear function whose weights get no gradient."""

    frozen: Tensor | PackedStack
    """The base model's weights, [O, I]."""
    bias_O: Tensor | None
    adapters: list[Adapter]
    scale: float
    """LoraConfig.scale."""
    merge: bool = False
    """Where gradients are wanted, compute with a second copy of the weights that has the adapters added. In float32
    alone: in bfloat16 the sum would round most of a small adapter away."""
    _joined: tuple[Tensor, Tensor | None] | None = field(default=None, init=False, repr=False)
    _joined_at: tuple[int, ...] = field(default=(), init=False, repr=False)
    _norms: list[Tensor] = field(default_factory=list, init=False, repr=False)
    _norms_at: tuple[int, ...] = field(default=(), init=False, repr=False)

    @property
    def weight_O_I(self) -> Tensor:  # noqa: N802
        """What is computed with. Of packed weights it is made at each use, and not kept."""
        return self.frozen.dense() if isinstance(self.frozen, PackedStack) else self.frozen

    @property
    def outputs(self) -> int:
        """O."""
        frozen = self.frozen
        return sum(part.rows for part in frozen.parts) if isinstance(frozen, PackedStack) else len(frozen)

    def __call__(self, x_S_I: Tensor, *, adapted: bool = True) -> Tensor:
        """[S, O]."""
        if not adapted or not self.adapters:
            return torch.nn.functional.linear(x_S_I, self.weight_O_I, self.bias_O)
        # Adding up costs a pass over all weights for every change of the adapter, too much for one short probe.
        kind: Any = _Merged if self.merge and torch.is_grad_enabled() else _Fused
        y_S_O: Tensor = kind.apply(x_S_I, self, *self._matrices())
        if not self.dora:
            return y_S_O
        stretched_S_O = y_S_O * self._stretch()
        if self.bias_O is not None:
            stretched_S_O = stretched_S_O + self.bias_O
        return stretched_S_O.to(x_S_I.dtype)

    @property
    def dora(self) -> bool:
        return any(adapter.magnitude_O is not None for adapter in self.adapters)

    @property
    def inner_bias(self) -> Tensor | None:
        """What is added before the outputs are stretched: with DoRA the bias comes behind."""
        return None if self.dora else self.bias_O

    def spans(self) -> Iterator[tuple[slice, slice]]:
        """Per adapter its rows of the output and its ranks among all of the layer."""
        rank = 0
        for adapter in self.adapters:
            ranks = len(adapter.a_R_I)
            yield slice(adapter.start, adapter.end), slice(rank, rank + ranks)
            rank += ranks

    def joined(self) -> tuple[Tensor, Tensor | None]:
        """One matrix [O + R, I + R] of what the layer multiplies with, and the bias [O + R] that goes with its rows:

            W + scale B A    scale B
            A                0

        B has each adapter in its own rows and ranks. Made anew when a matrix of an adapter has changed; a backward
        pass that still needs the old content fails by autograd's own check.
        """
        now = tuple(matrix._version for matrix in self._matrices())
        if self._joined is None or now != self._joined_at:
            self._joined = self._join()
            self._joined_at = now
        return self._joined

    def _stretch(self) -> Tensor:
        """[O], m / n, and 1 in rows without an adapter; float32. n is made anew when a matrix has changed."""
        now = tuple(matrix._version for matrix in self._matrices())
        if now != self._norms_at:
            weight_O_I = self.weight_O_I
            self._norms = [adapter.norms(weight_O_I, scale=self.scale) for adapter in self.adapters]
            self._norms_at = now
        parts: list[Tensor] = []
        at = 0
        for adapter, norms_O in zip(self.adapters, self._norms, strict=True):
            assert adapter.magnitude_O is not None, "all adapters of a layer are of one kind"
            parts += [norms_O.new_ones(adapter.start - at), adapter.magnitude_O / norms_O]
            at = adapter.end
        return torch.cat([*parts, self._norms[0].new_ones(self.outputs - at)])

    def _matrices(self) -> list[Parameter]:
        return [matrix for adapter in self.adapters for matrix in (adapter.a_R_I, adapter.b_O_R)]

    @torch.no_grad()
    def _join(self) -> tuple[Tensor, Tensor | None]:
        outputs, inputs = self.weight_O_I.shape
        if self._joined is not None:
            joined, bias = self._joined
        else:
            ranks = -(-sum(len(adapter.a_R_I) for adapter in self.adapters) // LINE) * LINE
            joined = self.weight_O_I.new_zeros(outputs + ranks, inputs + ranks)
            inner_O = self.inner_bias
            bias = None if inner_O is None else torch.nn.functional.pad(inner_O, (0, ranks))
        a_R_I, b_O_R = joined[outputs:, :inputs], joined[:outputs, inputs:]
        for adapter, (rows, ranks_of) in zip(self.adapters, self.spans(), strict=True):
            a_R_I[ranks_of] = adapter.a_R_I
            torch.mul(adapter.b_O_R, self.scale, out=b_O_R[rows, ranks_of])
        torch.addmm(self.weight_O_I, b_O_R, a_R_I, out=joined[:outputs, :inputs])
        return joined, bias
