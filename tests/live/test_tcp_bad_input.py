"""Strangers, liars and accidents: each costs an alarm, and everything else goes on."""

from __future__ import annotations

import datetime
import socket
import ssl
import tempfile

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID

from isthmus.errors import LinkError
from isthmus.identity import create_identity
from isthmus.terms import Goodbye, LinkAlarm, MessageReceived, PeerDown, PeerUp, PublicationReceived
from isthmus.transport.doorman import MAX_STRANGERS
from isthmus.wire import Dispatch, Kind, Refusal, decode_body, encode_frame, encode_hello, sign_header
from isthmus.wire.frames import CHUNK_HEAD_BYTES, frame_header
from link_ends import (
    ASIA,
    EAST,
    MARS,
    Ends,
    Rogue,
    bulk_frames,
    collect,
    header,
    of,
    plain_socket,
    settings,
)

pytestmark = pytest.mark.slow


def publication(number: int, payload: bytes, *, signer=ASIA, **changes: object) -> bytes:
    """A whole publication as frames."""
    dispatch = Dispatch(header(number, len(payload), **changes), memoryview(payload))
    stream = dispatch.begin()
    for _, head, data in dispatch.chunks():
        stream += head + bytes(data)
    return stream + dispatch.end(sign_header(signer, dispatch.header, dispatch.root()))


def test_noise_on_the_port_and_silence_on_it_keep_nobody_out():
    with Ends() as ends:
        east = ends.open(settings(EAST, (ASIA, None)))
        strangers = [plain_socket(east.listen_address) for _ in range(MAX_STRANGERS + 5)]
        for stranger in strangers[:3]:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(2000))
        bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        bare.check_hostname, bare.verify_mode = False, ssl.CERT_NONE
        with Rogue(east.listen_address) as rogue, pytest.raises((ssl.SSLError, ConnectionError)):
            rogue.dial(bare).recv(1)
        asia = ends.open(settings(ASIA, (EAST, east.listen_address)))
        collect(asia, PeerUp)
        asia.send("us-east", Goodbye("through the noise"))
        events = collect(east, LinkAlarm, MessageReceived)
        assert any("turned away" in alarm.what for alarm in of(events, LinkAlarm))
        assert len(of(events, LinkAlarm)) <= 2
        for stranger in strangers:
            stranger.close()


def test_a_key_that_is_not_in_the_roster_is_refused_on_both_sides():
    with Ends() as ends:
        east = ends.open(settings(EAST, (ASIA, None)))
        impostor = create_identity("asia")
        asia = ends.open(settings(impostor, (EAST, east.listen_address)))
        collect(east, LinkAlarm, words="certificate was issued by no island of the roster")
        collect(asia, LinkAlarm, words="refuses this island's certificate")


def test_an_island_that_answers_with_an_unknown_key_is_not_trusted():
    with Ends() as ends:
        east = ends.open(settings(create_identity("us-east"), (ASIA, None)))
        asia = ends.open(settings(ASIA, (EAST, east.listen_address)))
        collect(asia, LinkAlarm, words="no island of the roster")
        assert not of(asia.poll(), PeerUp)


def test_another_island_of_the_roster_at_the_address_is_noticed():
    with Ends() as ends:
        mars = ends.open(settings(MARS, (ASIA, None)))
        asia = ends.open(settings(ASIA, (EAST, mars.listen_address), (MARS, None)))
        collect(asia, LinkAlarm, words="another island answers")


def test_another_runs_hash_is_refused_on_both_sides_with_the_mend():
    with Ends() as ends:
        east = ends.open(settings(EAST, (ASIA, None)))
        asia = ends.open(settings(ASIA, (EAST, east.listen_address), run="e0" * 32))
        for link in (east, asia):
            collect(link, LinkAlarm, words="run.toml")


def test_another_protocol_version_is_refused_with_the_reason():
    with Ends() as ends, Rogue((east := ends.open(settings(EAST, (ASIA, None)))).listen_address) as rogue:
        _, answer = rogue.greet(encode_hello(rogue.hello, version=2))
        assert answer.kind == Kind.REFUSAL
        assert "protocol version 2" in decode_body(answer.body, Refusal).reason
        collect(east, LinkAlarm, words="protocol version 2")


def test_a_name_that_the_key_does_not_have_is_refused():
    with Ends() as ends:
        east = ends.open(settings(EAST, (ASIA, None), (MARS, None)))
        with Rogue(east.listen_address) as rogue:
            hello = msgspec.structs.replace(rogue.hello, sender="mars")
            assert rogue.greet(encode_hello(hello))[1].kind == Kind.REFUSAL
            collect(east, LinkAlarm, words="calls itself 'mars'")


