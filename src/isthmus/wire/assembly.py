"""A publication on its way out as frames, and on its way in from frames."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from isthmus.errors import ProtocolError
from isthmus.terms import Header, SignedHeader
from isthmus.wire.frames import CHUNK_HEAD_BYTES, COMPRESSED, Kind, encode_frame, frame_header
from isthmus.wire.messages import Begin, End, Holding, encode_body
from isthmus.wire.packing import pack_chunk, unpack_chunk
from isthmus.wire.signing import verify_signed
from isthmus.wire.tree import HashTree, chunk_bounds, num_chunks

_CHUNK_HEAD = struct.Struct("!QI")
assert _CHUNK_HEAD.size == CHUNK_HEAD_BYTES


def check_header(header: Header, *, run: str, sender: str, receiver: str, max_bytes: int) -> None:
    """Check what a publication says of itself against the connection it came by.

    Raises:
        ProtocolError: it names another run, sender or receiver, or more bytes than may be held.
    """
    for what, got, wanted in (
        ("run", header.run, run),
        ("sender", header.sender, sender),
        ("receiver", header.receiver, receiver),
    ):
        if got != wanted:
            raise ProtocolError(f"a publication names another {what}", got=repr(got), wanted=repr(wanted))
    if not 0 <= header.num_bytes <= max_bytes:
        raise ProtocolError("a publication is too large", got=f"{header.num_bytes} bytes", wanted=f"<= {max_bytes}")


class Dispatch:
    """A publication on its way out: BEGIN, the chunks the receiver lacks, END.

    ``remaining_bytes`` are the packed bytes to send. Hashing, compressing and sending stream; the root is
    known once all frames of ``chunks`` were taken.
    """

    def __init__(self, header: Header, payload: memoryview, *, first_chunk: int = 0) -> None:
        self.header = header
        self._payload = payload
        self._first_chunk = max(0, min(first_chunk, num_chunks(payload.nbytes)))
        self.remaining_bytes = payload.nbytes - chunk_bounds(payload.nbytes, self._first_chunk)[0]
        self._tree = HashTree()

    def begin(self) -> bytes:
        """The BEGIN frame."""
        return encode_frame(Kind.BEGIN, encode_body(Begin(self.header, self._first_chunk)))

    def chunks(self) -> Iterator[tuple[int, bytes, bytes | memoryview]]:
        """Per chunk to send: its packed length, the head of its frame, and the frame's data."""
        total = self._payload.nbytes
        for index in range(num_chunks(total)):
            start, end = chunk_bounds(total, index)
            chunk = self._payload[start:end]
            self._tree.add(chunk)
            if index < self._first_chunk:
                continue
            data, compressed = pack_chunk(chunk)
            head = frame_header(Kind.CHUNK, CHUNK_HEAD_BYTES + len(data), flags=COMPRESSED if compressed else 0)
            yield end - start, head + _CHUNK_HEAD.pack(self.header.publication, index), data

    def root(self) -> bytes:
        """The root of the chunk tree, after the last of ``chunks``."""
        return self._tree.root()

    def end(self, signed: SignedHeader) -> bytes:
        """The END frame."""
        return encode_frame(Kind.END, encode_body(End(signed)))


class Assembly:
    """A publication on its way in, written to ``sink``, which is ``header.num_bytes`` long.

    It outlives its connection: ``resume`` goes on with what is held.
    """

    def __init__(self, header: Header, sink: memoryview) -> None:
        self.header = header
        self.wire_bytes = 0
        self._sink = sink
        self._tree = HashTree()

    def holding(self) -> Holding:
        """What is held, as the sender is told after a break."""
        return Holding(self.header.publication, self.header.num_bytes, self._tree.num_leaves)

    def resume(self, begin: Begin) -> bool:
        """Go on with the same publication under its new header; False if this is not it."""
        new, old = begin.header, self.header
        same = (new.publication, new.num_bytes) == (old.publication, old.num_bytes)
        if not same or begin.first_chunk != self._tree.num_leaves:
            return False
        self.header = new
        return True

    def add(self, body: memoryview, flags: int) -> None:
        """Take the body of the next CHUNK frame.

        Raises:
            ProtocolError: it is not the next chunk of this publication, or not as long as that must be.
        """
        if len(body) < CHUNK_HEAD_BYTES:
            raise ProtocolError("a chunk frame is too short", got=f"{len(body)} bytes")
        publication, index = _CHUNK_HEAD.unpack(body[:CHUNK_HEAD_BYTES])
        expected = self._tree.num_leaves
        if (publication, index) != (self.header.publication, expected) or expected >= num_chunks(self.header.num_bytes):
            raise ProtocolError(
                "a chunk is out of order",
                got=f"chunk {index} of {publication}",
                wanted=f"chunk {expected} of {self.header.publication}",
            )
        start, end = chunk_bounds(self.header.num_bytes, index)
        chunk = unpack_chunk(body[CHUNK_HEAD_BYTES:], end - start, compressed=bool(flags & COMPRESSED))
        self._sink[start:end] = chunk
        self._tree.add(chunk)

    def finish(self, signed: SignedHeader, certificate_pem: bytes) -> None:
        """Check the whole against its signed header.

        Raises:
            ProtocolError: chunks are missing, the header is not the announced one, or the root differs.
            IdentityError: the signature is not that of the sender's identity.
        """
        if self._tree.num_leaves != num_chunks(self.header.num_bytes):
            raise ProtocolError(
                "a publication ended early",
                got=self._tree.num_leaves,
                wanted=num_chunks(self.header.num_bytes),
            )
        if signed.header != self.header:
            raise ProtocolError("a publication was signed under another header than it began with")
        if signed.root != self._tree.root():
            raise ProtocolError(
                "a publication's chunks do not hash to its root",
                got=self._tree.root().hex()[:16],
                wanted=signed.root.hex()[:16],
            )
        verify_signed(certificate_pem, signed)
