"""What every link does; the same suite for the memory link and for TLS between real processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from isthmus.clock import VirtualClock
from isthmus.errors import LinkError
from isthmus.identity import create_identity, verify
from isthmus.terms import (
    Goodbye,
    Header,
    LinkAlarm,
    LinkEvent,
    MessageReceived,
    PeerDown,
    PeerUp,
    PublicationReceived,
    PublicationSent,
)
from isthmus.transport import (
    Link,
    LinkQuality,
    LinkSettings,
    MemoryNetwork,
    MemorySettings,
    PeerAddress,
    TcpLink,
)
from isthmus.transport.relay import ShaperOptions
from isthmus.transport.shaper_process import ShaperProcess
from isthmus.wire import CHUNK_BYTES, payload_root, signing_bytes

RUN = "5f" * 32
IDENTITIES = {name: create_identity(name) for name in ("asia", "us-east")}


class MemoryWorld:
    """Two islands on a virtual clock."""

    def __init__(self) -> None:
        self._clock = VirtualClock()
        self._network = MemoryNetwork(
            self._clock,
            islands=tuple(IDENTITIES),
            run=RUN,
            identities=IDENTITIES,
            settings=MemorySettings(LinkQuality(delay_s=0.09, rate_bits_per_s=1e9), detection_s=1.0),
        )

    def expect_cuts(self) -> None:
        pass

    def open(self, name: str, incarnation: int = 1) -> Link:
        return self._network.open(name, incarnation)

    def collect(self, link: Link, enough: Callable[[list[LinkEvent]], bool]) -> list[LinkEvent]:
        events = link.poll()
        while not enough(events):
            moment = self._network.next_event_s()
            assert moment is not None, f"nothing is under way any more; got {events}"
            self._clock.advance_to(moment)
            events += link.poll()
        return events

    def cut(self) -> None:
        self._network.partition("asia", "us-east")

    def heal(self) -> None:
        self._network.heal("asia", "us-east")

    def end(self) -> None:
        pass


class TcpWorld:
    """Two islands with a link process each; only us-east can be dialled, through a relay if there will be cuts."""

    def __init__(self) -> None:
        self._relayed = False
        self._links: list[TcpLink] = []
        self._shaper: ShaperProcess | None = None
        self._address: str | None = None

    def expect_cuts(self) -> None:
        self._relayed = True

    def open(self, name: str, incarnation: int = 1) -> Link:
        if name == "asia" and self._address is None:
            self.open("us-east")
        peer = "us-east" if name == "asia" else "asia"
        addresses = (self._address,) if name == "asia" and self._address else ()
        settings = LinkSettings(
            name=name,
            run=RUN,
            incarnation=incarnation,
            key_pem=IDENTITIES[name].key_pem,
            certificate_pem=IDENTITIES[name].certificate_pem,
            peers=(PeerAddress(peer, IDENTITIES[peer].certificate_pem, addresses),),
            listen="127.0.0.1:0" if name == "us-east" else None,
            heartbeat_s=0.2,
            timeout_s=1.0,
            handshake_timeout_s=2.0,
        )
        link = TcpLink(settings)
        self._links.append(link)
        if name == "us-east":
            assert link.listen_address is not None
            self._address = link.listen_address
            if self._relayed:
                self._shaper = ShaperProcess(ShaperOptions("127.0.0.1:0", link.listen_address))
                self._address = self._shaper.address
        return link

    def collect(self, link: Link, enough: Callable[[list[LinkEvent]], bool]) -> list[LinkEvent]:
        deadline_s = time.monotonic() + 15.0
        events = link.poll()
        while not enough(events):
            assert time.monotonic() < deadline_s, f"it did not happen; got {events}"
            link.wait(deadline_s - time.monotonic())
            events += link.poll()
        return events

    def cut(self) -> None:
        assert self._shaper is not None
        self._shaper.cut()

    def heal(self) -> None:
        assert self._shaper is not None
        self._shaper.heal()

    def end(self) -> None:
        for link in self._links:
            link.close(timeout_s=0.0)
        if self._shaper is not None:
            self._shaper.close()


World = MemoryWorld | TcpWorld


@pytest.fixture(params=[MemoryWorld, TcpWorld], ids=["memory", "tcp"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    made: World = request.param()
    yield made
    made.end()


def one(kind: type) -> Callable[[list[LinkEvent]], bool]:
    return lambda events: any(isinstance(event, kind) for event in events)


def only(events: list[LinkEvent], kind: type) -> list:
    return [event for event in events if isinstance(event, kind)]


def connected(world: World) -> tuple[Link, Link]:
    east, asia = world.open("us-east"), world.open("asia")
    for link, peer in ((east, "asia"), (asia, "us-east")):
        (up,) = only(world.collect(link, one(PeerUp)), PeerUp)
        assert (up.peer, up.incarnation) == (peer, 1)
        assert up.rtt_s >= 0
    return east, asia


def header(publication: int, num_bytes: int, *, sender: str = "asia", receiver: str = "us-east") -> Header:
    return Header(
        run=RUN,
        sender=sender,
        receiver=receiver,
        fragment=3,
        epoch=0,
        version=7,
        sender_incarnation=1,
        receiver_incarnation=1,
        publication=publication,
        step=50,
        tokens=1000,
        weight_tokens=100,
        run_tokens=2000,
        cursor=12,
        reference=b"\x01" * 32,
        codec="int4",
        num_bytes=num_bytes,
    )


def pattern(num_bytes: int) -> bytes:
    return bytes(range(251)) * (num_bytes // 251) + bytes(range(num_bytes % 251))


def test_messages_arrive_intact_and_in_order(world: World) -> None:
    east, asia = connected(world)
    sent = [Goodbye("é" * index) for index in range(40)]
    for message in sent:
        asia.send("us-east", message)
    events = world.collect(east, lambda events: len(only(events, MessageReceived)) == len(sent))
    assert [event.message for event in only(events, MessageReceived)] == sent
    assert {event.peer for event in only(events, MessageReceived)} == {"asia"}


@pytest.mark.parametrize("sender", ["asia", "us-east"])
def test_a_publication_arrives_intact_under_its_senders_signature(world: World, sender: str) -> None:
    links = dict(zip(("us-east", "asia"), connected(world), strict=True))
    receiver = "asia" if sender == "us-east" else "us-east"
    payload = links[sender].buffer(5000)
    assert bytes(payload) == bytes(5000)
    payload[:] = pattern(5000)
    links[sender].publish(receiver, header(9, 5000, sender=sender, receiver=receiver), payload, spread_s=0.0)
    (sent,) = only(world.collect(links[sender], one(PublicationSent)), PublicationSent)
    (received,) = only(world.collect(links[receiver], one(PublicationReceived)), PublicationReceived)
    assert received.peer == sender
    assert received.signed == sent.signed
    assert received.signed.header == header(9, 5000, sender=sender, receiver=receiver)
    assert received.signed.root == payload_root(pattern(5000))
    data = signing_bytes(received.signed.header, received.signed.root)
    verify(IDENTITIES[sender].certificate_pem, data, received.signed.signature)
    assert bytes(received.payload) == pattern(5000)
    assert received.payload.readonly
    assert received.wire_bytes > 0
    assert sent.wire_bytes > 0


def test_payloads_of_every_size_arrive_in_the_order_they_were_published(world: World) -> None:
    east, asia = connected(world)
    sizes = [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, 2 * CHUNK_BYTES + 5]
    for publication, num_bytes in enumerate(sizes, start=1):
        asia.publish("us-east", header(publication, num_bytes), memoryview(pattern(num_bytes)), spread_s=0.01)
    events = world.collect(east, lambda events: len(only(events, PublicationReceived)) == len(sizes))
    received = only(events, PublicationReceived)
    assert [event.signed.header.publication for event in received] == [1, 2, 3, 4, 5]
    assert [event.payload == pattern(size) for event, size in zip(received, sizes, strict=True)] == [True] * 5


def test_a_newer_incarnation_takes_the_place_of_the_old(world: World) -> None:
    east, old = connected(world)
    new = world.open("asia", incarnation=2)
    events = world.collect(east, one(PeerUp))
    assert [type(event) for event in events if isinstance(event, PeerUp | PeerDown)] == [PeerDown, PeerUp]
    assert only(events, PeerUp)[0].incarnation == 2
    new.send("us-east", Goodbye("new"))
    old.send("us-east", Goodbye("old"))
    received = only(world.collect(east, one(MessageReceived)), MessageReceived)
    assert [event.message for event in received] == [Goodbye("new")]


def test_an_older_incarnation_is_refused_on_both_sides(world: World) -> None:
    east = world.open("us-east")
    world.open("asia", incarnation=5)
    world.collect(east, one(PeerUp))
    old = world.open("asia", incarnation=4)
    for link in (east, old):
        events = world.collect(link, one(LinkAlarm))
        assert "incarnation 4" in only(events, LinkAlarm)[0].what
        assert not only(events, PeerUp)


def test_after_a_cut_both_ends_say_so_and_after_it_heals_they_go_on(world: World) -> None:
    world.expect_cuts()
    east, asia = connected(world)
    world.cut()
    for link, peer in ((east, "asia"), (asia, "us-east")):
        (down,) = only(world.collect(link, one(PeerDown)), PeerDown)
        assert down.peer == peer
        assert down.reason
    asia.send("us-east", Goodbye("lost"))
    world.heal()
    for link in (east, asia):
        world.collect(link, one(PeerUp))
    asia.send("us-east", Goodbye("later"))
    asia.publish("us-east", header(2, 10), memoryview(pattern(10)), spread_s=0.0)
    events = world.collect(east, lambda events: one(MessageReceived)(events) and one(PublicationReceived)(events))
    assert [event.message for event in only(events, MessageReceived)] == [Goodbye("later")]


def test_close_flushes_what_is_queued(world: World) -> None:
    east, asia = connected(world)
    for publication in (1, 2):
        asia.publish("us-east", header(publication, 300_000), memoryview(pattern(300_000)), spread_s=0.5)
    asia.send("us-east", Goodbye("done"))
    asia.close(timeout_s=5.0)
    asia.close(timeout_s=5.0)
    events = world.collect(east, one(PeerDown))
    assert [event.message for event in only(events, MessageReceived)] == [Goodbye("done")]
    assert [event.signed.header.publication for event in only(events, PublicationReceived)] == [1, 2]


def test_what_an_island_may_not_ask_for_is_an_error(world: World) -> None:
    east = world.open("us-east")
    with pytest.raises(LinkError, match="no peer of that name"):
        east.send("mars", Goodbye("x"))
    own = header(1, 4, sender="us-east", receiver="asia")
    with pytest.raises(LinkError, match="no peer of that name"):
        east.publish("mars", own, memoryview(b"four"), spread_s=0.0)
    with pytest.raises(LinkError, match="size"):
        east.publish("asia", own, memoryview(b"three"), spread_s=0.0)
    with pytest.raises(LinkError, match="sender"):
        east.publish("asia", header(1, 4, receiver="asia"), memoryview(b"four"), spread_s=0.0)
    with pytest.raises(LinkError, match="too large"):
        east.send("asia", Goodbye("x" * (9 << 20)))


def test_without_a_peer_nothing_blocks_and_nothing_is_kept(world: World) -> None:
    east = world.open("us-east")
    start_s = time.monotonic()
    east.send("asia", Goodbye("to nobody"))
    east.publish("asia", header(1, 4, sender="us-east", receiver="asia"), memoryview(b"four"), spread_s=60.0)
    assert east.poll() == []
    east.wait(0.05)
    assert time.monotonic() - start_s < 1.0
    asia = world.open("asia")
    world.collect(asia, one(PeerUp))
    world.collect(east, one(PeerUp))
    east.send("asia", Goodbye("first"))
    received = only(world.collect(asia, one(MessageReceived)), MessageReceived)
    assert [event.message for event in received] == [Goodbye("first")]
