"""What crosses the link, without the link: frames, messages, hash trees, signatures and session states.

Bytes and values in, bytes and values out; no sockets, no threads, no clock.
"""

from __future__ import annotations

from isthmus.wire.assembly import Assembly, Dispatch, check_header
from isthmus.wire.frames import CHUNK_BYTES, Frame, FrameParser, Kind, encode_frame
from isthmus.wire.hello import (
    PROTOCOL_VERSION,
    PeerSessions,
    Refusal,
    RefusalCode,
    SessionHello,
    SessionKey,
    SessionKind,
    decode_hello,
    encode_hello,
    judge_hello,
)
from isthmus.wire.messages import (
    Begin,
    End,
    Holding,
    Received,
    decode_body,
    decode_message,
    encode_body,
    encode_message,
)
from isthmus.wire.packing import pack_chunk, unpack_chunk
from isthmus.wire.signing import sign_header, sign_plan, signing_bytes, verify_plan, verify_signed
from isthmus.wire.tree import HashTree, chunk_bounds, num_chunks, payload_root

__all__ = [
    "CHUNK_BYTES",
    "PROTOCOL_VERSION",
    "Assembly",
    "Begin",
    "Dispatch",
    "End",
    "Frame",
    "FrameParser",
    "HashTree",
    "Holding",
    "Kind",
    "PeerSessions",
    "Received",
    "Refusal",
    "RefusalCode",
    "SessionHello",
    "SessionKey",
    "SessionKind",
    "check_header",
    "chunk_bounds",
    "decode_body",
    "decode_hello",
    "decode_message",
    "encode_body",
    "encode_frame",
    "encode_hello",
    "encode_message",
    "judge_hello",
    "num_chunks",
    "pack_chunk",
    "payload_root",
    "sign_header",
    "sign_plan",
    "signing_bytes",
    "unpack_chunk",
    "verify_plan",
    "verify_signed",
]
