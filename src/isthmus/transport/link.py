"""The one interface through which an island speaks to others; every link passes ``tests/conformance``.

A link may lose, repeat, reorder and delay; it never corrupts, never blocks the caller, and tells the truth about who
sent what. Nobody is told when something is lost: the edge table (``meeting.py``) repairs that after the next HELLO.
"""

from __future__ import annotations

from typing import Protocol

from isthmus.terms import Header, LinkEvent, Message


class Link(Protocol):
    """One island's end of all its edges."""

    def buffer(self, num_bytes: int) -> memoryview:
        """A writable, zeroed buffer that ``publish`` can send without another copy."""
        ...

    def send(self, peer: str, message: Message) -> None:
        """Queue a small message; dropped without a word if the peer cannot be reached."""
        ...

    def publish(self, peer: str, header: Header, payload: memoryview, *, spread_s: float) -> None:
        """Queue a publication; the link signs it and spreads it evenly over about ``spread_s`` seconds.

        The payload must not change afterwards. Publishing an id again after a break sends only what the peer lacks.
        """
        ...

    def poll(self) -> list[LinkEvent]:
        """All events since the last call, oldest first; returns at once."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Sleep until ``poll`` has something, or ``timeout_s`` has passed."""
        ...

    def close(self, *, timeout_s: float) -> None:
        """Flush what is queued for reachable peers for at most ``timeout_s`` seconds, then close; idempotent."""
        ...
