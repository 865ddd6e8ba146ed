"""What the memory link adds: time, chance and faults that a test can script, the same every time."""

from __future__ import annotations

import msgspec
import pytest

from isthmus.clock import VirtualClock
from isthmus.errors import CheckpointError, IdentityError, LinkError
from isthmus.identity import create_identity
from isthmus.terms import (
    Goodbye,
    Header,
    LinkEvent,
    LinkSample,
    MessageReceived,
    PeerDown,
    PeerUp,
    PublicationReceived,
    PublicationSent,
)
from isthmus.transport import LinkQuality, MemoryLink, MemoryNetwork, MemorySettings
from isthmus.wire import verify_signed

HEADER = Header(
    run="r",
    sender="a",
    receiver="b",
    fragment=0,
    epoch=0,
    version=0,
    sender_incarnation=1,
    receiver_incarnation=1,
    publication=1,
    step=1,
    tokens=1,
    weight_tokens=1,
    run_tokens=1,
    cursor=0,
    reference=b"",
    codec="int4",
    num_bytes=10_000,
)

EVENTS = msgspec.msgpack.Decoder(LinkEvent)


def pair(quality: LinkQuality, seed: int = 0, **more: object) -> tuple[MemoryNetwork, MemoryLink, MemoryLink]:
    settings = MemorySettings(quality=quality, detection_s=2.0)
    network = MemoryNetwork(VirtualClock(), seed, islands=("a", "b"), run="r", settings=settings, **more)
    a, b = network.open("a", 1), network.open("b", 1)
    run_until(network, 1.0)
    assert [type(event) for event in a.poll() + b.poll()] == [PeerUp, PeerUp]
    return network, a, b


def run_until(network: MemoryNetwork, end_s: float) -> None:
    while (moment := network.next_event_s()) is not None and moment <= end_s:
        network.clock.advance_to(moment)
    network.clock.advance_to(end_s)


def of(events: list[LinkEvent], kind: type) -> list:
    return [event for event in events if isinstance(event, kind)]


def test_delay_and_rate_are_what_they_say():
    network, a, b = pair(LinkQuality(delay_s=0.25, rate_bits_per_s=1e6))
    a.publish("b", HEADER, memoryview(bytes(10_000)), spread_s=0.0)
    run_until(network, 1.0 + 0.08)
    assert not of(a.poll(), PublicationSent)
    run_until(network, 1.0 + 0.1)
    (sent,) = of(a.poll(), PublicationSent)
    assert sent.seconds == pytest.approx(sent.wire_bytes * 8 / 1e6)
    run_until(network, 1.0 + 0.1 + 0.2)
    assert not of(b.poll(), PublicationReceived)
    run_until(network, 1.0 + 0.1 + 0.25)
    assert of(b.poll(), PublicationReceived)


def test_a_publication_takes_the_time_it_is_spread_over_and_messages_overtake_it():
    network, a, b = pair(LinkQuality(rate_bits_per_s=1e9))
    a.publish("b", HEADER, memoryview(bytes(10_000)), spread_s=3.0)
    a.send("b", Goodbye("overtakes"))
    run_until(network, 3.9)
    events = b.poll()
    assert of(events, MessageReceived)
    assert not of(events, PublicationReceived)
    run_until(network, 4.0)
    assert of(b.poll(), PublicationReceived)


def test_samples_add_up_to_what_was_sent_and_keep_to_the_rate():
    network, a, b = pair(LinkQuality(delay_s=0.05, rate_bits_per_s=1e6))
    a.publish("b", HEADER, memoryview(bytes(10_000)), spread_s=0.5)
    run_until(network, 5.0)
    sent, received = a.poll(), b.poll()
    wire_bytes = of(sent, PublicationSent)[0].wire_bytes
    assert sum(sample.sent_bytes for sample in of(sent, LinkSample)) == pytest.approx(wire_bytes, abs=5)
    assert sum(sample.received_bytes for sample in of(received, LinkSample)) == wire_bytes
    assert max(sample.sent_bytes for sample in of(sent, LinkSample)) <= 1e6 / 8 * 0.1
    assert [sample.at_s for sample in of(sent, LinkSample)] == pytest.approx([1.0, 1.1, 1.2, 1.3, 1.4])


def trace(seed: int) -> list[bytes]:
    quality = LinkQuality(delay_s=0.01, loss=0.2, duplication=0.2, reordering=0.3, reordering_s=0.5)
    network, a, b = pair(quality, seed)
    events = []
    for index in range(100):
        a.send("b", Goodbye(str(index)))
        a.publish("b", msgspec.structs.replace(HEADER, publication=index), memoryview(bytes(10_000)), spread_s=0.0)
        run_until(network, 1.0 + index * 0.02)
        events += b.poll()
    run_until(network, 10.0)
    return [msgspec.msgpack.encode(event) for event in events + b.poll()]


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others():
    assert trace(7) == trace(7)
    assert trace(7) != trace(8)


def test_loss_repetition_and_disorder_happen_about_as_often_as_asked():
    quality = LinkQuality(loss=0.3, duplication=0.2, reordering=0.5, reordering_s=0.1)
    network, a, b = pair(quality, seed=3)
    for index in range(1000):
        a.send("b", Goodbye(str(index)))
        run_until(network, 1.0 + index * 0.01)
    run_until(network, 20.0)
    numbers = [int(event.message.reason) for event in of(b.poll(), MessageReceived)]
    assert 0.6 < len(set(numbers)) / 1000 < 0.8
    assert 0.15 < (len(numbers) - len(set(numbers))) / len(set(numbers)) < 0.25
    assert numbers != sorted(numbers)


