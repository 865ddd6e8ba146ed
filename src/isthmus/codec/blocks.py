"""Integers of a few bits with one bf16 scale per block of 128 along the row: what int4 and int8 share.

A row of n elements has ceil(n / 128) blocks, the last one short where 128 does not divide n. Its bytes are
all scales of the row, bfloat16 in block order, then all codes of the row, packed. Element k of a block
decodes to fp32(code_k) times fp32(scale), one fp32 multiplication, so all hardware and numpy decode to the
same bits.

A scale is 0 or between 2^-100 and a limit under which no code can decode to infinity. At the lower end that
keeps products far from subnormal numbers, which some hardware flushes to zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from isthmus.codec.base import check_bytes, check_rows, row_chunks
from isthmus.errors import CodecError

BLOCK = 128
"""Elements per scale."""

MIN_SCALE = 2.0**-100
"""Smallest scale; a block that would need a smaller one codes as zeros."""


@dataclass(frozen=True)
class BlockCodec:
    """Symmetric integers of ``bits`` bits, rounded to nearest; see the module for the bytes.

    The scale is bf16(absmax / max_code), rounded to nearest: on Gaussian rows its rms error is below that of
    a scale rounded up (4 bits: 0.1173 and 0.1176 of the rows' rms). The error of an element is at most half a
    scale, to fp32 rounding; elements above ``max_code * max_scale`` decode to just that.

    Attributes:
        name: The codec's name.
        bits: Bits per code, 4 or 8.
        pack: Int8 codes [r, n], n even, to their bytes, uint8 [r, n * bits / 8].
        unpack: The inverse of ``pack``.
    """

    name: str
    bits: int
    pack: Callable[[Tensor], Tensor]
    unpack: Callable[[Tensor], Tensor]

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
        check_rows(rows, out, self.row_bytes(rows.shape[-1]))
        for chunk in row_chunks(rows):
            self._encode_chunk(rows[chunk], out[chunk])

    def check(self, data: Tensor, row_length: int) -> None:
        """See ``Codec.check``; under a legal scale every code is finite."""
        self._checked_scales(data, row_length)

    def decode(self, data: Tensor, row_length: int) -> Tensor:
        """See ``Codec.decode``."""
        scales, scale_bytes = self._checked_scales(data, row_length), _scale_bytes(row_length)
        rows = torch.empty(data.shape[0], row_length, dtype=torch.float32, device=data.device)
        for chunk in row_chunks(rows):
            part = rows[chunk]
            part.copy_(self.unpack(data[chunk, scale_bytes:])[:, :row_length])
            for blocks, scale in _blocks(part, scales[chunk]):
                blocks.mul_(scale)
        return rows

    def _encode_chunk(self, rows: Tensor, out: Tensor) -> None:
        num_rows, row_length = rows.shape
        scratch = rows.abs()
        scales = self._scales(torch.cat([blocks.amax(-1) for blocks, _ in _blocks(scratch)], dim=1))
        inverse = torch.where(scales > 0, scales.float().reciprocal(), 0.0)
        for (blocks, factor), (scaled, _) in zip(_blocks(rows, inverse), _blocks(scratch), strict=True):
            torch.mul(blocks, factor, out=scaled)
        scratch.round_().clamp_(-self.max_code, self.max_code)
        codes = torch.empty(num_rows, row_length + row_length % 2, dtype=torch.int8, device=rows.device)
        codes[:, :row_length].copy_(scratch)
        codes[:, row_length:].zero_()
        scale_bytes = _scale_bytes(row_length)
        out[:, :scale_bytes].copy_(scales.view(torch.uint8))
        out[:, scale_bytes:].copy_(self.pack(codes)[:, : out.shape[1] - scale_bytes])

    def _scales(self, absmax: Tensor) -> Tensor:
        if not absmax.isfinite().all():
            raise CodecError("rows hold a value that is not finite", wanted="finite values only")
        scales = (absmax / self.max_code).clamp_(max=self.max_scale).to(torch.bfloat16)
        return torch.where(scales < MIN_SCALE, 0.0, scales)

    def _checked_scales(self, data: Tensor, row_length: int) -> Tensor:
        """The scales of encoded rows, fp32 [r, blocks]."""
        check_bytes(data, self.row_bytes(row_length))
        scales = data[:, : _scale_bytes(row_length)].clone(memory_format=torch.contiguous_format)
        scales = scales.view(torch.bfloat16).float()
        legal = (scales == 0) | ((scales >= MIN_SCALE) & (scales <= self.max_scale))
        if not legal.all():
            raise CodecError(
                "encoded rows hold an impossible scale",
                wanted=f"0, or {MIN_SCALE:.3g} to {self.max_scale:.3g}",
            )
        return scales


def _scale_bytes(row_length: int) -> int:
    return 2 * -(-row_length // BLOCK)


def _blocks(rows: Tensor, scales: Tensor | None = None) -> list[tuple[Tensor, Tensor]]:
    """Views of ``rows`` [r, n]: whole blocks [r, b, 128] and the short last one [r, 1, n % 128]; with scales."""
    row_length = rows.shape[1]
    whole = row_length // BLOCK
    factors = rows if scales is None else scales.unsqueeze(-1)
    views = []
    if whole:
        views.append((rows[:, : whole * BLOCK].view(-1, whole, BLOCK), factors[:, :whole]))
    if row_length > whole * BLOCK:
        views.append((rows[:, whole * BLOCK :].unsqueeze(1), factors[:, whole:]))
    return views
