"""Frozen values that cross rooms: what islands say to each other, and what a link reports.

The words are those of ``docs/glossary.md``. Everything here is plain data; nothing here decides or acts.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

NO_REFERENCE = b""
"""The hash of an edge's reference where there is none (``c = 0``)."""

NO_PUBLICATION = 0
"""The id that stands for "no publication"; real ids are ``incarnation << 32 | sequence``."""


TAG_BITS = 12
"""Bits of ``Header.ending`` that say which meeting of a plan it is; those above say which plan."""


class Phase(StrEnum):
    """Where an island is in its run."""

    JOINING = "joining"
    TRAINING = "training"
    FINISHING = "finishing"
    DONE = "done"


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a publication says of itself; signed together with the root of its chunk hashes.

    ``tokens`` is T, the tokens its sender has trained; ``weight_tokens`` is d, those since its last completed
    meeting of this fragment on this edge; ``run_tokens`` are those of all islands as the sender has heard;
    ``cursor`` is the sender's data cursor; ``reference`` is H(c). ``ending`` names the step of an ``EndPlan`` that a
    publication belongs to, 0 if to none; there ``weight_tokens`` are those of all islands whose weights it carries.
    """

    run: str
    sender: str
    receiver: str
    fragment: int
    epoch: int
    version: int
    sender_incarnation: int
    receiver_incarnation: int
    publication: int
    step: int
    tokens: int
    weight_tokens: int
    run_tokens: int
    cursor: int
    reference: bytes
    codec: str
    num_bytes: int
    final: bool = False
    ending: int = 0

    def addressed(self, sender_incarnation: int, receiver_incarnation: int) -> Header:
        """The same publication, said anew between other incarnations of its two ends."""
        return msgspec.structs.replace(
            self, sender_incarnation=sender_incarnation, receiver_incarnation=receiver_incarnation
        )

    def coded(self, codec: str, num_bytes: int) -> Header:
        """The same publication, once it is known how it is coded."""
        return msgspec.structs.replace(self, codec=codec, num_bytes=num_bytes)


class SignedHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A header, the root hash of its payload's chunk tree, and the sender's Ed25519 signature over both."""

    header: Header
    root: bytes
    signature: bytes


class EdgeReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one end of an edge holds of one fragment; a HELLO carries one per fragment.

    ``open`` says whether this end takes publications; one that does not is waiting for a HELLO.
    ``last`` is the pair of ids (own, partner's) of the last completed meeting. ``tokens_met`` and
    ``peer_tokens_met`` are T of this end and of the other end at that meeting, as recorded here.
    """

    epoch: int
    version: int
    reference: bytes
    open: bool = False
    mine: int = NO_PUBLICATION
    theirs: int = NO_PUBLICATION
    last: tuple[int, int] | None = None
    tokens_met: int = 0
    peer_tokens_met: int = 0


class Hello(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="hello"):
    """Opens or re-opens an edge. ``held`` is the newest header of the receiver's that the sender holds."""

    run: str
    sender: str
    incarnation: int
    peer_incarnation: int
    tokens: int
    rounds: int
    complete: bool
    layout: bytes
    edges: tuple[EdgeReport, ...]
    held: SignedHeader | None = None


class Pulse(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="pulse"):
    """Small news, sent at every departure: tokens trained per island, as last heard, and the sender's phase.

    ``roster`` is the version of the roster that the sender goes by.
    """

    tokens: Mapping[str, int]
    phase: Phase
    step: int = 0
    roster: int = 0


class RosterNews(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="roster"):
    """A roster as JSON with its owner's signature, for an island that goes by an older one."""

    document: str


class Layout(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="layout"):
    """Every parameter as ``name shape kind policy``, sent when two islands' layout digests differ."""

    entries: tuple[str, ...]


class Goodbye(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="goodbye"):
    """The sender leaves on purpose, and says why."""

    reason: str


class Standing(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What an island that has ended its training says of itself; the others pass it on.

    Attributes:
        number: Grows with everything that it says; of two the higher counts.
        mass: Tokens of its last window, its weight in the end.
        reach: Islands that it can reach.
        shuns: Islands that it takes nothing from: what they published cannot be used, or their model is another.
        plan: The plan that it follows, 0 if none.
        done: Meetings done under that plan, over all fragments.
        result: The plan that made the outcome that it holds whole, 0 if none. One that binds nobody is not told.
        vote: The newest plan under which it held that outcome, all members following it; 0 if none, or if it may have
            forgotten a vote.
        digest: SHA-256 over the hashes of that outcome's fragments.
    """

    number: int
    mass: int
    reach: tuple[str, ...]
    shuns: tuple[str, ...] = ()
    plan: int = 0
    done: int = 0
    result: int = 0
    vote: int = 0
    digest: bytes = b""

    def says_more(self, other: Standing) -> bool:
        """Whether it is newer than ``other`` and does not only repeat it."""
        return self.number > other.number and self != msgspec.structs.replace(other, number=self.number)


class EndStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One meeting of the end: both ends take the mean by mass, bit for bit the same. A mass of 0 only takes."""

    low: str
    high: str
    low_mass: int
    high_mass: int

    def mass_of(self, name: str) -> int:
        """That of one of the two."""
        return self.low_mass if name == self.low else self.high_mass

    def other(self, name: str) -> str:
        """The other one of the two."""
        return self.high if name == self.low else self.low


class EndPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a run ends: who takes part with which mass, and all meetings, which each member holds in this order.

    Attributes:
        run: The run's hash.
        number: Grows with every plan; no two authors have the same. The highest counts.
        author: Who signed it.
        members: The islands of this plan, by slot.
        steps: The meetings.
        result: The plan whose outcome it brings about: itself, or an earlier one that some members hold already.
        base: The newest vote of any member, 0 if none has voted; the result is what that vote was for.
        binding: Whether more than half of the run's islands take part. Otherwise the outcome is provisional.
    """

    run: str
    number: int
    author: str
    members: tuple[str, ...]
    steps: tuple[EndStep, ...]
    result: int
    base: int
    binding: bool

    def of(self, name: str) -> tuple[tuple[int, EndStep], ...]:
        """A member's meetings in order, with their places among all."""
        return tuple((place, step) for place, step in enumerate(self.steps) if name in (step.low, step.high))

    def tag(self, place: int) -> int:
        """What ``Header.ending`` calls the meeting at a place."""
        return self.number << TAG_BITS | (place + 1)


class Ending(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="ending"):
    """What is known of the end of the run: every island's newest word, and the newest plan with its signature."""

    standings: Mapping[str, Standing]
    plan: EndPlan | None = None
    signature: bytes = b""


Message = Hello | Pulse | Layout | Goodbye | Ending | RosterNews


class PeerUp(msgspec.Struct, frozen=True, tag="up"):
    """A peer can be reached: authenticated, same run, same protocol."""

    peer: str
    incarnation: int
    rtt_s: float = 0.0


class PeerDown(msgspec.Struct, frozen=True, tag="down"):
    """A peer can no longer be reached, or was refused; ``reason`` is for people."""

    peer: str
    reason: str


class MessageReceived(msgspec.Struct, frozen=True, tag="message"):
    """A small message from a peer."""

    peer: str
    message: Message


class PublicationReceived(msgspec.Struct, frozen=True, tag="publication"):
    """A whole publication whose chunk hashes, root and signature were verified against ``peer``'s identity.

    ``payload`` is read-only; ``wire_bytes`` counts what crossed the link for it, compression included.
    """

    peer: str
    signed: SignedHeader
    payload: memoryview
    wire_bytes: int = 0


class PublicationSent(msgspec.Struct, frozen=True, tag="sent"):
    """The last byte of a publication was handed to the network; ``signed`` is what the peer will hold."""

    peer: str
    signed: SignedHeader
    wire_bytes: int
    seconds: float


class LinkSample(msgspec.Struct, frozen=True, tag="sample"):
    """Bytes that crossed the link (all framing and encryption counted) in one window of ``window_s``."""

    at_s: float
    window_s: float
    sent_bytes: int
    received_bytes: int


class LinkAlarm(msgspec.Struct, frozen=True, tag="alarm"):
    """Something the link refused or survived: a wrong key, garbage, a bad chunk. ``peer`` may be unknown."""

    peer: str | None
    what: str


LinkEvent = PeerUp | PeerDown | MessageReceived | PublicationReceived | PublicationSent | LinkSample | LinkAlarm
