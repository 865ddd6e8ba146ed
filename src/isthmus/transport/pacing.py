"""When the next slice may leave, and which alarms are worth repeating. Time is handed in."""

from __future__ import annotations

import math
import random
import threading
from dataclasses import dataclass

from isthmus.units import KIB

SLICE_S = 0.01
MIN_SLICE_BYTES = 4 * KIB
"""Every slice pays for a TLS record of its own."""

MAX_SLICE_BYTES = 64 * KIB


def slice_bytes(bytes_per_s: float) -> int:
    """How many bytes to write at once so that 100 ms windows are smooth at ``bytes_per_s``: about 10 ms worth."""
    return int(min(max(bytes_per_s * SLICE_S, MIN_SLICE_BYTES), MAX_SLICE_BYTES))


class RateLimiter:
    """An island's cap on what it sends to all peers together; threads share it.

    What must not wait is charged too (``reserve`` and ignore the answer), and delays what can.
    """

    def __init__(self, rate_bits_per_s: float | None) -> None:
        self.bytes_per_s = None if rate_bits_per_s is None else rate_bits_per_s / 8
        self._free_s = 0.0
        self._lock = threading.Lock()

    def reserve(self, num_bytes: int, now_s: float) -> float:
        """Take the right to send ``num_bytes``; how many seconds to wait before sending them."""
        if self.bytes_per_s is None:
            return 0.0
        with self._lock:
            start_s = max(self._free_s, now_s - SLICE_S)
            self._free_s = start_s + num_bytes / self.bytes_per_s
            return max(0.0, start_s - now_s)


@dataclass
class Spread:
    """Spreads a publication's bytes evenly over the time until ``end_s``; after a stall the rest goes evenly too.

    ``remaining_bytes`` counts packed bytes, whose number is known before they are compressed.
    """

    remaining_bytes: float
    end_s: float

    def bytes_per_s(self, now_s: float) -> float:
        """The rate that ends on time; infinite if that has passed."""
        left_s = self.end_s - now_s
        return self.remaining_bytes / left_s if left_s > 0 else math.inf

    def take_s(self, num_bytes: float, now_s: float) -> float:
        """Send the next ``num_bytes`` now; how long to wait after that before sending more."""
        share = num_bytes / max(self.remaining_bytes, num_bytes, 1e-9)
        self.remaining_bytes -= num_bytes
        return share * max(0.0, self.end_s - now_s)


class Backoff:
    """How long to wait before the next attempt: doubling from ``first_s`` to ``cap_s``, half of it by chance."""

    def __init__(self, rng: random.Random, *, first_s: float = 0.1, cap_s: float = 10.0) -> None:
        self._rng, self._first_s, self._cap_s = rng, first_s, cap_s
        self.attempts = 0

    def reset(self) -> None:
        """An attempt succeeded."""
        self.attempts = 0

    def next_s(self) -> float:
        """Seconds until the next attempt, after one more failure."""
        whole_s = min(self._cap_s, self._first_s * 2.0 ** min(self.attempts, 30))
        self.attempts += 1
        return whole_s * (0.5 + 0.5 * self._rng.random())


class AlarmLimiter:
    """Lets each kind of alarm through once per ``quiet_s``, with the number of those it held back."""

    def __init__(self, quiet_s: float = 10.0) -> None:
        self._quiet_s = quiet_s
        self._last_s: dict[str, float] = {}
        self._held_back: dict[str, int] = {}
        self._lock = threading.Lock()

    def admit(self, kind: str, now_s: float) -> int | None:
        """How many of this kind were held back since the last admitted one; None to hold this one back."""
        with self._lock:
            last_s = self._last_s.get(kind)
            if last_s is not None and now_s - last_s < self._quiet_s:
                self._held_back[kind] = self._held_back.get(kind, 0) + 1
                return None
            self._last_s[kind] = now_s
            return self._held_back.pop(kind, 0)
