"""Where each entry of a fragment lies in a publication's payload, and the way in and out of its bytes.

A payload is the entries' encoded rows, end to end, in the order given. A fragment's entries fit
``PayloadEntry``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from isthmus.codec.registry import codec_named
from isthmus.errors import CodecError

NO_CODEC = "none"
"""The codec of a publication without payload."""

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
    """One entry's part of a payload: ``rows`` rows of ``row_length`` elements, coded by ``codec``."""

    name: str
    codec: str
    offset: int
    num_bytes: int
    rows: int
    row_length: int


def codec_of(policy: str, codec: str, embedding_codec: str) -> str:
    """The name of the codec that codes a tensor of ``policy`` in a publication of ``codec``.

    Lossless tensors are always fp32, embeddings are coded by ``embedding_codec``, but a publication in fp32
    is all fp32.
    """
    if policy == "lossless" or codec == "fp32":
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


def encode_entry(tensor: Tensor, part: Slice, payload: memoryview) -> None:
    """Write ``tensor``, fp32 of any shape with the slice's number of elements, into its slice of ``payload``.

    Raises:
        CodecError: A value is not finite, or tensor, slice and payload do not fit.
    """
    _check_length(part, payload)
    if tensor.numel() != part.rows * part.row_length:
        raise CodecError(
            f"'{part.name}' does not fit its slice",
            got=f"{tensor.numel()} elements",
            wanted=f"{part.rows} rows of {part.row_length}",
        )
    rows = tensor.detach().reshape(part.rows, part.row_length)
    target = torch.frombuffer(payload, dtype=torch.uint8, offset=part.offset, count=part.num_bytes)
    target = target.view(part.rows, -1)
    staged = target if rows.device == target.device else torch.empty_like(target, device=rows.device)
    try:
        codec_named(part.codec).encode(rows, staged)
    except CodecError as error:
        raise CodecError(f"'{part.name}': {error.what}", got=error.got, wanted=error.wanted) from error
    if staged is not target:
        target.copy_(staged)


def decode_entry(payload: memoryview, part: Slice, device: torch.device | str = "cpu") -> Tensor:
    """The rows, fp32 [rows, row_length], that lie in a slice of ``payload``, which may be read-only.

    The packed bytes are copied once, to ``device``, and decoded there.

    Raises:
        CodecError: The bytes are too few, or not those of finite rows.
    """
    data = _packed(payload, part).to(device)
    try:
        return codec_named(part.codec).decode(data, part.row_length)
    except CodecError as error:
        raise CodecError(f"'{part.name}': {error.what}", got=error.got, wanted=error.wanted) from error


def check_entry(payload: memoryview, part: Slice) -> None:
    """Refuse, at less cost, a slice that ``decode_entry`` would refuse.

    Raises:
        CodecError: As ``decode_entry``.
    """
    try:
        codec_named(part.codec).check(_packed(payload, part), part.row_length)
    except CodecError as error:
        raise CodecError(f"'{part.name}': {error.what}", got=error.got, wanted=error.wanted) from error


def _packed(payload: memoryview, part: Slice) -> Tensor:
    """A copy of a slice's bytes, uint8 [rows, row bytes]."""
    _check_length(part, payload)
    packed = np.frombuffer(payload, np.uint8, count=part.num_bytes, offset=part.offset).copy()
    return torch.from_numpy(packed).view(part.rows, -1)


def _check_length(part: Slice, payload: memoryview) -> None:
    if payload.nbytes < part.offset + part.num_bytes:
        raise CodecError(
            f"the payload ends before '{part.name}' does",
            got=f"{payload.nbytes} bytes",
            wanted=f"at least {part.offset + part.num_bytes}",
        )
