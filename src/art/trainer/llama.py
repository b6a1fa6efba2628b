"""The trainer's own forward pass of Llama-like models: fused frozen weights, LoRA, attention over tries.

transformers and PEFT compute the same, and the tests hold this to them; here a layer is a handful of operations with
hand-written gradients, which is what a training step on a CPU spends its time on, and neither library needs
to be imported.

Axis legend: S tokens of a trie, E hidden features, Q query heads, K key heads, D features of a head, F of the MLP.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from art.base_model.files import TensorFile, read_json
from art.base_model.llama import EMBEDDING, HEAD, LINEARS, NAMES, LlamaConfig
from art.base_model.memory import memory_bytes
from art.config.model import LoraConfig, Quantization
from art.errors import ConfigError
from art.trainer.attention import Plan, tree_attention
from art.trainer.lora import Adapter, FusedLinear
from art.trainer.memory import Footprint, Taken
from art.trainer.quantized import Packed, PackedStack
from art.trainer.quantized_model import kind_of

MERGED_SHARE = 0.15
"""Of the machine's memory, what second copies of the layers' weights may take."""


class _RmsNorm(torch.autograd.Function):
    """x / sqrt(mean(x^2) + eps) * weight over the last axis, in float32, for a frozen weight."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = x.float()
        inverse = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_()
        inverse = inverse.div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, inverse)
        return (wide * inverse).to(x.dtype).mul_(weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, inverse = ctx.saved_tensors
        unit = x.float() * inverse
        weighted = grads[0].float() * weight
        along = torch.linalg.vecdot(weighted, unit)[..., None].div_(x.shape[-1])
        return weighted.sub_(unit.mul_(along)).mul_(inverse).to(x.dtype), None, None


class _Gate(torch.autograd.Function):
    """silu(gate) * up of one [S, 2F] tensor."""

    @staticmethod
    def forward(ctx: Any, both_S_2F: Tensor) -> Tensor:
        ctx.save_for_backward(both_S_2F)
        gate, up = both_S_2F.chunk(2, dim=-1)
        return functional.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor]:
        (both_S_2F,) = ctx.saved_tensors
        gate, up = both_S_2F.chunk(2, dim=-1)
        out = torch.empty_like(both_S_2F)
        slope_gate, slope_up = out.chunk(2, dim=-1)
        torch.mul(grads[0], functional.silu(gate), out=slope_up)
        torch.ops.aten.silu_backward.grad_input(grads[0] * up, gate, grad_input=slope_gate)
        return (out,)


