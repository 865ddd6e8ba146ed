"""zstd around single chunks, outside the hash: its output differs between versions, the packed bytes do not."""

from __future__ import annotations

import sys

from isthmus.errors import ProtocolError
from isthmus.wire.frames import CHUNK_BYTES

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_LEVEL = 3
"""2 % fewer bytes than level 1 on int4 codes, at three quarters of its speed (bench/wire_bytes.py)."""

_LIMITS = {int(zstd.DecompressionParameter.window_log_max): CHUNK_BYTES.bit_length() - 1}


def pack_chunk(chunk: memoryview) -> tuple[bytes | memoryview, bool]:
    """The chunk compressed, if that is shorter, else as it is; and whether it was compressed."""
    packed = zstd.compress(chunk, level=_LEVEL)
    return (packed, True) if len(packed) < len(chunk) else (chunk, False)


def unpack_chunk(body: bytes | memoryview, num_bytes: int, *, compressed: bool) -> bytes | memoryview:
    """The ``num_bytes`` bytes of a chunk; never takes memory for more, whatever the body claims.

    Raises:
        ProtocolError: the body holds another number of bytes, or does not decompress.
    """
    if not compressed:
        if len(body) != num_bytes:
            raise ProtocolError("a chunk has the wrong length", got=len(body), wanted=num_bytes)
        return body
    decompressor = zstd.ZstdDecompressor(options=_LIMITS)
    try:
        data = decompressor.decompress(body, max_length=num_bytes)
    except zstd.ZstdError as error:
        raise ProtocolError("a chunk does not decompress", got=str(error)) from error
    if len(data) != num_bytes or not decompressor.eof or decompressor.unused_data:
        raise ProtocolError("a compressed chunk has the wrong length", wanted=num_bytes)
    return data
