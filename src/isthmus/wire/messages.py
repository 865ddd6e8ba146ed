"""What islands and their links say to each other, as strict, bounded MessagePack."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from isthmus.errors import LinkError, ProtocolError
from isthmus.terms import Header, Message, SignedHeader
from isthmus.wire.frames import MAX_MESSAGE_BYTES

T = TypeVar("T")

_MESSAGES: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


class Begin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A publication starts; its chunks follow from ``first_chunk`` on, as the receiver holds those before."""

    header: Header
    first_chunk: int


class End(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All chunks were sent; the header that was announced, under signature."""

    signed: SignedHeader


class Holding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The receiver holds the first ``chunks`` chunks of a publication that a break cut short."""

    publication: int
    num_bytes: int
    chunks: int


class Received(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The receiver is through with a publication: it was delivered, or dropped with an alarm."""

    publication: int


def encode_message(message: Message) -> bytes:
    """A message as bytes.

    Raises:
        LinkError: it is larger than any link carries.
    """
    body = msgspec.msgpack.encode(message)
    if len(body) > MAX_MESSAGE_BYTES:
        raise LinkError(
            f"a {type(message).__name__} message is too large",
            got=f"{len(body)} bytes",
            wanted=f"<= {MAX_MESSAGE_BYTES}",
        )
    return body


def decode_message(body: bytes | memoryview) -> Message:
    """A message from bytes.

    Raises:
        ProtocolError: the bytes are no message, or carry fields or types that no message has.
    """
    if len(body) > MAX_MESSAGE_BYTES:
        raise ProtocolError("a message is too large", got=f"{len(body)} bytes", wanted=f"<= {MAX_MESSAGE_BYTES}")
    try:
        return _MESSAGES.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ProtocolError("a message does not decode", got=str(error)) from error


def encode_body(value: Begin | End | Holding | Received) -> bytes:
    """The body of a frame that carries ``value``."""
    return msgspec.msgpack.encode(value)


def decode_body(body: bytes | memoryview, kind: type[T]) -> T:
    """A frame's body as a value of ``kind``.

    Raises:
        ProtocolError: it is none.
    """
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ProtocolError(f"a {kind.__name__} does not decode", got=str(error)) from error