def test_a_broken_frame_ends_the_session_and_nothing_else():
    cases = {
        encode_frame(Kind.MESSAGE, b"four")[:-1]: None,
        frame_header(Kind.MESSAGE, 2**32 - 1): "too long",
        b"\x00" * 64: "no frame",
        encode_frame(Kind.MESSAGE, b"no message"): "does not decode",
    }
    with Ends() as ends:
        east = ends.open(settings(EAST, (ASIA, None)))
        for stream, words in cases.items():
            with Rogue(east.listen_address) as rogue:
                control, _ = rogue.connect()
                collect(east, PeerUp)
                control.sendall(stream)
                control.close()
                events = collect(east, PeerDown)
                assert [words in alarm.what for alarm in of(events, LinkAlarm)] == [True] * (words is not None)
        asia = ends.open(settings(ASIA, (EAST, east.listen_address)))
        collect(asia, PeerUp)


def test_a_wrong_publication_is_dropped_with_an_alarm_and_the_next_one_arrives():
    good = publication(50, b"good" * 100)
    flipped = bytearray(publication(1, bytes(range(256))))
    flipped[len(bulk_frames(flipped)[0].body) + 8 + 8 + CHUNK_HEAD_BYTES + 9] ^= 1
    short = bulk_frames(publication(6, bytes(range(200))))
    cut_chunk = encode_frame(Kind.CHUNK, bytes(short[1].body[:-1]))
    cases = {
        bytes(flipped): "do not hash to its root",
        encode_frame(Kind.BEGIN, bytes(short[0].body)) + cut_chunk: "wrong length",
        publication(2, b"x", receiver="mars"): "another receiver",
        publication(3, b"x", sender="us-east"): "another sender",
        publication(4, b"x", run="e0" * 32): "another run",
        publication(5, b"x", signer=MARS): "signature is wrong",
        encode_frame(Kind.CHUNK, bytes(40)): "before any BEGIN",
        encode_frame(Kind.BEGIN, b"\xc1"): "does not decode",
    }
    huge = Dispatch(header(7, 2**40), memoryview(b"")).begin()
    with Ends() as ends:
        east = ends.open(settings(EAST, (ASIA, None)))
        with Rogue(east.listen_address) as rogue:
            _, bulk = rogue.connect()
            for stream, words in {**cases, huge: "too large"}.items():
                bulk.sendall(stream)
                collect(east, LinkAlarm, words=words)
                bulk.sendall(good)
                events = collect(east, PublicationReceived)
                assert bytes(of(events, PublicationReceived)[0].payload) == b"good" * 100
                assert not of(events, PeerDown)


def test_a_session_certificate_that_expired_long_ago_is_accepted():
    key = Ed25519PrivateKey.generate()
    issuer = x509.load_pem_x509_certificate(ASIA.certificate_pem)
    identity_key = serialization.load_pem_private_key(ASIA.key_pem, None)
    assert isinstance(identity_key, Ed25519PrivateKey)
    expired = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "asia session")]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(datetime.datetime(1999, 1, 1, tzinfo=datetime.UTC))
        .not_valid_after(datetime.datetime(1999, 1, 2, tzinfo=datetime.UTC))
        .sign(identity_key, None)
    )
    key_pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with Ends() as ends, tempfile.NamedTemporaryFile() as file:
        east = ends.open(settings(EAST, (ASIA, None)))
        file.write(expired.public_bytes(serialization.Encoding.PEM) + key_pem)
        file.flush()
        with Rogue(east.listen_address) as rogue:
            rogue.context.load_cert_chain(file.name)
            rogue.connect()
            collect(east, PeerUp)


def test_a_taken_port_is_an_error_that_names_the_address_and_the_mend():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(LinkError, match=r"cannot listen on 127\.0\.0\.1:.*in use.*island\.toml"):
            Ends().open(settings(EAST, (ASIA, None), listen=address))


def test_a_key_that_does_not_fit_its_certificate_is_an_error():
    with pytest.raises(LinkError, match="does not belong"):
        Ends().open(settings(EAST, (ASIA, None), key_pem=ASIA.key_pem))


def test_an_address_that_cannot_be_reached_is_reported_once():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nowhere = f"127.0.0.1:{closed.getsockname()[1]}"
    with Ends() as ends:
        asia = ends.open(settings(ASIA, (EAST, nowhere), (MARS, "not..a..host:9")))
        alarms = of(collect(asia, LinkAlarm, LinkAlarm), LinkAlarm)
        first, second = sorted(alarm.what for alarm in alarms)
        assert first.startswith("mars cannot be reached at not..a..host:9")
        assert second.startswith(f"us-east cannot be reached at {nowhere}: connection refused")
        asia.wait(0.5)
        assert asia.poll() == []
