"""One island's end of a memory network."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from typing import TYPE_CHECKING

from isthmus.terms import (
    Header,
    LinkEvent,
    LinkSample,
    Message,
    MessageReceived,
    PublicationReceived,
    PublicationSent,
    SignedHeader,
)
from isthmus.transport._agenda import FinishSending, Leave, LinkState
from isthmus.transport._pair import FRAME_OVERHEAD_BYTES
from isthmus.transport.checks import MAX_PUBLICATION_BYTES, check_publication
from isthmus.wire import (
    decode_message,
    encode_message,
    num_chunks,
    payload_root,
    sign_header,
    signing_bytes,
    verify_signed,
)

if TYPE_CHECKING:
    from isthmus.transport.memory import MemoryNetwork


class MemoryLink:
    """A ``Link`` on a virtual clock; made by ``MemoryNetwork.open``. ``wait`` returns at once."""

    def __init__(self, network: MemoryNetwork, name: str, incarnation: int) -> None:
        self.name = name
        self.incarnation = incarnation
        self._network = network
        self._identity = network.identities.get(name)
        self._events: list[LinkEvent] = []
        self._closed = False
        self._traffic: defaultdict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])

    def buffer(self, num_bytes: int) -> memoryview:
        """See ``Link.buffer``."""
        return memoryview(bytearray(num_bytes))

    def send(self, peer: str, message: Message) -> None:
        """See ``Link.send``.

        Raises:
            LinkError: ``peer`` is unknown or the message too large.
        """
        pair, body = self._network.pair(self.name, peer), encode_message(message)
        self._network.settle()
        if self._closed or not pair.up:
            return
        now_s, num_bytes = self._network.clock.now_s(), len(body) + FRAME_OVERHEAD_BYTES
        sent_s = now_s + pair.quality[self.name].transfer_s(num_bytes)
        self._count(now_s, sent_s, num_bytes, received=False)
        self._network.deliver(pair, self.name, sent_s, MessageReceived(self.name, decode_message(body)))

    def publish(self, peer: str, header: Header, payload: memoryview, *, spread_s: float) -> None:
        """See ``Link.publish``; publications to one peer leave one after the other.

        Raises:
            LinkError: ``peer`` is unknown, or the header does not fit.
        """
        pair = self._network.pair(self.name, peer)
        check_publication(
            header, payload, run=self._network.run, me=self.name, peer=peer, max_bytes=MAX_PUBLICATION_BYTES
        )
        self._network.settle()
        if self._closed or not pair.up:
            return
        data = bytes(payload)
        signed = self._sign(header, payload_root(data))
        num_bytes = len(data) + (num_chunks(len(data)) + 2) * FRAME_OVERHEAD_BYTES + 2 * len(signing_bytes(header, b""))
        start_s, end_s = pair.bulk_slot_s(self.name, self._network.clock.now_s(), num_bytes, spread_s)
        received = PublicationReceived(self.name, signed, memoryview(data), num_bytes)
        sent = PublicationSent(peer, signed, num_bytes, end_s - start_s)
        self._network.plan(end_s, FinishSending(self.name, pair.session, sent))
        self._count(start_s, end_s, num_bytes, received=False)
        self._network.deliver(pair, self.name, end_s, received)

    def poll(self) -> list[LinkEvent]:
        """See ``Link.poll``."""
        self._network.settle()
        events, self._events = self._events, []
        return events + list(self._samples())

    def wait(self, timeout_s: float) -> None:
        """Return at once: the time of this link is moved by whoever owns the clock."""

    def close(self, *, timeout_s: float) -> None:
        """See ``Link.close``; what is queued goes on to leave for ``timeout_s`` virtual seconds."""
        if self._closed:
            return
        self._network.settle()
        self._closed = True
        now_s = self._network.clock.now_s()
        flushed_s = max(now_s, self._network.flushed_s(self.name))
        leave = Leave(self.name, self.incarnation, "closed its link")
        self._network.plan(min(flushed_s, now_s + timeout_s), leave)

    def tell(self, event: LinkEvent) -> None:
        """Queue an event for ``poll``."""
        self._events.append(event)

    def receive(self, event: LinkEvent) -> None:
        """Take what arrives from the network; signatures are checked here."""
        now_s = self._network.clock.now_s()
        if isinstance(event, PublicationReceived):
            self._verify(event.signed)
            self._count(now_s, now_s, event.wire_bytes, received=True)
        elif isinstance(event, MessageReceived):
            num_bytes = len(encode_message(event.message)) + FRAME_OVERHEAD_BYTES
            self._count(now_s, now_s, num_bytes, received=True)
        self._events.append(event)

    def die(self) -> None:
        """End without a word."""
        self._closed = True
        self._events.clear()

    def freeze(self) -> LinkState:
        """All that it holds."""
        traffic = [(window, sent, received) for window, (sent, received) in self._traffic.items()]
        return LinkState(incarnation=self.incarnation, closed=self._closed, events=list(self._events), traffic=traffic)

    def thaw(self, state: LinkState) -> None:
        """Hold what ``freeze`` gave."""
        self._closed, self._events = state.closed, list(state.events)
        self._traffic.update({window: [sent, received] for window, sent, received in state.traffic})

    def _sign(self, header: Header, root: bytes) -> SignedHeader:
        if self._identity is not None:
            return sign_header(self._identity, header, root)
        return SignedHeader(header, root, _stand_in(header, root))

    def _verify(self, signed: SignedHeader) -> None:
        sender = self._network.identities.get(signed.header.sender)
        if sender is not None:
            verify_signed(sender.certificate_pem, signed)

    def _count(self, start_s: float, end_s: float, num_bytes: int, *, received: bool) -> None:
        window_s = self._network.sample_window_s
        if window_s is None:
            return
        first, last = int(start_s / window_s), int(end_s / window_s)
        for window in range(first, last + 1):
            inside_s = min(end_s, (window + 1) * window_s) - max(start_s, window * window_s)
            share = inside_s / (end_s - start_s) if end_s > start_s else 1.0
            if share > 0:
                self._traffic[window][received] += num_bytes * share

    def _samples(self) -> list[LinkSample]:
        window_s = self._network.sample_window_s
        if window_s is None or not self._traffic:
            return []
        over = int(self._network.clock.now_s() / window_s)
        done = sorted(window for window in self._traffic if window < over)
        counts = [(window, self._traffic.pop(window)) for window in done]
        return [
            LinkSample(window * window_s, window_s, round(sent), round(received)) for window, (sent, received) in counts
        ]


def _stand_in(header: Header, root: bytes) -> bytes:
    """64 bytes that take a signature's place where islands have no keys; the same for the same header and root."""
    return hashlib.sha512(signing_bytes(header, root)).digest()
