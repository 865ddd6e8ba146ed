"""What a codec is, and the checks that all of them share."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isthmus.errors import CodecError

_PER_THREAD = 1 << 17
_PER_LAUNCH = 1 << 24


class Codec(Protocol):
    """Turns fp32 rows into bytes and back; each row stands alone, so rows are slices of the bytes.

    All bytes are little-endian. Tensors may lie on any device, the two of a call on the same one. A call makes
    temporaries of the size of its rows; ``rows_at_once`` says how many rows are best.
    """

    @property
    def name(self) -> str:
        """The name in configs and headers."""
        ...

    def row_bytes(self, row_length: int) -> int:
        """Bytes of one encoded row of ``row_length`` elements."""
        ...

    def encode(self, rows: Tensor, out: Tensor) -> None:
        """Write ``rows``, fp32 [r, n], into ``out``, uint8 [r, row_bytes(n)] with contiguous rows.

        Raises:
            CodecError: A value is not finite, or the tensors do not fit.
        """
        ...

    def check(self, data: NDArray[np.uint8], row_length: int) -> None:
        """Refuse ``data``, uint8 [r, row_bytes(n)] with contiguous rows, if it does not encode finite rows.

        Raises:
            CodecError: The bytes are not those of finite rows of that length.
        """
        ...

    def decode(self, data: Tensor, rows: Tensor) -> None:
        """Write what ``data``, uint8 [r, row_bytes(n)], encodes into ``rows``, contiguous fp32 [r, n].

        The rows are finite if the bytes pass ``check``.

        Raises:
            CodecError: The tensors do not fit.
        """
        ...


def check_fit(rows: Tensor, data: Tensor, row_bytes: int) -> None:
    """Refuse rows and bytes that do not fit each other; ``row_bytes`` is what a row must encode to."""
    if rows.ndim != 2 or rows.dtype != torch.float32:
        raise CodecError("rows cannot be encoded", got=_describe(rows), wanted="a matrix of float32")
    if data.dtype != torch.uint8 or data.shape != (rows.shape[0], row_bytes):
        raise CodecError(
            "the bytes do not fit the rows",
            got=_describe(data),
            wanted=f"[{rows.shape[0]}, {row_bytes}] torch.uint8",
        )


def check_bytes(data: NDArray[np.uint8], row_bytes: int) -> None:
    """Refuse a ``check`` of bytes that are not rows of ``row_bytes``."""
    if data.ndim != 2 or data.dtype != np.uint8 or data.shape[1] != row_bytes:
        raise CodecError(
            "the bytes are not rows of the expected length",
            got=_describe(data),
            wanted=f"[rows, {row_bytes}] uint8",
        )


def is_finite(values: Tensor) -> bool:
    """Whether no value is NaN or infinite. A sum that is finite proves it; one that is not may have overflowed."""
    return math.isfinite(values.sum()) or all(math.isfinite(extreme) for extreme in torch.aminmax(values))


def not_finite(what: str) -> CodecError:
    """The error that ``what`` hold a value that is NaN or infinite."""
    return CodecError(f"{what} hold a value that is not finite", wanted="finite values only")


def rows_at_once(row_length: int, device: torch.device) -> int:
    """How many rows fit the caches of a processor's threads, or are enough for an accelerator's launches to pay."""
    elements = _PER_THREAD * torch.get_num_threads() if device.type == "cpu" else _PER_LAUNCH
    return max(1, elements // max(1, row_length))


def _describe(tensor: Tensor | NDArray[np.uint8]) -> str:
    return f"{list(tensor.shape)} {tensor.dtype}"
