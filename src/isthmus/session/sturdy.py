"""A link whose loss does not end the training."""

from __future__ import annotations

import time
from contextlib import suppress

from isthmus.errors import LinkError
from isthmus.terms import Header, LinkAlarm, LinkEvent, Message, PeerDown, PeerUp
from isthmus.transport import Link


class SturdyLink:
    """Passes everything to a link until that is lost for good; then all peers are down, and the island trains alone.

    Args:
        link: The link.
    """

    def __init__(self, link: Link) -> None:
        self._link: Link | None = link
        self._up: set[str] = set()
        self._events: list[LinkEvent] = []

    def buffer(self, num_bytes: int) -> memoryview:
        """See ``Link.buffer``."""
        if self._link is not None:
            with suppress(OSError):  # no descriptor or shared memory left: the link copies what is not shared
                return self._link.buffer(num_bytes)
        return memoryview(bytearray(num_bytes))

    def send(self, peer: str, message: Message) -> None:
        """See ``Link.send``."""
        if self._link is not None:
            try:
                self._link.send(peer, message)
            except LinkError as error:
                self._lose(error)

    def publish(self, peer: str, header: Header, payload: memoryview, *, spread_s: float) -> None:
        """See ``Link.publish``."""
        if self._link is not None:
            try:
                self._link.publish(peer, header, payload, spread_s=spread_s)
            except LinkError as error:
                self._lose(error)

    def poll(self) -> list[LinkEvent]:
        """See ``Link.poll``."""
        if self._link is not None:
            try:
                self._events += self._link.poll()
            except LinkError as error:
                self._lose(error)
        events, self._events = self._events, []
        for event in events:
            if isinstance(event, PeerUp):
                self._up.add(event.peer)
            elif isinstance(event, PeerDown):
                self._up.discard(event.peer)
        return events

    def wait(self, timeout_s: float) -> None:
        """See ``Link.wait``; without a link nothing can come before the time is over."""
        if self._link is None:
            time.sleep(timeout_s)
            return
        try:
            self._link.wait(timeout_s)
        except LinkError as error:
            self._lose(error)

    def close(self, *, timeout_s: float) -> None:
        """See ``Link.close``."""
        if self._link is not None:
            self._link.close(timeout_s=timeout_s)

    def _lose(self, error: LinkError) -> None:
        """Say it once, and say of every peer that it cannot be reached."""
        if self._link is not None:
            self._link.close(timeout_s=0.0)
        self._link = None
        what = f"the link is lost for good: {error}. This island trains alone until it is started again"
        self._events.append(LinkAlarm(None, what))
        self._events += [PeerDown(peer, "the link is lost") for peer in sorted(self._up)]
