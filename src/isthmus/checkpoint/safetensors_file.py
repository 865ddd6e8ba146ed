"""The safetensors format, written and read as a stream: no second copy of the tensors, every length checked.

A file is an 8-byte little-endian header length, a JSON header (name -> dtype, shape, offsets;
``__metadata__`` -> strings), and the tensors' bytes without gaps. Any safetensors reader opens what this
writes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from isthmus.errors import CheckpointError
from isthmus.files import Chunk
from isthmus.parts import Later

Leaf = torch.Tensor | Chunk | Later
"""What a file holds under one name; bytes are stored as a vector of uint8."""

MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""

_METADATA = "__metadata__"
_LENGTH_BYTES = 8
_MAX_DIMS = 64
DTYPES = {
    "F64": torch.float64,
    "I64": torch.int64,
    "U64": torch.uint64,
    "F32": torch.float32,
    "I32": torch.int32,
    "U32": torch.uint32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I16": torch.int16,
    "U16": torch.uint16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""By their codes in the format."""
DTYPE_CODES = {dtype: code for code, dtype in DTYPES.items()}


class Source(Protocol):
    """Bytes that are read once, front to back."""

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Fill the start of ``buffer``; the number of bytes read, 0 at the end."""
        ...


@dataclass(frozen=True)
class _Entry:
    """One tensor's place in a file; ``begin`` and ``end`` count from the end of the header."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


def encode(leaves: Mapping[str, Leaf], metadata: Mapping[str, str]) -> Iterator[Chunk]:
    """The chunks of a safetensors file; tensors on an accelerator are copied to the host one at a time.

    Every tensor is stored by value: those that share memory are stored as often as they are named.

    Args:
        leaves: Dense tensors of any shape and strides, bytes, or tensors that are made one after the other.
        metadata: Strings kept in the header.

    Raises:
        CheckpointError: A tensor that the format cannot hold, or a header beyond the format's limit. Raised
            before the first chunk.
    """
    for name, leaf in leaves.items():
        check_storable(leaf, name)
    order = file_order(leaves)
    header = _header({name: leaves[name] for name in order}, metadata)
    return _chunks(header, [leaves[name] for name in order])


def file_order(leaves: Mapping[str, Leaf]) -> list[str]:
    """Names in the order of ``encode``: widest elements first keeps tensors aligned for readers that map the file."""
    return sorted(leaves, key=lambda name: -_itemsize(leaves[name]))


def decode(source: Source, num_bytes: int) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Tensors (on the CPU, in memory of their own) and metadata of a file of ``num_bytes``, read to its end.

    Memory is taken only for what a file of that length can hold.

    Raises:
        CheckpointError: The bytes are not a whole, well-formed safetensors file.
        OSError: The source fails.
    """
    if num_bytes < _LENGTH_BYTES:
        raise _malformed("shorter than its length field", num_bytes)
    header_bytes = int.from_bytes(_read(source, _LENGTH_BYTES), "little")
    if header_bytes > min(MAX_HEADER_BYTES, num_bytes - _LENGTH_BYTES):
        raise _malformed("header longer than the file or the format allows", header_bytes)
    entries, metadata = _parse_header(_read(source, header_bytes))
    _check_gapless(entries, num_bytes - _LENGTH_BYTES - header_bytes)
    return {entry.name: _read_tensor(source, entry) for entry in entries}, metadata


def check_storable(leaf: Leaf, where: str) -> None:
    """Refuse a tensor that the format cannot hold; ``where`` names it to people.

    Raises:
        CheckpointError: A sharded, sparse, meta, quantized or complex tensor, or a strided view of bytes.
    """
    if isinstance(leaf, Later):
        leaf = torch.empty(0, dtype=leaf.dtype)
    if not isinstance(leaf, torch.Tensor):
        if not memoryview(leaf).c_contiguous:
            raise CheckpointError(f"{where} is a strided view of bytes", mend="Copy it with bytes() first.")
        return
    if type(leaf) not in (torch.Tensor, torch.nn.Parameter):
        raise CheckpointError(
            f"{where} is a tensor of a special kind",
            got=type(leaf).__name__,
            wanted="torch.Tensor",
            mend="Take the local shard of a distributed tensor, or gather it, before saving.",
        )
    if leaf.layout != torch.strided or leaf.is_meta or leaf.dtype not in DTYPE_CODES:
        raise CheckpointError(
            f"{where} cannot be stored",
            got=f"{leaf.dtype}, {leaf.layout}, on {leaf.device}",
            wanted=f"a dense tensor of {', '.join(str(dtype) for dtype in DTYPE_CODES)}",
        )


def _header(leaves: Mapping[str, Leaf], metadata: Mapping[str, str]) -> bytes:
    fields: dict[str, Any] = {_METADATA: dict(metadata)} if metadata else {}
    begin = 0
    for name, leaf in leaves.items():
        if name == _METADATA:
            raise CheckpointError(f"a tensor cannot be named {_METADATA}")
        end = begin + _num_bytes(leaf)
        fields[name] = {"dtype": _code(leaf), "shape": _shape(leaf), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(fields, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER_BYTES:
        raise CheckpointError(
            "too many names and plain values for one file",
            got=f"{len(text)} bytes of header",
            wanted=f"at most {MAX_HEADER_BYTES}",
            mend="Keep long lists of numbers as tensors.",
        )
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


def _chunks(header: bytes, leaves: list[Leaf]) -> Iterator[Chunk]:
    yield header
    for leaf in leaves:
        own = leaf.make() if isinstance(leaf, Later) else leaf
        yield _raw(own) if isinstance(own, torch.Tensor) else memoryview(own).cast("B")


def _raw(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor in row-major order; a view of its memory if on the host and contiguous."""
    host = tensor.detach().resolve_neg().cpu().contiguous()
    return host.reshape(-1).view(torch.uint8).numpy().data


