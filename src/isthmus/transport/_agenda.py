"""What is under way in a memory network, as plain values: a network can be stopped and go on in another process.

Every kind says what must still be true when its time comes; otherwise it comes to nothing.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec

from isthmus.terms import LinkEvent, MessageReceived, PublicationReceived, PublicationSent
from isthmus.transport._pair import Pair

Ends = tuple[str, str]
"""A pair's names, the lower first."""


class Connect(msgspec.Struct, frozen=True, tag="connect"):
    """A pair connects, if both are there, no cut is between them, and neither was replaced."""

    ends: Ends
    session: int


class Detect(msgspec.Struct, frozen=True, tag="detect"):
    """A pair's ends notice that it no longer works, unless it does again; ``cuts`` tells one cut from a later one."""

    ends: Ends
    session: int
    cuts: int
    reason: str


class Arrive(msgspec.Struct, frozen=True, tag="arrive"):
    """What was sent in a session arrives, if that still lasts."""

    sender: str
    receiver: str
    session: int
    event: MessageReceived | PublicationReceived


class FinishSending(msgspec.Struct, frozen=True, tag="sent"):
    """The last byte of ``name``'s publication leaves, if the session still lasts."""

    name: str
    session: int
    event: PublicationSent


class Leave(msgspec.Struct, frozen=True, tag="leave"):
    """An island that closed its link is gone, unless it was started again meanwhile."""

    name: str
    incarnation: int
    reason: str


Happening = Connect | Detect | Arrive | FinishSending | Leave


class LinkState(msgspec.Struct, kw_only=True):
    """One island's end: what waits for ``poll``, whether it is closed, and (window, bytes sent, bytes received)."""

    incarnation: int
    closed: bool
    events: list[LinkEvent]
    traffic: list[tuple[int, float, float]]


class NetworkState(msgspec.Struct, kw_only=True):
    """A whole network."""

    order: int
    incarnations: dict[str, int]
    links: dict[str, LinkState]
    pairs: list[Pair]
    agenda: list[tuple[float, int, Happening]]


def encode(state: NetworkState) -> bytes:
    """A state as bytes; the same bytes for the same state, in any process."""
    return _ENCODER.encode(state)


def decode(data: bytes) -> NetworkState:
    """The state that ``encode`` wrote."""
    return _DECODER.decode(data)


def _plain(value: Any) -> Any:
    if isinstance(value, random.Random):
        return value.getstate()
    raise NotImplementedError(type(value).__name__)


def _made(kind: type, value: Any) -> Any:
    if kind is random.Random:
        version, numbers, gauss_next = value
        rng = random.Random()
        rng.setstate((version, tuple(numbers), gauss_next))
        return rng
    raise NotImplementedError(kind.__name__)


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_plain, order="deterministic")
_DECODER = msgspec.msgpack.Decoder(NetworkState, dec_hook=_made)
