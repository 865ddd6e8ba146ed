"""fp32: four bytes per element, lossless."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isthmus.codec.base import check_bytes, check_fit, is_finite, not_finite


class Fp32:
    """Each element as IEEE 754 binary32, little-endian."""

    name = "fp32"

    def row_bytes(self, row_length: int) -> int:
        """Four bytes per element."""
        return 4 * row_length

    def encode(self, rows: Tensor, out: Tensor) -> None:
        """See ``Codec.encode``."""
        check_fit(rows, out, self.row_bytes(rows.shape[-1]))
        if not is_finite(rows):
            raise not_finite("rows")
        out.copy_(rows.contiguous().view(torch.uint8))

    def check(self, data: NDArray[np.uint8], row_length: int) -> None:
        """See ``Codec.check``."""
        check_bytes(data, self.row_bytes(row_length))
        if not np.isfinite(data.view("<f4")).all():
            raise not_finite("encoded rows")

    def decode(self, data: Tensor, rows: Tensor) -> None:
        """See ``Codec.decode``; the values keep every bit."""
        check_fit(rows, data, self.row_bytes(rows.shape[-1]))
        rows.view(torch.uint8).copy_(data)
