"""Where each entry of a fragment lies in a publication's payload, and the way in and out of its bytes.

A payload is the entries' encoded rows, end to end, in the order given. A fragment's entries fit
``PayloadEntry``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isthmus.codec.registry import codec_named
from isthmus.errors import CodecError

NO_CODEC = "none"
"""The codec of a publication without payload."""

WHOLE_CODEC = "whole"
"""The codec of a publication in fp32 of the slow weights themselves, whatever the edge's reference."""

FOLLOW_CODEC = "coded"
"""The embedding codec that stands for "whatever the rest is coded with"."""


class PayloadEntry(Protocol):
    """What the payload must know of a tensor; ``policy`` is ``coded``, ``lossless`` or ``embedding``."""

    @property
    def name(self) -> str:
        """For errors."""
        ...

    @property
    def rows(self) -> int:
        """Number of rows."""
        ...

    @property
    def row_length(self) -> int:
        """Elements per row."""
        ...

    @property
    def policy(self) -> str:
        """How it is coded."""
        ...


@dataclass(frozen=True)
class Slice:
    """Rows of one entry in a payload: ``rows`` rows of ``row_length`` elements, coded by ``codec``."""

    name: str
    codec: str
    offset: int
    num_bytes: int
    rows: int
    row_length: int

    def part(self, first: int, rows: int) -> Slice:
        """The slice of ``rows`` of these rows, from ``first`` on."""
        if rows == self.rows:
            return self
        row_bytes = self.num_bytes // self.rows
        return Slice(self.name, self.codec, self.offset + first * row_bytes, rows * row_bytes, rows, self.row_length)


def codec_of(policy: str, codec: str, embedding_codec: str) -> str:
    """The name of the codec that codes a tensor of ``policy`` in a publication of ``codec``.

    Lossless tensors are always fp32, embeddings are coded by ``embedding_codec``, but a publication in fp32
    is all fp32, and so is a whole one.
    """
    if policy == "lossless" or codec in ("fp32", WHOLE_CODEC):
        return "fp32"
    if policy == "embedding" and embedding_codec != FOLLOW_CODEC:
        return embedding_codec
    return codec


def slices(entries: Iterable[PayloadEntry], codec: str, embedding_codec: str = FOLLOW_CODEC) -> tuple[Slice, ...]:
    """The parts of a payload in order; none for a publication without payload.

    Raises:
        CodecError: There is no codec of that name.
    """
    if codec == NO_CODEC:
        return ()
    offset = 0
    parts = []
    for entry in entries:
        name = codec_of(entry.policy, codec, embedding_codec)
        num_bytes = entry.rows * codec_named(name).row_bytes(entry.row_length)
        parts.append(Slice(entry.name, name, offset, num_bytes, entry.rows, entry.row_length))
        offset += num_bytes
    return tuple(parts)


def payload_bytes(entries: Iterable[PayloadEntry], codec: str, embedding_codec: str = FOLLOW_CODEC) -> int:
    """Length of a payload."""
    return sum(part.num_bytes for part in slices(entries, codec, embedding_codec))


def encode_parts(rows: Tensor, parts: Sequence[Slice], payload: memoryview | Tensor) -> None:
    """Write ``rows``, fp32 of any shape, into their slices of ``payload``: all coded alike, end to end in ``rows``.

    The payload is host memory, or a tensor of uint8 on any device, which is then not waited for.

    Raises:
        CodecError: A value is not finite, or rows, slices and payload do not fit.
    """
    codec, num_rows = codec_named(parts[0].codec), sum(part.rows for part in parts)
    if rows.numel() != num_rows * parts[0].row_length:
        raise CodecError(
            f"'{parts[0].name}' does not fit its slice",
            got=f"{rows.numel()} elements",
            wanted=f"{num_rows} rows of {parts[0].row_length}",
        )
    matrix = rows.detach().reshape(num_rows, -1)
    packed = torch.empty(num_rows, codec.row_bytes(matrix.shape[1]), dtype=torch.uint8, device=matrix.device)
    try:
        codec.encode(matrix, packed)
    except CodecError as error:
        if len(parts) > 1:
            for part, own in zip(parts, matrix.split_with_sizes([part.rows for part in parts]), strict=True):
                encode_parts(own, [part], payload)
        raise _named(error, parts[0]) from error
    if isinstance(payload, Tensor):
        for part, own in zip(parts, packed.view(-1).split_with_sizes([part.num_bytes for part in parts]), strict=True):
            _near_bytes_of(payload, part).copy_(own)
        return
    source = packed.cpu().view(-1).numpy()
    at = 0
    for part in parts:
        _bytes_of(payload, part)[:] = source[at : at + part.num_bytes]
        at += part.num_bytes


def decode_parts(payload: memoryview | Tensor, parts: Sequence[Slice], rows: Tensor) -> Tensor:
    """Write what slices of ``payload`` encode into ``rows``, fp32 [rows, row_length], end to end; they are coded alike.

    The packed bytes are copied once, to the device of ``rows``, and decoded there. They were checked before; the
    payload may be read-only, and host memory or a tensor of uint8.

    Raises:
        CodecError: The bytes are too few, or do not fit.
    """
    if isinstance(payload, Tensor):
        packed = torch.cat([_near_bytes_of(payload, part) for part in parts]).to(rows.device)
    else:
        packed = torch.from_numpy(np.concatenate([_bytes_of(payload, part) for part in parts])).to(rows.device)
    codec_named(parts[0].codec).decode(packed.view(-1, parts[0].num_bytes // parts[0].rows), rows)
    return rows


def check_part(payload: memoryview, part: Slice) -> None:
    """Refuse a slice that does not decode to finite rows.

    Raises:
        CodecError: It is one, or the bytes are too few.
    """
    data = _bytes_of(payload, part).reshape(part.rows, -1)
    try:
        codec_named(part.codec).check(data, part.row_length)
    except CodecError as error:
        raise _named(error, part) from error


def _bytes_of(payload: memoryview, part: Slice) -> NDArray[np.uint8]:
    """A view of the slice's bytes."""
    _require_bytes(payload.nbytes, part)
    return np.frombuffer(payload, np.uint8, count=part.num_bytes, offset=part.offset)


def _near_bytes_of(payload: Tensor, part: Slice) -> Tensor:
    """A view of the slice's bytes."""
    _require_bytes(payload.numel(), part)
    return payload.narrow(0, part.offset, part.num_bytes)


def _require_bytes(num_bytes: int, part: Slice) -> None:
    if num_bytes < part.offset + part.num_bytes:
        raise CodecError(
            f"the payload ends before '{part.name}' does",
            got=f"{num_bytes} bytes",
            wanted=f"at least {part.offset + part.num_bytes}",
        )


def _named(error: CodecError, part: Slice) -> CodecError:
    return CodecError(f"'{part.name}': {error.what}", got=error.got, wanted=error.wanted)
