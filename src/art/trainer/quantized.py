"""Base weights of 8 or 4 bits: how a matrix is rounded and packed.

A quantised base model is a base model of its own: a folder whose matrices hold nothing but values of the grid. The engine
serves that folder as any other, and the trainer packs its matrices again without losing anything, so what is trained
is what is served, and the trainer's copy takes 1 byte or half a byte a weight (and a 16-bit scale for each block).

In both kinds a value is code * scale, rounded to bfloat16, where scale is the largest magnitude of the block, itself
rounded to bfloat16. The largest value is then the scale exactly, and packing its own result gives the same codes.

    int8   codes k / 127, k = -127 ... 127, a block is a row     (absmax, Dettmers et al. 2022, arXiv:2208.07339)
    nf4    16 codes, quantiles of the normal distribution, blocks of 64   (Dettmers et al. 2023, arXiv:2305.14314)

Axis legend: O output features, I input features, B blocks, K numbers of a block.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from art.config.model import Quantization
from art.errors import ConfigError

BLOCK = 64
"""Numbers of an nf4 block, as in the paper; a row that it does not divide is one block."""
NF4 = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
"""The codes of the paper's appendix E."""


PACKED_BYTES: dict[Quantization, float] = {"int8": 1.0, "nf4": 0.5 + 2 / BLOCK}
"""Of a packed number, its share of the block's scale included; int8's blocks are rows, whose scales do not count."""


@dataclass(frozen=True, slots=True)
class Packed:
    """One matrix."""

    kind: Quantization
    codes: Tensor
    """int8: [B, K]. nf4: uint8, two codes a byte, the first in the high half: [B, K / 2]."""
    scale_B: Tensor
    """bfloat16."""
    rows: int

    @property
    def nbytes(self) -> int:
        """As held."""
        return self.codes.nbytes + self.scale_B.nbytes

    @classmethod
    def of(cls, weight_O_I: Tensor, kind: Quantization) -> Packed:
        """Rounded to the nearest code; a matrix that is `dense()` of another gives that one."""
        outputs, inputs = weight_O_I.shape
        size = BLOCK if kind == "nf4" and inputs % BLOCK == 0 else inputs
        if kind == "nf4" and size % 2:
            raise ConfigError(f"rows of {inputs} numbers cannot be packed two a byte")
        blocks_B_K = weight_O_I.reshape(-1, size).float()
        scale_B = blocks_B_K.abs().amax(dim=1).to(torch.bfloat16)
        # A block of zeros has no scale; any divisor leaves its codes at zero.
        unit_B_K = blocks_B_K / torch.where(scale_B == 0, 1.0, scale_B.float())[:, None]
        if kind == "int8":
            codes = (unit_B_K * 127).round_().clamp_(-127, 127).to(torch.int8)
            return cls(kind, codes, scale_B, outputs)
        table = torch.tensor(NF4, device=weight_O_I.device)
        nearest = torch.bucketize(unit_B_K, (table[1:] + table[:-1]) / 2).to(torch.uint8)
        return cls(kind, nearest[:, ::2] * 16 + nearest[:, 1::2], scale_B, outputs)

    def dense(self) -> Tensor:
        """[O, I], bfloat16."""
        if self.kind == "int8":
            codes_B_K = self.codes.float() / 127
        else:
            table = torch.tensor(NF4, device=self.codes.device)
            pairs = torch.cartesian_prod(table, table)
            codes_B_K = pairs[self.codes.int()].flatten(1)
        values_B_K = codes_B_K.mul_(self.scale_B.float()[:, None]).to(torch.bfloat16)
        return values_B_K.view(self.rows, -1)


@dataclass(frozen=True, slots=True)
class PackedStack:
    """Matrices of one input below each other."""

    parts: list[Packed]
    dtype: torch.dtype
    """What is computed in."""

    @property
    def nbytes(self) -> int:
        """As held."""
        return sum(part.nbytes for part in self.parts)

    def dense(self) -> Tensor:
        """[O, I] of all parts."""
        return torch.cat([part.dense() for part in self.parts]).to(self.dtype)
