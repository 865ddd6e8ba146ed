"""How two links agree on a session: HELLO, HELLO or REFUSAL, READY.

The dialling end says HELLO, the other answers in kind or refuses, and the dialling end confirms with READY.
Both ends may dial at the same time, and either may have lost a connection that the other still takes for
alive; so sessions of a pair are ordered by ``SessionKey``, every attempt in flight holds its key, and only
a higher key replaces another.
"""

from __future__ import annotations

import struct
from enum import StrEnum
from typing import Annotated, NamedTuple

import msgspec

from isthmus.errors import ProtocolError
from isthmus.wire.messages import decode_body

PROTOCOL_VERSION = 1

_VERSION = struct.Struct("!H")

Counter = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]


class SessionKind(StrEnum):
    """What a connection is for; a bulk connection carries publications one way."""

    CONTROL = "control"
    BULK_OUT = "bulk-out"
    BULK_IN = "bulk-in"


class SessionHello(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The first frame of either end.

    ``kind`` is as the dialling end sees it. ``session`` names the control session that a bulk connection
    belongs to, and is drawn by the dialling end of a control connection; ``number`` orders attempts of a
    pair.
    """

    run: str
    sender: str
    receiver: str
    incarnation: Counter
    kind: SessionKind
    number: Counter
    session: bytes


class RefusalCode(StrEnum):
    """Why a connection is refused; only ``SUPERSEDED`` is no cause for alarm."""

    VERSION = "version"
    RUN = "run"
    IDENTITY = "identity"
    INCARNATION = "incarnation"
    SUPERSEDED = "superseded"
    MALFORMED = "malformed"


class Refusal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A refused HELLO; ``reason`` is for people, ``number`` the highest session number the refuser knows."""

    code: RefusalCode
    reason: str
    number: Counter = 0


def encode_hello(hello: SessionHello, *, version: int = PROTOCOL_VERSION) -> bytes:
    """A HELLO body; the version leads, so that it can be read whatever follows."""
    return _VERSION.pack(version) + msgspec.msgpack.encode(hello)


def decode_hello(body: bytes | memoryview) -> SessionHello | Refusal:
    """The HELLO in a body, or why it is refused."""
    if len(body) < _VERSION.size:
        return Refusal(RefusalCode.MALFORMED, f"a HELLO of {len(body)} bytes")
    (version,) = _VERSION.unpack(body[: _VERSION.size])
    if version != PROTOCOL_VERSION:
        return Refusal(
            RefusalCode.VERSION,
            f"protocol version {version} was offered, {PROTOCOL_VERSION} is spoken here; "
            "install the same isthmus on both islands",
        )
    try:
        return decode_body(memoryview(body)[_VERSION.size :], SessionHello)
    except ProtocolError as error:
        return Refusal(RefusalCode.MALFORMED, str(error))


def judge_hello(hello: SessionHello, *, run: str, me: str, peer: str) -> Refusal | None:
    """Why a HELLO that came from the authenticated island ``peer`` is refused, if it is."""
    if hello.run != run:
        return Refusal(
            RefusalCode.RUN,
            f"{hello.sender} runs {hello.run[:16]}, this island {me} runs {run[:16]}: their run files "
            "differ; give both islands the same run.toml",
        )
    if hello.sender != peer:
        return Refusal(RefusalCode.IDENTITY, f"an island with the key of {peer} calls itself {hello.sender!r}")
    if hello.receiver != me:
        return Refusal(
            RefusalCode.IDENTITY,
            f"{peer} looked for {hello.receiver!r} and found {me}: an address in the roster is wrong",
        )
    return None


class SessionKey(NamedTuple):
    """The order of a pair's control sessions: by number, then the one dialled by the lower name."""

    number: int
    dialled_by_lower: bool


class PeerSessions:
    """One end's view of its control sessions with one peer; at most one is settled.

    Args:
        lower: Whether this end's name sorts before the peer's.
    """

    def __init__(self, *, lower: bool) -> None:
        self.incarnation = 0
        self._lower = lower
        self._highest = 0
        self._held: dict[SessionKey, int | None] = {}

    def dial(self) -> SessionKey | None:
        """The key for an attempt of our own, held from now on; None while any other is under way or settled."""
        if self._held:
            return None
        self._highest += 1
        key = SessionKey(self._highest, self._lower)
        self._held[key] = None
        return key

    def offer(self, hello: SessionHello) -> SessionKey | Refusal:
        """Judge the peer's attempt; its key, held from now on, or why not."""
        if hello.incarnation < self.incarnation:
            return self._older(hello.incarnation)
        key = SessionKey(hello.number, not self._lower)
        rivals = [held for held, incarnation in self._held.items() if incarnation in (None, hello.incarnation)]
        if any(held >= key for held in rivals):
            return Refusal(RefusalCode.SUPERSEDED, "another connection of this pair goes first", self._highest)
        self.incarnation = hello.incarnation
        self._highest = max(self._highest, hello.number)
        self._held[key] = hello.incarnation
        return key

    def settle(self, key: SessionKey, incarnation: int) -> Refusal | None:
        """Both ends agreed on ``key``: it replaces all lower ones. A refusal if it was itself outdone meanwhile."""
        if incarnation < self.incarnation:
            return self._older(incarnation)
        if key not in self._held or any(held > key for held in self._held if self._held[held] == incarnation):
            return Refusal(RefusalCode.SUPERSEDED, "another connection of this pair went first", self._highest)
        self.incarnation = incarnation
        self._held = {held: known for held, known in self._held.items() if held > key and known is None}
        self._held[key] = incarnation
        return None

    def release(self, key: SessionKey, incarnation: int | None) -> None:
        """An attempt failed, before the peer's incarnation was known (None) or after, or a session ended."""
        if key in self._held and self._held[key] == incarnation:
            del self._held[key]

    def learn(self, number: int) -> None:
        """A refusal told us the peer's highest number: the next attempt goes above it."""
        self._highest = max(self._highest, number)

    def _older(self, incarnation: int) -> Refusal:
        return Refusal(
            RefusalCode.INCARNATION,
            f"incarnation {incarnation} is older than {self.incarnation}, which is known already: two processes "
            "run as one island: stop the older; or its disk was lost and its clock is behind: set the clock",
        )