class _Rotate(torch.autograd.Function):
    """Rotary positions (RoFormer, arXiv:2104.09864) on [S, heads, D]: features i and i + D/2 are a pair."""

    @staticmethod
    def forward(ctx: Any, x_S_H_D: Tensor, cos_S_1_D2: Tensor, sin_S_1_D2: Tensor) -> Tensor:
        ctx.save_for_backward(cos_S_1_D2, sin_S_1_D2)
        return _rotated(x_S_H_D, cos_S_1_D2, sin_S_1_D2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        return _rotated(grads[0], cos, -sin), None, None


def _rotated(x_S_H_D: Tensor, cos_S_1_D2: Tensor, sin_S_1_D2: Tensor) -> Tensor:
    first, second = x_S_H_D.chunk(2, dim=-1)
    out = torch.empty(x_S_H_D.shape, dtype=x_S_H_D.dtype, device=x_S_H_D.device)
    left, right = out.chunk(2, dim=-1)
    torch.mul(first, cos_S_1_D2, out=left).addcmul_(second, sin_S_1_D2, value=-1)
    torch.mul(second, cos_S_1_D2, out=right).addcmul_(first, sin_S_1_D2)
    return out


@dataclass(slots=True)
class Layer:
    """One decoder layer."""

    norm_attention_E: Tensor
    qkv: FusedLinear
    norm_qk_H_D: Tensor | None
    """Qwen3 norms the heads of q and k: a row for each of them."""
    out: FusedLinear
    norm_mlp_E: Tensor
    gate_up: FusedLinear
    down: FusedLinear

    def linears(self) -> tuple[FusedLinear, ...]:
        return self.qkv, self.out, self.gate_up, self.down

    def adapters(self) -> Iterator[Adapter]:
        """In the order of the model's modules."""
        for linear in self.linears():
            yield from linear.adapters


def merges(config: LlamaConfig, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether layers keep a second copy of their weights, with the adapter added (see FusedLinear.merge)."""
    share = layer_numbers(config) * dtype.itemsize / memory_bytes(device)
    return dtype == torch.float32 and share <= MERGED_SHARE


def layer_numbers(config: LlamaConfig) -> int:
    """Numbers in all layers' matrices."""
    heads = (config.query_heads + config.kv_heads) * config.head_dim
    return config.layers * config.hidden_size * (2 * heads + 3 * config.mlp_size)


def estimated_footprint(
    config: LlamaConfig, dtype: torch.dtype, *, merged: bool, dora: bool = False
) -> Footprint:
    """What a token of a trie keeps, from what the functions of this module, of `lora` and of `attention` save; an
    adapter's narrow products are left out. trainer/footprint.py measures it once a model is loaded."""
    size, hidden, mlp = dtype.itemsize, config.hidden_size, config.mlp_size
    query, key = config.query_heads * config.head_dim, config.kv_heads * config.head_dim
    # Inputs of the two norms and of the projections behind them; merged, a projection's output lies beside what it saves.
    numbers = (6 if merged else 4) * hidden
    # The attention's q, k and v are views of the rotated and of the projected, which stay whole; its output is as the
    # next projection reads it.
    numbers += (query + key) + (query + 2 * key) + query + 3 * mlp
    if dora:  # each projection's output, before and after it is stretched
        numbers += (query + 2 * key) + 2 * mlp + 2 * hidden
    layer = size * numbers
    outer = 2 * size * hidden  # the last norm's input, and the head's slopes
    layers = config.layers
    return Footprint.of(plain=layers * layer + outer, between=layers * size * hidden + outer, layers=layers)


class LlamaBody:
    """A Body (see trainer/body.py)."""

    def __init__(self, config: LlamaConfig, layers: list[Layer], outer: dict[str, Tensor]) -> None:
        self.config = config
        self._layers = layers
        self._embedding_V_E = outer[EMBEDDING]
        self._norm_E = outer["model.norm.weight"]
        self.head = outer[HEAD]
        self.device = self._embedding_V_E.device
        self.layers = config.layers
        self.checkpointing = False
        self._adapted = True
        self.parameters = {
            f"base_model.model.{adapter.name}.{name}": parameter
            for layer in layers
            for adapter in layer.adapters()
            for name, parameter in adapter.parameters()
        }

    @classmethod
    def load(cls, folder: Path, *, lora: LoraConfig, dtype: torch.dtype) -> LlamaBody:
        """ConfigError when the model or the adapter's targets are not implemented here."""
        config = LlamaConfig.read(_served_here(read_json(folder / "config.json"), lora))
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        packing = kind_of(folder)
        merge = packing is None and merges(config, dtype, device)
        with TensorFile.of_model(folder) as file, torch.random.fork_rng():
            torch.manual_seed(lora.seed)
            builder = _Builder(file, config, lora, dtype, device, merge, packing)
            layers = [builder.layer(index) for index in range(config.layers)]
            outer = {name: builder.tensor(name) for name in (EMBEDDING, "model.norm.weight")}
            outer[HEAD] = outer[EMBEDDING] if config.tied else builder.tensor(HEAD)
        return cls(config, layers, outer)

    @property
    def vocab_size(self) -> int:
        return len(self._embedding_V_E)

    @property
    def local_attention(self) -> None:
        """Every token sees all its ancestors."""
        return None

    @property
    def taken(self) -> Taken:
        """What the machine holds with this model, before any row."""
        outer = {tensor.data_ptr(): tensor.nbytes for tensor in (self._embedding_V_E, self.head)}
        size = self.head.dtype.itemsize
        layers = layer_numbers(self.config) * size
        matrices = [matrix for layer in self._layers for matrix in layer.linears()]
        return Taken.of(
            weights=layers + sum(outer.values()),
            layers=layers,
            merged=any(matrix.merge for matrix in matrices),
            trainable=sum(parameter.numel() for parameter in self.parameters.values()),
            packed=sum(matrix.frozen.nbytes for matrix in matrices),
        )

    def hidden(self, token_S: Tensor, depth_S: Tensor, blocks: Plan | None) -> Tensor:
        """[S, E] after the last norm. Without `blocks` the tokens are one sequence, computed by torch's attention."""
        angle_S_1_D2 = (depth_S[:, None].float() * self.config.frequency_D2.to(self.device))[:, None]
        dtype = self._embedding_V_E.dtype
        rotation = angle_S_1_D2.cos().to(dtype), angle_S_1_D2.sin().to(dtype)
        x_S_E = functional.embedding(token_S, self._embedding_V_E)
        for layer in self._layers:
            if self.checkpointing and torch.is_grad_enabled():
                x_S_E = checkpoint(
                    self._layer, x_S_E, layer, rotation, blocks, use_reentrant=False, preserve_rng_state=False
                )
            else:
                x_S_E = self._layer(x_S_E, layer, rotation, blocks)
        return self._norm(x_S_E, self._norm_E)

    @contextmanager
    def adapter_off(self) -> Iterator[None]:
        """The base model itself."""
        self._adapted = False
        try:
            yield
        finally:
            self._adapted = True

    def _layer(
        self, x_S_E: Tensor, layer: Layer, rotation: tuple[Tensor, Tensor], blocks: Plan | None
    ) -> Tensor:
        x_S_E = x_S_E + self._attention(layer, x_S_E, rotation, blocks)
        both_S_2F = layer.gate_up(self._norm(x_S_E, layer.norm_mlp_E), adapted=self._adapted)
        down_S_E: Tensor = layer.down(_Gate.apply(both_S_2F), adapted=self._adapted)
        return x_S_E + down_S_E

    def _attention(
        self, layer: Layer, x_S_E: Tensor, rotation: tuple[Tensor, Tensor], blocks: Plan | None
    ) -> Tensor:
        config, size = self.config, len(x_S_E)
        heads, keys = config.query_heads, config.kv_heads
        projected = layer.qkv(self._norm(x_S_E, layer.norm_attention_E), adapted=self._adapted)
        qk, v = projected.view(size, -1, config.head_dim).split([heads + keys, keys], dim=1)
        if layer.norm_qk_H_D is not None:
            qk = self._norm(qk, layer.norm_qk_H_D)
        q, k = _Rotate.apply(qk, *rotation).split([heads, keys], dim=1)
        scale = config.head_dim**-0.5
        q_Q_S_D, k_K_S_D, v_K_S_D = (part.transpose(0, 1) for part in (q, k, v))
        if blocks is None:
            mixed = functional.scaled_dot_product_attention(
                q_Q_S_D[None], k_K_S_D[None], v_K_S_D[None], is_causal=True, scale=scale, enable_gqa=True
            )[0]
        else:
            mixed = tree_attention(q_Q_S_D, k_K_S_D, v_K_S_D, blocks, scale=scale)
        return layer.out(mixed.transpose(0, 1).reshape(size, -1), adapted=self._adapted)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        normed: Tensor = _RmsNorm.apply(x, weight, self.config.eps)
        return normed


def _served_here(config: dict[str, Any], lora: LoraConfig) -> dict[str, Any]:
    """`config`, unless architecture or adapter are for transformers and PEFT to compute."""
    names = config.get("architectures") or []
    if not any(name in NAMES for name in names):
        raise ConfigError(f"{', '.join(names) or 'a model without a named architecture'} is not implemented")
    known = {name.rpartition(".")[2] for name in LINEARS}
    if other := sorted(set(lora.target_modules) - known):
        raise ConfigError(f"adapters on {', '.join(other)} are not implemented")
    return config


@dataclass(slots=True)
class _Builder:
    """Reads a checkpoint's matrices into fused layers."""

    file: TensorFile
    config: LlamaConfig
    lora: LoraConfig
    dtype: torch.dtype
    device: torch.device
    merge: bool
    packing: Quantization | None
    """The grid that the matrices are on, and are packed by."""

    def layer(self, index: int) -> Layer:
        at = f"model.layers.{index}."
        return Layer(
            norm_attention_E=self.tensor(at + "input_layernorm.weight"),
            qkv=self.fused(f"{at}self_attn.{part}_proj" for part in "qkv"),
            norm_qk_H_D=self.head_norms(at + "self_attn."),
            out=self.fused([at + "self_attn.o_proj"]),
            norm_mlp_E=self.tensor(at + "post_attention_layernorm.weight"),
            gate_up=self.fused(f"{at}mlp.{part}_proj" for part in ("gate", "up")),
            down=self.fused([at + "mlp.down_proj"]),
        )

    def head_norms(self, at: str) -> Tensor | None:
        """[query heads + key heads, D]."""
        norm_q_D, norm_k_D = self.optional(at + "q_norm.weight"), self.optional(at + "k_norm.weight")
        if norm_q_D is None or norm_k_D is None:
            return None
        heads, keys = self.config.query_heads, self.config.kv_heads
        return torch.cat([norm_q_D.expand(heads, -1), norm_k_D.expand(keys, -1)])

    def fused(self, names: Iterable[str]) -> FusedLinear:
        weights, biases, adapters = [], [], []
        start = 0
        for name in names:
            weight = self.tensor(name + ".weight")
            weights.append(weight)
            if (bias := self.optional(name + ".bias")) is not None:
                biases.append(bias)
            end = start + len(weight)
            if name.rpartition(".")[2] in self.lora.target_modules:
                adapter = Adapter.fresh(name, start, end, inputs=weight.shape[1], rank=self.lora.r)
                for matrix in (adapter.a_R_I, adapter.b_O_R):
                    matrix.data = matrix.data.to(self.device)
                adapters.append(adapter)
            start = end
        if biases and len(biases) != len(weights):
            raise ConfigError("only some matrices of a layer have a bias")
        weight_O_I = torch.cat(weights)
        packed = [Packed.of(weight, self.packing) for weight in weights] if self.packing else None
        if self.lora.dora:
            for adapter in adapters:
                adapter.add_magnitude(weight_O_I)
        return FusedLinear(
            weight_O_I if packed is None else PackedStack(packed, self.dtype),
            torch.cat(biases) if biases else None,
            adapters,
            self.lora.scale,
            merge=self.merge,
        )

    def tensor(self, name: str) -> Tensor:
        try:
            # A copy: the file's own memory goes with it.
            return self.file.read(name).to(self.device, self.dtype, copy=True)
        except KeyError as error:
            raise ConfigError(f"the model has no tensor {name}") from error

    def optional(self, name: str) -> Tensor | None:
        return self.tensor(name) if name in self.file else None
