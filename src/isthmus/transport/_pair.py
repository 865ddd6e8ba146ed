"""How two islands of a memory network see each other: quality, cuts, and what each end believes."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from isthmus.terms import MessageReceived, PublicationReceived

FRAME_OVERHEAD_BYTES = 30
"""Modelled framing and encryption of one frame: 8 bytes of header and 22 of a TLS record."""


@dataclass(frozen=True)
class LinkQuality:
    """One direction of a memory link.

    ``rate_bits_per_s`` None means unlimited; ``loss``, ``duplication`` and ``reordering`` are probabilities per
    message or publication; what is reordered or repeated comes up to ``reordering_s`` later than it would.
    """

    delay_s: float = 0.0
    rate_bits_per_s: float | None = None
    loss: float = 0.0
    duplication: float = 0.0
    reordering: float = 0.0
    reordering_s: float = 1.0

    def transfer_s(self, num_bytes: int) -> float:
        """Seconds that ``num_bytes`` keep this direction busy."""
        return 0.0 if self.rate_bits_per_s is None else num_bytes * 8 / self.rate_bits_per_s


@dataclass(eq=False)
class Pair:
    """Two islands, lower name first.

    ``session`` counts connections: what was sent in an earlier one is lost. ``cuts`` counts cuts. ``believers`` are
    the ends that were told of a connection and not yet of its end. ``held`` is what a cut holds up. ``bulk_free_s``
    says from when on a sender's next publication can leave, ``flushed_s`` when all it has sent will have arrived.
    """

    lower: str
    higher: str
    rng: random.Random
    quality: dict[str, LinkQuality]
    up: bool = False
    cut: bool = False
    session: int = 0
    cuts: int = 0
    believers: set[str] = field(default_factory=set)
    held: list[tuple[str, MessageReceived | PublicationReceived]] = field(default_factory=list)
    bulk_free_s: dict[str, float] = field(default_factory=dict)
    flushed_s: dict[str, float] = field(default_factory=dict)

    @property
    def ends(self) -> tuple[str, str]:
        """Both names."""
        return self.lower, self.higher

    def end_session(self) -> None:
        """Forget all that is under way."""
        self.up = False
        self.session += 1
        self.held.clear()
        self.bulk_free_s.clear()
        self.flushed_s.clear()

    def other(self, name: str) -> str:
        """The other island of the pair."""
        return self.higher if name == self.lower else self.lower

    def round_trip_s(self) -> float:
        """The delay there and back."""
        return self.quality[self.lower].delay_s + self.quality[self.higher].delay_s

    def bulk_slot_s(self, sender: str, now_s: float, num_bytes: int, spread_s: float) -> tuple[float, float]:
        """When a publication of ``num_bytes``, queued now, starts and ends to leave; later ones come after it."""
        start_s = max(now_s, self.bulk_free_s.get(sender, 0.0))
        end_s = max(start_s + self.quality[sender].transfer_s(num_bytes), now_s + spread_s)
        self.bulk_free_s[sender] = end_s
        return start_s, end_s

    def arrivals_s(self, sender: str, sent_s: float) -> list[float]:
        """When something sent completely at ``sent_s`` arrives: never, once, or twice."""
        quality = self.quality[sender]
        if quality.loss and self.rng.random() < quality.loss:
            return []
        arrivals = [sent_s + quality.delay_s]
        if quality.reordering and self.rng.random() < quality.reordering:
            arrivals[0] += self.rng.random() * quality.reordering_s
        if quality.duplication and self.rng.random() < quality.duplication:
            arrivals.append(arrivals[0] + self.rng.random() * quality.reordering_s)
        self.flushed_s[sender] = max(self.flushed_s.get(sender, 0.0), *arrivals)
        return arrivals
