"""Linear layers in the layout this machine multiplies fastest.

Axes: T tokens, I input features, O output features.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from art.errors import ConfigError


class Linear(Protocol):
    """y_T_O = x_T_I @ weight.T + bias."""

    @property
    def plain(self) -> PlainLinear | None:
        """The layer as torch stores it, for single rows; None where it is not kept."""
        ...

    def __call__(self, x_T_I: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class PlainLinear:
    """The weight as torch stores it."""

    weight_O_I: Tensor
    bias_O: Tensor | None

    @property
    def plain(self) -> PlainLinear:
        return self

    def __call__(self, x_T_I: Tensor) -> Tensor:
        return functional.linear(x_T_I, self.weight_O_I, self.bias_O)

    def row(self, x_I: Tensor, *, alpha: float = 1.0, plus_O: Tensor | None = None) -> Tensor:
        """alpha * (weight @ x) + bias + plus, [O]: a single row in one call."""
        added = self.bias_O
        if plus_O is not None:
            added = plus_O if added is None else plus_O + added
        if added is None:
            return torch.addmv(x_I.new_empty(len(self.weight_O_I)), self.weight_O_I, x_I, beta=0, alpha=alpha)
        return torch.addmv(added, self.weight_O_I, x_I, alpha=alpha)


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """The weight in oneDNN's blocked layout: no repacking on every call, +23 to +46 % in decoding.

    A single row only streams the weight past the processor. There the blocked layout is a quarter slower than
    the plain one (measured 10 against 13 GB/s a core in fp32), so the plain one is kept beside it where it fits.
    """

    packed: Tensor
    bias_O: Tensor | None
    plain: PlainLinear | None

    def __call__(self, x_T_I: Tensor) -> Tensor:
        if self.plain is not None and len(x_T_I) == 1:
            return self.plain(x_T_I)
        return torch.ops.mkldnn._linear_pointwise(x_T_I, self.packed, self.bias_O, "none", [], "")


@dataclass(frozen=True, slots=True)
class MklLinear:
    """The weight in MKL's packed layout (float32): on Intel's processors 20 to 25 % faster than oneDNN's at 32 and 64 rows.

    One packed weight serves any number of rows: MKL's reference for `cblas_sgemm_pack` asks for the same layout and
    number of threads in packing and computing, not for the same number of rows. torch's operator computes with it
    only when it is told the number of rows at hand, and otherwise with `weight_O_I`. That is a weight in size alone
    where no plain one is kept for single rows, which it serves a fifth faster (whole steps of SmolLM2-135M).
    """

    packed: Tensor
    weight_O_I: Tensor
    bias_O: Tensor | None
    plain: PlainLinear | None

    @classmethod
    def of(cls, weight_O_I: Tensor, bias_O: Tensor | None, *, keep_plain: bool = False) -> MklLinear:
        """`weight_O_I` is float32 on the CPU."""
        weight = weight_O_I.contiguous()
        packed = torch.ops.mkl._mkl_reorder_linear_weight(weight, MKL_ROWS)
        if keep_plain:
            return cls(packed, weight, bias_O, PlainLinear(weight, bias_O))
        return cls(packed, weight.new_full((1,), torch.nan).expand(weight.shape), bias_O, None)

    def __call__(self, x_T_I: Tensor) -> Tensor:
        if self.plain is not None and len(x_T_I) == 1:
            return self.plain(x_T_I)
        return torch.ops.mkl._mkl_linear(x_T_I, self.packed, self.weight_O_I, self.bias_O, len(x_T_I))


MKL_ROWS = 64
"""Rows for which weights are packed."""

Packing = Literal["none", "onednn", "mkl"]
"""Layouts of weights on the CPU. The operators are torch's own, so each is tried before it is chosen."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where and in which form weights and activations live."""

    device: torch.device
    dtype: torch.dtype
    pack: Packing
    keep_plain: bool = False
    """Keep the plain layout beside the packed one, for single rows; costs the weights' memory once more."""

    def linear(self, weight_O_I: Tensor, bias_O: Tensor | None) -> Linear:
        """A linear layer of a weight and bias in any dtype."""
        weight = weight_O_I.to(self.device, self.dtype)
        bias = None if bias_O is None else bias_O.to(self.device, self.dtype)
        if self.pack == "mkl":
            return MklLinear.of(weight, bias, keep_plain=self.keep_plain)
        if self.pack == "onednn":
            weight = weight.contiguous()
            packed = torch.ops.mkldnn._reorder_linear_weight(weight)
            return PackedLinear(packed, bias, PlainLinear(weight, bias) if self.keep_plain else None)
        return PlainLinear(weight.contiguous(), bias)


def choose_placement(dtype: str) -> tuple[Placement, list[str]]:
    """The placement for `dtype` ("auto", "fp32" or "bf16") on this machine, and notes that say why."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    reason = "asked for"
    if dtype == "auto":
        dtype, reason = _auto_dtype(device)
    chosen = {"fp32": torch.float32, "bf16": torch.bfloat16}.get(dtype)
    if chosen is None:
        raise ConfigError(f"dtype {dtype!r} is unknown", hint="auto, fp32 or bf16")
    pack = _packing(chosen) if device.type == "cpu" else "none"
    notes = [f"dtype {dtype}: {reason}"]
    if device.type == "cpu" and pack == "none":
        notes.append("weights are not prepacked: this build of torch has neither MKL's nor oneDNN's linear")
    return Placement(device, chosen, pack), notes


def _auto_dtype(device: torch.device) -> tuple[str, str]:
    if device.type == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return "bf16", "the GPU multiplies bf16 natively"
        return "fp32", "the GPU has no native bf16"
    if torch.cpu._is_amx_tile_supported():
        return "bf16", "the CPU has AMX"
    if torch.cpu._is_avx512_bf16_supported():
        return "bf16", "the CPU has AVX512-BF16"
    return "fp32", "the CPU has neither AMX nor AVX512-BF16, so bf16 would be slower"


def _by_intel() -> bool:
    """Whether the processor is Intel's. There MKL's layout is the faster one at 32 and 64 rows; on an AMD processor with AVX2
    oneDNN's is, 1.4 to 2.5 times at 8 to 64 rows. A rule and no trial: the layout decides the last bits of a log-probability,
    and `--deterministic` promises the same ones from one start to the next."""
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text()
    except OSError:  # no Linux
        return "GenuineIntel" in platform.processor()


def _packing(dtype: torch.dtype) -> Packing:
    """The fastest layout that this build of torch computes with, and computes right for any number of rows."""
    weight = torch.arange(96 * 80, dtype=dtype).remainder(7).view(96, 80)
    bias = torch.arange(96, dtype=dtype)
    candidates: list[Packing] = ["onednn"]
    if dtype == torch.float32:
        candidates.insert(0 if _by_intel() else 1, "mkl")
    for pack in candidates:
        try:
            layer = Placement(torch.device("cpu"), dtype, pack).linear(weight, bias)
            for rows in (1, 2, 17, MKL_ROWS, 200):
                x = torch.ones(rows, 80, dtype=dtype)
                if not torch.allclose(layer(x), functional.linear(x, weight, bias)):
                    break
            else:
                return pack
        except (AttributeError, RuntimeError):
            continue
    return "none"
