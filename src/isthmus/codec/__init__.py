"""Codecs turn rows of fp32 into few bytes and back; payloads say which bytes of a publication are whose.

What crosses a link is decoded at both ends to the same bits, on any hardware.
"""

from isthmus.codec.base import Codec
from isthmus.codec.payload import (
    FOLLOW_CODEC,
    NO_CODEC,
    PayloadEntry,
    Slice,
    check_entry,
    codec_of,
    decode_entry,
    encode_entry,
    payload_bytes,
    slices,
)
from isthmus.codec.registry import CODECS, codec_named

__all__ = [
    "CODECS",
    "FOLLOW_CODEC",
    "NO_CODEC",
    "Codec",
    "PayloadEntry",
    "Slice",
    "check_entry",
    "codec_named",
    "codec_of",
    "decode_entry",
    "encode_entry",
    "payload_bytes",
    "slices",
]
