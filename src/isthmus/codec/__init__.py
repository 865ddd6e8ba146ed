"""Codecs turn rows of fp32 into few bytes and back; payloads say which bytes of a publication are whose.

What crosses a link is decoded at both ends to the same bits, on any hardware.
"""

from isthmus.codec.base import Codec, is_finite, rows_at_once
from isthmus.codec.payload import (
    FOLLOW_CODEC,
    NO_CODEC,
    WHOLE_CODEC,
    PayloadEntry,
    Slice,
    check_part,
    codec_of,
    decode_parts,
    encode_parts,
    payload_bytes,
    slices,
)
from isthmus.codec.registry import CODECS, codec_named

__all__ = [
    "CODECS",
    "FOLLOW_CODEC",
    "NO_CODEC",
    "WHOLE_CODEC",
    "Codec",
    "PayloadEntry",
    "Slice",
    "check_part",
    "codec_named",
    "codec_of",
    "decode_parts",
    "encode_parts",
    "is_finite",
    "payload_bytes",
    "rows_at_once",
    "slices",
]
