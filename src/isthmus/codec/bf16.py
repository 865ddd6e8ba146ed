"""bf16: two bytes per element, eight significant bits."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isthmus.codec.base import check_bytes, check_fit, is_finite, not_finite

_LARGEST = torch.finfo(torch.bfloat16).max
_EXPONENT = 0x7F80


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
        check_fit(rows, out, self.row_bytes(rows.shape[-1]))
        if not is_finite(rows):
            raise not_finite("rows")
        out.copy_(rows.clamp(-_LARGEST, _LARGEST).to(torch.bfloat16).contiguous().view(torch.uint8))

    def check(self, data: NDArray[np.uint8], row_length: int) -> None:
        """See ``Codec.check``."""
        check_bytes(data, self.row_bytes(row_length))
        if (data.view("<u2") & _EXPONENT == _EXPONENT).any():
            raise not_finite("encoded rows")

    def decode(self, data: Tensor, rows: Tensor) -> None:
        """See ``Codec.decode``; exact, as every bfloat16 is an fp32 number."""
        check_fit(rows, data, self.row_bytes(rows.shape[-1]))
        rows.copy_(data.clone(memory_format=torch.contiguous_format).view(torch.bfloat16))
