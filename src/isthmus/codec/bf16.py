"""bf16: two bytes per element, eight significant bits."""

from __future__ import annotations

import torch
from torch import Tensor

from isthmus.codec.base import check_bytes, check_rows, require_finite

_LARGEST = torch.finfo(torch.bfloat16).max


class Bf16:
    """Each element as bfloat16, little-endian, rounded to nearest even.

    The error is at most 2^-8 of a normal value; fp32 values beyond the largest bfloat16 become it, not
    infinity.
    """

    name = "bf16"

    def row_bytes(self, row_length: int) -> int:
        """Two bytes per element."""
        return 2 * row_length

    def encode(self, rows: Tensor, out: Tensor) -> None:
        """See ``Codec.encode``."""
        check_rows(rows, out, self.row_bytes(rows.shape[-1]))
        require_finite(rows, "rows")
        out.copy_(rows.clamp(-_LARGEST, _LARGEST).to(torch.bfloat16).contiguous().view(torch.uint8))

    def check(self, data: Tensor, row_length: int) -> None:
        """See ``Codec.check``."""
        self.decode(data, row_length)

    def decode(self, data: Tensor, row_length: int) -> Tensor:
        """See ``Codec.decode``; exact, as every bfloat16 is an fp32 number."""
        check_bytes(data, self.row_bytes(row_length))
        halves = torch.empty(data.shape[0], row_length, dtype=torch.bfloat16, device=data.device)
        halves.view(torch.uint8).copy_(data)
        rows = halves.float()
        require_finite(rows, "encoded rows")
        return rows
