"""Integers of a few bits with one bf16 scale per block of 128 along the row: what int2, int3, int4 and int8 share.

A row of n elements has ceil(n / 128) blocks, the last one short where 128 does not divide n. Its bytes are
all scales of the row, bfloat16 in block order, then all codes of the row, packed. Element k of a block
decodes to fp32(code_k) times fp32(scale), one fp32 multiplication, so all hardware and numpy decode to the
same bits.

A scale is 0 or between 2^-100 and a limit under which no code can decode to infinity. At the lower end that
keeps products far from subnormal numbers, which some hardware flushes to zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isthmus.codec.base import check_bytes, check_fit, not_finite
from isthmus.errors import CodecError

BLOCK = 128
"""Elements per scale."""

MIN_SCALE = 2.0**-100
"""Smallest scale; a block that would need a smaller one codes as zeros."""


@dataclass(frozen=True)
class BlockCodec:
    """Symmetric integers of ``bits`` bits, rounded to nearest; see the module for the bytes.

    The scale is bf16(absmax / max_code), rounded to nearest: on Gaussian rows its rms error is below that of a scale
    rounded up (4 bits: 0.1173 and 0.1176 of the rows' rms). The error of an element is at most half a scale, to fp32
    rounding; elements above ``max_code * max_scale`` decode to just that. Where ``shrink`` has several factors, each
    block takes the scale that leaves the least error: with few codes it pays to cut the largest elements off.

    Attributes:
        name: The codec's name.
        bits: Bits per code, 2 to 8.
        pack: Int8 codes [r, n] to integers [r, b] of any type whose lowest bytes are the row's b bytes.
        unpack: Bytes, uint8 [r, b], to int8 codes, perhaps a few more than there were.
        shrink: Factors of absmax / max_code that a scale may be.
    """

    name: str
    bits: int
    pack: Callable[[Tensor], Tensor]
    unpack: Callable[[Tensor], Tensor]
    shrink: tuple[float, ...] = (1.0,)

    @property
    def max_code(self) -> int:
        """Largest code that ``encode`` writes; the smallest is its negative."""
        return (1 << (self.bits - 1)) - 1

    @property
    def max_scale(self) -> float:
        """Largest scale: the largest bfloat16 whose product with every code of ``bits`` bits is finite."""
        return (2.0 - 2.0**-7) * 2.0 ** (128 - self.bits)

    def row_bytes(self, row_length: int) -> int:
        """Two bytes per block, and the codes rounded up to whole bytes."""
        return _scale_bytes(row_length) + (row_length * self.bits + 7) // 8

    def encode(self, rows: Tensor, out: Tensor) -> None:
        """See ``Codec.encode``."""
        check_fit(rows, out, self.row_bytes(rows.shape[-1]))
        scratch = rows.abs()
        scales = self._scales(torch.cat([blocks.amax(-1) for blocks in _blocks(scratch)], dim=1))
        codes = self._codes(rows, scales, scratch)
        if len(self.shrink) > 1:
            scales = self._best(rows, scales, codes, scratch)
            codes = self._codes(rows, scales, scratch)
        scale_bytes, code_bytes = _split(out, rows.shape[1])
        scale_bytes.copy_(scales.view(torch.uint8))
        code_bytes.copy_(self.pack(codes.to(torch.int8)))

    def _codes(self, rows: Tensor, scales: Tensor, out: Tensor) -> Tensor:
        """Codes of rows under bf16 scales, still as floats, in ``out``."""
        inverse = scales.float().reciprocal_().nan_to_num_(posinf=0.0)
        for blocks, scaled, factor in zip(_blocks(rows), _blocks(out), _per_block(inverse, rows), strict=True):
            torch.mul(blocks, factor, out=scaled)
        return out.round_().clamp_(-self.max_code, self.max_code)

    def _best(self, rows: Tensor, scales: Tensor, codes: Tensor, scratch: Tensor) -> Tensor:
        """Of the scales that ``shrink`` allows, each block's best; ``codes`` are those of the largest."""
        best, least = scales, self._errors(rows, scales, codes)
        for factor in self.shrink[1:]:
            smaller = (scales.float() * factor).to(torch.bfloat16)
            smaller = smaller.masked_fill_(smaller < MIN_SCALE, 0.0)
            errors = self._errors(rows, smaller, self._codes(rows, smaller, scratch))
            wins = errors < least
            best, least = torch.where(wins, smaller, best), torch.where(wins, errors, least)
        return best

    def _errors(self, rows: Tensor, scales: Tensor, codes: Tensor) -> Tensor:
        """Squared error of each block; where it overflows the largest scale stays."""
        factors, errors = _per_block(scales.float(), rows), []
        for blocks, its, factor in zip(_blocks(rows), _blocks(codes), factors, strict=True):
            errors.append(torch.sub(blocks, its * factor).square_().sum(-1))
        return torch.cat(errors, dim=1)

    def check(self, data: NDArray[np.uint8], row_length: int) -> None:
        """See ``Codec.check``; under a legal scale every code is finite."""
        check_bytes(data, self.row_bytes(row_length))
        scales = np.ascontiguousarray(data[:, : _scale_bytes(row_length)]).view("<u2")
        least, most = self._legal_bits
        if not ((scales - least <= most - least) | (scales == 0)).all():  # below least wraps around
            raise CodecError(
                "encoded rows hold an impossible scale",
                wanted=f"0, or {MIN_SCALE:.3g} to {self.max_scale:.3g}",
            )

    def decode(self, data: Tensor, rows: Tensor) -> None:
        """See ``Codec.decode``."""
        check_fit(rows, data, self.row_bytes(rows.shape[-1]))
        scale_bytes, code_bytes = _split(data, rows.shape[1])
        codes = self.unpack(code_bytes)
        rows.copy_(codes[:, : rows.shape[1]])
        scales = scale_bytes.clone(memory_format=torch.contiguous_format).view(torch.bfloat16).float()
        for blocks, factor in zip(_blocks(rows), _per_block(scales, rows), strict=True):
            blocks.mul_(factor)

    @cached_property
    def _legal_bits(self) -> tuple[np.uint16, np.uint16]:
        """The smallest and the largest scale as integers, which lie in the order of the positive floats they are."""
        least, most = (np.float32(scale).view(np.uint32) >> 16 for scale in (MIN_SCALE, self.max_scale))
        return np.uint16(least), np.uint16(most)

    def _scales(self, absmax: Tensor) -> Tensor:
        """bf16 scales of blocks of such absolute maxima."""
        if not math.isfinite(absmax.amax()):
            raise not_finite("rows")
        scales = absmax.div_(self.max_code).clamp_(max=self.max_scale).to(torch.bfloat16)
        return scales.masked_fill_(scales < MIN_SCALE, 0.0)


def _scale_bytes(row_length: int) -> int:
    return 2 * -(-row_length // BLOCK)


def _split(data: Tensor, row_length: int) -> tuple[Tensor, ...]:
    """Encoded rows' scales and codes."""
    scale_bytes = _scale_bytes(row_length)
    return data.split_with_sizes([scale_bytes, data.shape[1] - scale_bytes], dim=1)


def _blocks(rows: Tensor) -> list[Tensor]:
    """Views of rows [r, n] as blocks [r, b, 128], and the short last block [r, 1, n % 128]."""
    num_rows, row_length = rows.shape
    short = row_length % BLOCK
    if short == row_length:
        return [rows.unsqueeze(1)]
    if not short:
        return [rows.view(num_rows, -1, BLOCK)]
    whole, last = rows.split_with_sizes([row_length - short, short], dim=1)
    return [whole.view(num_rows, -1, BLOCK), last.unsqueeze(1)]


def _per_block(scales: Tensor, rows: Tensor) -> list[Tensor]:
    """Scales [r, blocks] as factors of ``_blocks(rows)``."""
    factors = scales.unsqueeze(-1)
    if rows.shape[1] % BLOCK in (0, rows.shape[1]):
        return [factors]
    return [factors[:, :-1], factors[:, -1:]]