def test_a_short_cut_only_holds_things_up():
    network, a, b = pair(LinkQuality(delay_s=0.01))
    network.partition("a", "b")
    a.send("b", Goodbye("held"))
    run_until(network, 2.5)
    assert not b.poll()
    network.heal("a", "b")
    run_until(network, 10.0)
    assert [type(event) for event in b.poll()] == [MessageReceived, LinkSample]
    assert not of(a.poll(), PeerDown)


def test_every_cut_is_noticed_after_a_detection_delay_of_its_own():
    network, a, _ = pair(LinkQuality(delay_s=0.01))
    network.partition("a", "b")
    run_until(network, 2.0)
    network.heal("a", "b")
    run_until(network, 2.5)
    network.partition("a", "b")
    run_until(network, 3.0)
    network.partition("a", "b")
    run_until(network, 4.4)
    assert not a.poll()
    run_until(network, 4.6)
    assert [type(event) for event in a.poll()] == [PeerDown]


def busy() -> MemoryNetwork:
    """A network with all sorts of things under way, and one link closing."""
    quality = LinkQuality(delay_s=0.3, rate_bits_per_s=1e6, loss=0.1, duplication=0.3, reordering=0.3)
    network, a, b = pair(quality, seed=5)
    for index in range(20):
        a.send("b", Goodbye(str(index)))
        a.publish("b", msgspec.structs.replace(HEADER, publication=index), memoryview(bytes(10_000)), spread_s=0.0)
    network.partition("a", "b")
    run_until(network, 2.0)
    network.heal("a", "b")
    network.partition("a", "b")
    b.send("a", Goodbye("held"))
    run_until(network, 2.4)
    network.heal("a", "b")
    a.close(timeout_s=1.0)
    return network


def heard(network: MemoryNetwork) -> list[bytes]:
    """All that both ends hear from now on."""
    links, events = (network.link("a"), network.link("b")), []
    for tenth in range(25, 80):
        run_until(network, tenth / 10)
        events += [event for link in links for event in link.poll()]
    return [msgspec.msgpack.encode(event) for event in events]


def test_a_frozen_network_goes_on_as_if_it_had_never_stopped():
    network = busy()
    again = MemoryNetwork(VirtualClock(2.4), islands="ab", run="r", settings=MemorySettings(detection_s=2.0))
    again.thaw(network.freeze())
    assert again.freeze() == network.freeze()
    ahead = heard(network)
    assert heard(again) == ahead
    assert {type(event) for event in map(EVENTS.decode, ahead)} >= {PublicationReceived, PublicationSent, PeerDown}


def test_a_network_of_other_islands_is_refused():
    with pytest.raises(CheckpointError, match="other islands"):
        MemoryNetwork(VirtualClock(), islands=("a", "c"), run="r").thaw(busy().freeze())


def test_what_was_in_flight_when_a_session_ended_is_lost():
    network, a, b = pair(LinkQuality(delay_s=0.4))
    a.send("b", Goodbye("held, then lost"))
    a.publish("b", HEADER, memoryview(bytes(10_000)), spread_s=5.0)
    network.partition("a", "b")
    run_until(network, 3.0)
    network.heal("a", "b")
    run_until(network, 20.0)
    assert [type(event) for event in b.poll()] == [PeerDown, PeerUp]
    assert not of(a.poll(), PublicationSent)


def test_a_killed_island_is_missed_after_the_detection_delay():
    network, a, b = pair(LinkQuality(delay_s=0.01))
    network.kill("b")
    b.send("a", Goodbye("from the dead"))
    run_until(network, 2.9)
    assert not a.poll()
    run_until(network, 3.0)
    assert [type(event) for event in a.poll()] == [PeerDown]
    network.open("b", 2)
    run_until(network, 4.0)
    assert of(a.poll(), PeerUp)[0].incarnation == 2


def test_one_direction_can_be_worse_than_the_other():
    network, a, b = pair(LinkQuality(delay_s=0.01))
    network.shape("a", "b", LinkQuality(delay_s=0.01, loss=1.0))
    a.send("b", Goodbye("lost"))
    b.send("a", Goodbye("kept"))
    run_until(network, 5.0)
    assert not of(b.poll(), MessageReceived)
    assert of(a.poll(), MessageReceived)


def test_identities_sign_and_without_them_a_stand_in_does():
    identities = {name: create_identity(name) for name in ("a", "b")}
    for more in ({"identities": identities}, {}):
        network, a, b = pair(LinkQuality(), **more)
        a.publish("b", HEADER, memoryview(bytes(10_000)), spread_s=0.0)
        run_until(network, 2.0)
        signed = of(b.poll(), PublicationReceived)[0].signed
        if more:
            verify_signed(identities["a"].certificate_pem, signed)
        else:
            with pytest.raises(IdentityError):
                verify_signed(identities["a"].certificate_pem, signed)


def test_a_payload_that_is_changed_after_publishing_arrives_as_it_was():
    network, a, b = pair(LinkQuality(delay_s=0.1))
    payload = a.buffer(10_000)
    a.publish("b", HEADER, payload, spread_s=0.0)
    payload[:] = b"x" * 10_000
    run_until(network, 2.0)
    assert of(b.poll(), PublicationReceived)[0].payload == bytes(10_000)


def test_names_outside_the_roster_are_errors():
    network, a, _ = pair(LinkQuality())
    for bad in (lambda: network.open("mars", 1), lambda: network.partition("a", "mars")):
        with pytest.raises(LinkError, match="of that name"):
            bad()
    with pytest.raises(LinkError, match="of that name"):
        a.send("a", Goodbye("to myself"))
