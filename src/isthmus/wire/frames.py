"""Frames: the bounded units of every connection, cut from a stream of bytes without a socket in sight.

A frame is an 8-byte header (magic, kind, flags, length of the body; big-endian) and its body. Each kind has
its own bound, and only the kinds that fit the state of a connection are allowed; both are checked on the
header alone, so no memory is taken for a body that would be refused.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

from isthmus.errors import ProtocolError
from isthmus.units import KIB, MIB

MAGIC = b"IS"
HEADER_BYTES = 8
CHUNK_HEAD_BYTES = 12
MAX_MESSAGE_BYTES = 8 * MIB
CHUNK_BYTES = MIB
"""The largest packed chunk of a publication."""

COMPRESSED = 1
"""The flag of a chunk whose body is a zstd frame."""

_HEADER = struct.Struct("!2sBBI")


class Kind(IntEnum):
    """What a frame carries."""

    HELLO = 1
    REFUSAL = 2
    READY = 3
    MESSAGE = 4
    PING = 5
    HOLDING = 6
    RECEIVED = 7
    GOODBYE = 8
    BEGIN = 9
    CHUNK = 10
    END = 11


HANDSHAKE_BOUNDS: Mapping[Kind, int] = {Kind.HELLO: 4 * KIB, Kind.REFUSAL: 4 * KIB, Kind.READY: 0}
"""What may cross before both ends have agreed on a session."""

CONTROL_BOUNDS: Mapping[Kind, int] = {
    Kind.MESSAGE: MAX_MESSAGE_BYTES,
    Kind.PING: 0,
    Kind.HOLDING: KIB,
    Kind.RECEIVED: KIB,
    Kind.GOODBYE: 0,
}
"""What may cross a control connection."""

BULK_BOUNDS: Mapping[Kind, int] = {
    Kind.BEGIN: 16 * KIB,
    Kind.CHUNK: CHUNK_BYTES + CHUNK_HEAD_BYTES,
    Kind.END: 16 * KIB,
}
"""What may cross a bulk connection."""


class Frame(NamedTuple):
    """One whole frame; ``body`` belongs to the caller."""

    kind: Kind
    flags: int
    body: memoryview


def frame_header(kind: Kind, num_bytes: int, *, flags: int = 0) -> bytes:
    """The 8 bytes that go before a body of ``num_bytes``."""
    return _HEADER.pack(MAGIC, kind, flags, num_bytes)


def encode_frame(kind: Kind, body: bytes = b"", *, flags: int = 0) -> bytes:
    """A whole frame; for small bodies, as it copies."""
    return frame_header(kind, len(body), flags=flags) + body


class FrameParser:
    """Cuts frames from a stream: read into ``writable()``, then tell ``advance`` how many bytes came.

    ``bounds`` gives the allowed kinds and the largest body of each; it may be replaced between two frames.
    """

    def __init__(self, bounds: Mapping[Kind, int]) -> None:
        self.bounds = bounds
        self._start()

    def _start(self) -> None:
        self._kind: Kind | None = None
        self._flags = 0
        self._open(HEADER_BYTES)

    def _open(self, num_bytes: int) -> None:
        self._buffer = memoryview(bytearray(num_bytes))
        self._filled = 0

    @property
    def between_frames(self) -> bool:
        """Whether a stream that ends here was not cut inside a frame."""
        return self._kind is None and self._filled == 0

    def writable(self) -> memoryview:
        """Where the next bytes of the stream go; never empty."""
        return self._buffer[self._filled :]

    def advance(self, num_bytes: int) -> Frame | None:
        """Take note of ``num_bytes`` written to ``writable()``; a frame if they complete one.

        Raises:
            ProtocolError: the header is not ours, of a kind not allowed here, or its length is over the
            bound.
        """
        self._filled += num_bytes
        if self._filled < len(self._buffer):
            return None
        if self._kind is None:
            self._kind, self._flags, length = _read_header(self._buffer, self.bounds)
            self._open(length)
            if length:
                return None
        frame = Frame(self._kind, self._flags, self._buffer)
        self._start()
        return frame

    def feed(self, data: bytes | memoryview) -> list[Frame]:
        """Copy ``data`` in; all frames that it completes.

        Raises:
            ProtocolError: as ``advance``.
        """
        rest, frames = memoryview(data), []
        while rest:
            room = self.writable()
            step = min(len(room), len(rest))
            room[:step] = rest[:step]
            rest = rest[step:]
            if (frame := self.advance(step)) is not None:
                frames.append(frame)
        return frames


def _read_header(data: memoryview, bounds: Mapping[Kind, int]) -> tuple[Kind, int, int]:
    magic, kind, flags, length = _HEADER.unpack(data)
    if magic != MAGIC:
        raise ProtocolError("bytes that are no frame", got=bytes(data).hex(), wanted=f"{MAGIC.hex()}...")
    if kind not in bounds:
        raise ProtocolError("a frame of a kind not allowed here", got=kind, wanted=[k.name for k in bounds])
    if length > bounds[Kind(kind)]:
        raise ProtocolError(
            f"a {Kind(kind).name} frame is too long", got=f"{length} bytes", wanted=f"<= {bounds[Kind(kind)]}"
        )
    if flags & ~(COMPRESSED if kind == Kind.CHUNK else 0):
        raise ProtocolError(f"a {Kind(kind).name} frame carries unknown flags", got=flags)
    return Kind(kind), flags, length
