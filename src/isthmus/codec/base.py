"""What a codec is, and the checks that all of them share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from isthmus.errors import CodecError

_CHUNK_ELEMENTS = {"cpu": 1 << 18}
_DEFAULT_CHUNK_ELEMENTS = 1 << 24


class Codec(Protocol):
    """Turns fp32 rows into bytes and back; each row stands alone, so rows are slices of the bytes.

    All bytes are little-endian. Tensors may lie on any device, the two of a call on the same one.
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

    def check(self, data: Tensor, row_length: int) -> None:
        """Refuse what ``decode`` would refuse, at less cost.

        Raises:
            CodecError: As ``decode``.
        """
        ...

    def decode(self, data: Tensor, row_length: int) -> Tensor:
        """The rows, fp32 [r, n] and finite, of ``data``, uint8 [r, row_bytes(n)].

        Raises:
            CodecError: The bytes are not those of finite rows of that length.
        """
        ...


def check_rows(rows: Tensor, out: Tensor, row_bytes: int) -> None:
    """Refuse an ``encode`` whose tensors do not fit; ``row_bytes`` is what a row must encode to."""
    if rows.ndim != 2 or rows.dtype != torch.float32:
        raise CodecError("rows cannot be encoded", got=_describe(rows), wanted="a matrix of float32")
    if out.dtype != torch.uint8 or out.shape != (rows.shape[0], row_bytes):
        raise CodecError(
            "the buffer does not fit the rows",
            got=_describe(out),
            wanted=f"[{rows.shape[0]}, {row_bytes}] torch.uint8",
        )


def check_bytes(data: Tensor, row_bytes: int) -> None:
    """Refuse a ``decode`` of bytes that are not rows of ``row_bytes``."""
    if data.ndim != 2 or data.dtype != torch.uint8 or data.shape[1] != row_bytes:
        raise CodecError(
            "the bytes are not rows of the expected length",
            got=_describe(data),
            wanted=f"[rows, {row_bytes}] torch.uint8",
        )


def require_finite(values: Tensor, what: str) -> None:
    """Refuse values that are NaN or infinite; ``what`` names them in the error."""
    if values.numel() and not torch.stack(torch.aminmax(values)).isfinite().all():
        raise CodecError(f"{what} hold a value that is not finite", wanted="finite values only")


def row_chunks(rows: Tensor) -> Iterator[slice]:
    """Row ranges small enough for a processor's cache, or large enough for an accelerator's launches to pay."""
    elements = _CHUNK_ELEMENTS.get(rows.device.type, _DEFAULT_CHUNK_ELEMENTS)
    step = max(1, elements // max(1, rows.shape[1]))
    for first in range(0, rows.shape[0], step):
        yield slice(first, min(first + step, rows.shape[0]))


def _describe(tensor: Tensor) -> str:
    return f"{list(tensor.shape)} {tensor.dtype}"
