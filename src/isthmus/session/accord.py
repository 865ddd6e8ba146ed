"""What all ranks of an island know alike at a step boundary: the time, whether to stop, and the news from the link."""

from __future__ import annotations

import zlib

from isthmus.clock import Clock
from isthmus.errors import IsthmusError
from isthmus.island import Ranks


class Accord:
    """Agreed on in ``exchange``, which all ranks call; between two of them nothing changes.

    All ranks decide by the same rules, and so alike, from the same memory, events and time. That they did is checked
    with every exchange: one number tells what each has counted and decided so far.

    Args:
        ranks: The island's.
        clock: Only the gateway's counts.
    """

    def __init__(self, ranks: Ranks, clock: Clock) -> None:
        self._ranks, self._clock = ranks, clock
        self._decided = 0
        (self._now_s,) = ranks.largest(self._own_s())
        self._wants_to_stop = self._stops = False

    def now_s(self) -> float:
        """The gateway's time at the last exchange."""
        return self._clock.now_s() if self._ranks.size == 1 else self._now_s

    @property
    def stops(self) -> bool:
        """Whether a rank had been asked to stop by the last exchange."""
        return self._wants_to_stop if self._ranks.size == 1 else self._stops

    def request_stop(self) -> None:
        """Let all ranks stop from the next exchange on."""
        self._wants_to_stop = True

    def decided(self, what: bytes) -> None:
        """Note what was decided here."""
        self._decided = zlib.crc32(what, self._decided)

    def exchange(self, message: bytes) -> bytes:
        """Agree, and hear the gateway's message.

        Raises:
            IsthmusError: The ranks have not decided alike.
        """
        num_bytes = len(message) if self._ranks.rank == 0 else 0
        stop, decided = float(self._wants_to_stop), float(self._decided)
        size, self._now_s, stops, most, least = self._ranks.largest(num_bytes, self._own_s(), stop, decided, -decided)
        if most != -least:
            raise IsthmusError(
                "the ranks of this island have not decided alike",
                mend="Every rank must give step() the tokens of the whole island, and data whose cursor counts for all "
                "ranks alike; otherwise this is a fault of isthmus.",
            )
        self._stops = bool(stops)
        return self._ranks.share(message, int(size)) if size else b""

    def _own_s(self) -> float:
        return self._clock.now_s() if self._ranks.rank == 0 else 0.0
