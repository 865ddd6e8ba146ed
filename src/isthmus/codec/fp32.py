"""fp32: four bytes per element, lossless."""

from __future__ import annotations

import torch
from torch import Tensor

from isthmus.codec.base import check_bytes, check_rows, require_finite


class Fp32:
    """Each element as IEEE 754 binary32, little-endian."""

    name = "fp32"

    def row_bytes(self, row_length: int) -> int:
        """Four bytes per element."""
        return 4 * row_length

    def encode(self, rows: Tensor, out: Tensor) -> None:
        """See ``Codec.encode``."""
        check_rows(rows, out, self.row_bytes(rows.shape[-1]))
        require_finite(rows, "rows")
        out.copy_(rows.contiguous().view(torch.uint8))

    def check(self, data: Tensor, row_length: int) -> None:
        """See ``Codec.check``."""
        self.decode(data, row_length)

    def decode(self, data: Tensor, row_length: int) -> Tensor:
        """See ``Codec.decode``; the values keep every bit."""
        check_bytes(data, self.row_bytes(row_length))
        rows = torch.empty(data.shape[0], row_length, dtype=torch.float32, device=data.device)
        rows.view(torch.uint8).copy_(data)
        require_finite(rows, "encoded rows")
        return rows