def _itemsize(leaf: Leaf) -> int:
    return leaf.dtype.itemsize if isinstance(leaf, torch.Tensor | Later) else 1


def _num_bytes(leaf: Leaf) -> int:
    if isinstance(leaf, torch.Tensor | Later):
        return math.prod(leaf.shape) * leaf.dtype.itemsize
    return memoryview(leaf).nbytes


def _code(leaf: Leaf) -> str:
    return DTYPE_CODES[leaf.dtype] if isinstance(leaf, torch.Tensor | Later) else "U8"


def _shape(leaf: Leaf) -> list[int]:
    return list(leaf.shape) if isinstance(leaf, torch.Tensor | Later) else [memoryview(leaf).nbytes]


def _parse_header(header: bytearray) -> tuple[list[_Entry], dict[str, str]]:
    """Entries by offset, and metadata."""
    try:
        fields = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise _malformed("header is not JSON", error) from None
    if not isinstance(fields, dict):
        raise _malformed("header is not an object", type(fields).__name__)
    metadata = fields.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise _malformed("metadata is not strings", type(metadata).__name__)
    entries = [_parse_entry(name, field) for name, field in fields.items()]
    return sorted(entries, key=lambda entry: (entry.begin, entry.end)), metadata


def _parse_entry(name: str, field: Any) -> _Entry:
    match field:
        case {"dtype": str(code), "shape": [*shape], "data_offsets": [begin, end]} if code in DTYPES:
            numbers = [*shape, begin, end]
        case _:
            raise _malformed(f"unknown description of tensor {name!r}", field)
    if not all(type(number) is int and 0 <= number < 2**63 for number in numbers) or not _has_strides(shape):
        raise _malformed(f"impossible number in the description of tensor {name!r}", field)
    dtype = DTYPES[code]
    if end - begin != math.prod(shape) * dtype.itemsize:
        raise _malformed(f"shape and offsets of tensor {name!r} disagree", field)
    return _Entry(name, dtype, tuple(shape), begin, end)


def _has_strides(shape: list[int]) -> bool:
    """Whether byte strides of 8-byte elements fit 63 bits, which a dimension of zero must not hide."""
    return len(shape) <= _MAX_DIMS and math.prod(max(length, 1) for length in shape) < 2**60


def _check_gapless(entries: list[_Entry], data_bytes: int) -> None:
    at = 0
    for entry in entries:
        if entry.begin != at:
            raise _malformed(f"tensor {entry.name!r} does not begin where the one before it ends", entry.begin)
        at = entry.end
    if at != data_bytes:
        raise _malformed("the file ends elsewhere than its last tensor", f"{data_bytes} bytes, not {at}")


def _read_tensor(source: Source, entry: _Entry) -> torch.Tensor:
    raw = torch.empty(entry.end - entry.begin, dtype=torch.uint8)
    _fill(source, raw.numpy().data)
    return raw.view(entry.dtype).reshape(entry.shape)


def _read(source: Source, num_bytes: int) -> bytearray:
    buffer = bytearray(num_bytes)
    _fill(source, memoryview(buffer))
    return buffer


def _fill(source: Source, buffer: memoryview) -> None:
    while buffer:
        count = source.readinto(buffer)
        if not count:
            raise _malformed("the file ends early", f"{len(buffer)} bytes missing")
        buffer = buffer[count:]


def _malformed(why: str, got: object) -> CheckpointError:
    return CheckpointError(f"not a whole safetensors file: {why}", got=_shortened(got))


def _shortened(got: object, limit: int = 200) -> str:
    text = str(got)
    return text if len(text) <= limit else text[:limit] + "..."
