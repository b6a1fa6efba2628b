"""Llama and its near relatives: RMSNorm, rotary positions, grouped queries, gated SiLU MLP.

Axes: T tokens of the step, E hidden features, Q query heads, H key/value heads, D features of a head,
F inner features of the MLP, V vocabulary.

Formulas follow transformers' `modeling_llama`, computed on fused weights: one matrix for q, k and v, one for gate
and up. Rows of q and k are reordered so that the two halves of a rotated pair lie side by side: a rotation is then
one complex multiplication. Scores do not change, since q and k are reordered alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from art.base_model.files import Read
from art.base_model.llama import EMBEDDING, HEAD, NAMES, LlamaConfig
from art.engine.torch.architecture import ModelShape
from art.engine.torch.attention import AttentionPlan
from art.engine.torch.delta import Delta
from art.engine.torch.weights import Linear, Placement, PlainLinear
from art.errors import ConfigError

PlainMatrices = tuple[PlainLinear, PlainLinear, PlainLinear, PlainLinear]
"""qkv, out, gate_up and down of a layer."""


@dataclass(frozen=True, slots=True)
class LlamaLayer:
    norm_attention_E: Tensor
    qkv: Linear
    norm_q_D: Tensor | None
    norm_k_D: Tensor | None
    out: Linear
    norm_mlp_E: Tensor
    gate_up: Linear
    down: Linear

    @property
    def plain(self) -> PlainMatrices | None:
        """The four matrices for single rows, where all of them are kept."""
        qkv, out, gate_up, down = self.qkv.plain, self.out.plain, self.gate_up.plain, self.down.plain
        if qkv is None or out is None or gate_up is None or down is None:
            return None
        return qkv, out, gate_up, down


@dataclass(frozen=True, slots=True)
class LlamaWeights:
    embedding_V_E: Tensor
    layers: list[LlamaLayer]
    norm_E: Tensor
    head: Linear
    plain: list[PlainMatrices] | None
    """Per layer its matrices for single rows; None where a single token is computed as many are."""


class Llama:
    """An `Architecture`. ConfigError when the config asks for what is not implemented."""

    names: ClassVar[tuple[str, ...]] = NAMES

    def __init__(self, config: dict[str, Any]) -> None:
        llama = LlamaConfig.read(config)
        self.shape = ModelShape(
            vocab_size=llama.vocab_size,
            layers=llama.layers,
            query_heads=llama.query_heads,
            kv_heads=llama.kv_heads,
            head_dim=llama.head_dim,
            context_length=llama.context_length,
        )
        self._eps = llama.eps
        self.adaptable = frozenset([*(f"{name}.weight" for name in llama.linears()), HEAD])
        self.aliases = {HEAD: EMBEDDING} if llama.tied else {}
        self._frequency_D2 = llama.frequency_D2

    def build(
        self,
        read: Read,
        placement: Placement,
        *,
        base: LlamaWeights | None = None,
        deltas: Mapping[str, Delta] = MappingProxyType({}),
    ) -> LlamaWeights:
        place = _Builder(self, read, placement, deltas)
        layers = place.layers(base)
        return LlamaWeights(
            embedding_V_E=base.embedding_V_E if base else place.tensor(EMBEDDING),
            layers=layers,
            norm_E=base.norm_E if base else place.tensor("model.norm.weight"),
            head=place.fused([HEAD], base.head if base else None),
            plain=plain_matrices(layers, placement),
        )

    def forward(self, weights: LlamaWeights, token_T: Tensor, plan: AttentionPlan) -> Tensor:
        rotation_T_1_D2 = self._rotation(plan.position_T)
        if plan.alone is not None and weights.plain is not None:
            return self._forward_alone(weights, weights.plain, token_T, rotation_T_1_D2[0], plan)
        x_T_E = functional.embedding(token_T, weights.embedding_V_E)
        for index, layer in enumerate(weights.layers):
            x_T_E += self._attention(index, layer, x_T_E, rotation_T_1_D2, plan)
            x_T_E += self._mlp(layer, x_T_E)
        return x_T_E

    def logits(self, weights: LlamaWeights, hidden_B_E: Tensor) -> Tensor:
        return weights.head(self._norm(hidden_B_E, weights.norm_E))

    def _forward_alone(
        self,
        weights: LlamaWeights,
        plain: list[PlainMatrices],
        token_1: Tensor,
        rotation_1_D2: Tensor,
        plan: AttentionPlan,
    ) -> Tensor:
        """`forward` of a single token in float32 on the CPU, on vectors: [1, E].

        A single row streams every weight past the processor once, which leaves the caches cold for whatever runs
        between two matrices; there each small operation costs about 5 microseconds. So there are as few of them as
        can be: the residual and the norm's scale are part of the product's call. 15 % of a step of SmolLM2-135M.
        """
        x_E = functional.embedding(token_1, weights.embedding_V_E)[0]
        heads, rotated = self.shape.query_heads, self.shape.query_heads + self.shape.kv_heads
        for index, (layer, (qkv, out, gate_up, down)) in enumerate(zip(weights.layers, plain, strict=True)):
            projected = qkv.row(x_E * layer.norm_attention_E, alpha=self._scale(x_E))
            heads_D = projected.view(-1, self.shape.head_dim)
            if layer.norm_q_D is not None and layer.norm_k_D is not None:
                heads_D[:heads] = self._norm(heads_D[:heads], layer.norm_q_D)
                heads_D[heads:rotated] = self._norm(heads_D[heads:rotated], layer.norm_k_D)
            torch.view_as_complex(heads_D.view(len(heads_D), -1, 2))[:rotated].mul_(rotation_1_D2)
            x_E = out.row(plan.attend_alone(index, heads_D[:heads], heads_D[heads:]), plus_O=x_E)
            gate_F, up_F = gate_up.row(x_E * layer.norm_mlp_E, alpha=self._scale(x_E)).chunk(2)
            x_E = down.row(functional.silu(gate_F).mul_(up_F), plus_O=x_E)
        return x_E[None]

    def _scale(self, x_E: Tensor) -> float:
        """1 / sqrt(mean(x^2) + eps): what the norm multiplies with before its weight."""
        return float((x_E.dot(x_E).item() / len(x_E) + self._eps) ** -0.5)

    def _attention(
        self, index: int, layer: LlamaLayer, x_T_E: Tensor, rotation_T_1_D2: Tensor, plan: AttentionPlan
    ) -> Tensor:
        shape = self.shape
        qkv = layer.qkv(self._norm(x_T_E, layer.norm_attention_E)).view(len(x_T_E), -1, shape.head_dim)
        rotated = shape.query_heads + shape.kv_heads
        if layer.norm_q_D is not None and layer.norm_k_D is not None:
            q = self._norm(qkv[:, : shape.query_heads], layer.norm_q_D)
            k = self._norm(qkv[:, shape.query_heads : rotated], layer.norm_k_D)
            qkv[:, :rotated] = torch.cat([q, k], dim=1)
        rotate_(qkv[:, :rotated], rotation_T_1_D2)
        return layer.out(plan.attend(index, qkv[:, : shape.query_heads], qkv[:, shape.query_heads :]))

    def _mlp(self, layer: LlamaLayer, x_T_E: Tensor) -> Tensor:
        gate_T_F, up_T_F = layer.gate_up(self._norm(x_T_E, layer.norm_mlp_E)).chunk(2, dim=-1)
        return layer.down(functional.silu(gate_T_F).mul_(up_T_F))

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """x / sqrt(mean(x^2) + eps) * weight.

        torch composes its own rms_norm of twice as many passes on the CPU (512 rows: 1.1 ms against 0.2 ms).
        """
        if x.dtype != torch.float32 or x.device.type != "cpu":
            return functional.rms_norm(x, weight.shape, weight, self._eps)
        mean_square = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1])
        return (x * mean_square.add_(self._eps).rsqrt_()).mul_(weight)

    def _rotation(self, position_T: Tensor) -> Tensor:
        """Complex rotations [T, 1, D / 2]."""
        angle_T_D2 = position_T[:, None].float() * self._frequency_D2.to(position_T.device)
        return torch.polar(torch.ones_like(angle_T_D2), angle_T_D2)[:, None]


class _Builder:
    """Puts one checkpoint's parameters into place, sharing what an adapter leaves as it is."""

    def __init__(self, model: Llama, read: Read, placement: Placement, deltas: Mapping[str, Delta]) -> None:
        self._model = model
        self._read = read
        self._placement = placement
        self._deltas = deltas

    def layers(self, base: LlamaWeights | None) -> list[LlamaLayer]:
        """All of them; on the CPU several at a time, since packing a matrix and touching fresh memory take one core each."""
        count = self._model.shape.layers
        bases: list[LlamaLayer | None] = [*base.layers] if base else [None] * count
        workers = torch.get_num_threads() if self._placement.device.type == "cpu" else 1
        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(self.layer, range(count), bases))

    def layer(self, index: int, base: LlamaLayer | None) -> LlamaLayer:
        at = f"model.layers.{index}."
        heads = self._model.shape
        pairs = {at + "self_attn.q_proj": heads.query_heads, at + "self_attn.k_proj": heads.kv_heads}
        qkv = [at + f"self_attn.{part}_proj.weight" for part in "qkv"]
        gate_up = [at + "mlp.gate_proj.weight", at + "mlp.up_proj.weight"]
        return LlamaLayer(
            norm_attention_E=base.norm_attention_E if base else self.tensor(at + "input_layernorm.weight"),
            qkv=self.fused(qkv, base.qkv if base else None, pairs=pairs),
            norm_q_D=base.norm_q_D if base else self._head_norm(at + "self_attn.q_norm.weight"),
            norm_k_D=base.norm_k_D if base else self._head_norm(at + "self_attn.k_norm.weight"),
            out=self.fused([at + "self_attn.o_proj.weight"], base.out if base else None),
            norm_mlp_E=base.norm_mlp_E if base else self.tensor(at + "post_attention_layernorm.weight"),
            gate_up=self.fused(gate_up, base.gate_up if base else None),
            down=self.fused([at + "mlp.down_proj.weight"], base.down if base else None),
        )

    def tensor(self, name: str) -> Tensor:
        return self._read(name).to(self._placement.device, self._placement.dtype).clone()

    def fused(self, names: list[str], base: Linear | None, *, pairs: dict[str, int] | None = None) -> Linear:
        """One layer of several matrices below each other; `pairs` names those to reorder, with their heads."""
        if base is not None and self._deltas.keys().isdisjoint(names):
            return base
        orders = {f"{stem}.weight": partial(interleave, heads=heads) for stem, heads in (pairs or {}).items()}
        if base is not None and base.plain is not None and self._placement.dtype == torch.float32:
            return self._placement.linear(
                self._added(names, base.plain.weight_O_I, orders), base.plain.bias_O
            )
        weights, biases = [], []
        for name in names:
            weight, bias = self._read(name), self._optional(name.removesuffix(".weight") + ".bias")
            if (delta := self._deltas.get(name)) is not None:
                weight = delta.add_to(weight)
            order = orders.get(name)
            weights.append(weight if order is None else order(weight))
            if bias is not None:
                biases.append(bias if order is None else order(bias))
        if biases and len(biases) != len(names):
            raise ConfigError(f"only some of {', '.join(names)} have a bias")
        return self._placement.linear(_stack(weights), _stack(biases) if biases else None)

    def _added(
        self, names: list[str], base_O_I: Tensor, orders: Mapping[str, Callable[[Tensor], Tensor]]
    ) -> Tensor:
        """The base's matrices with their deltas, in one pass over them: the base holds the same numbers, in their order."""
        merged_O_I = torch.empty_like(base_O_I)
        start = 0
        for name in names:
            rows = slice(start, start := start + self._read(name).shape[0])
            delta, order = self._deltas.get(name), orders.get(name)
            if delta is None:
                merged_O_I[rows] = base_O_I[rows]
            else:
                delta = delta if order is None else delta.reordered(order)
                delta.add_to(base_O_I[rows], out=merged_O_I[rows])
        return merged_O_I

    def _optional(self, name: str) -> Tensor | None:
        try:
            return self._read(name)
        except KeyError:
            return None

    def _head_norm(self, name: str) -> Tensor | None:
        """The per-head norm of q or k (Qwen3), reordered as they are."""
        weight = self._optional(name)
        return (
            None
            if weight is None
            else interleave(weight, 1).to(self._placement.device, self._placement.dtype)
        )


def plain_matrices(layers: list[LlamaLayer], placement: Placement) -> list[PlainMatrices] | None:
    """What a single token is computed with by itself: in float32 on the CPU, where all the matrices are kept."""
    if placement.device.type != "cpu" or placement.dtype != torch.float32:
        return None
    found = [matrices for layer in layers if (matrices := layer.plain) is not None]
    return found if len(found) == len(layers) else None


def _stack(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def interleave(rows: Tensor, heads: int) -> Tensor:
    """Reorder each head's rows 0, 1, ... D-1 to 0, D/2, 1, D/2 + 1, ...: rotated pairs side by side."""
    dim = rows.shape[0] // heads
    return rows.view(heads, 2, dim // 2, -1).transpose(1, 2).reshape(rows.shape)


def rotate_(x_T_Q_D: Tensor, rotation_T_1_D2: Tensor) -> None:
    """Rotate each pair of neighbouring features in place, in float32."""
    paired = torch.view_as_complex(x_T_Q_D.float().unflatten(-1, (-1, 2)))
    if x_T_Q_D.dtype == torch.float32:
        paired.mul_(rotation_T_1_D2)
    else:
        x_T_Q_D.copy_(torch.view_as_real(paired * rotation_T_1_D2).flatten(-2))
