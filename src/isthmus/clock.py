"""Time, handed in and never reached for, so that tests can script it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What the effects ask for time."""

    def now_s(self) -> float:
        """Seconds on a clock that never goes back; its zero means nothing."""
        ...

    def wall_s(self) -> float:
        """Seconds since the Unix epoch, for people to read; never trusted for a decision."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now_s(self) -> float:
        """Seconds on the monotonic clock."""
        return time.monotonic()

    def wall_s(self) -> float:
        """Seconds since the Unix epoch."""
        return time.time()


class VirtualClock:
    """A clock that moves only when told to."""

    def __init__(self, now_s: float = 0.0) -> None:
        self._now_s = now_s

    def now_s(self) -> float:
        """Virtual seconds since the start."""
        return self._now_s

    def wall_s(self) -> float:
        """The same virtual seconds: a virtual world has one clock."""
        return self._now_s

    def advance_to(self, now_s: float) -> None:
        """Move to ``now_s``; a time in the past is a bug of the caller."""
        assert now_s >= self._now_s, (now_s, self._now_s)
        self._now_s = now_s
