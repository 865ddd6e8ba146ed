"""Ends of a TCP link for live tests: honest ones, and one that says whatever the test wants."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterable
from types import TracebackType

import msgspec

from isthmus.identity import Identity, create_identity
from isthmus.terms import Header, LinkEvent
from isthmus.transport import LinkSettings, PeerAddress, TcpLink
from isthmus.transport.tls import TlsContexts
from isthmus.wire import (
    Frame,
    FrameParser,
    Kind,
    SessionHello,
    SessionKind,
    encode_frame,
    encode_hello,
)
from isthmus.wire.frames import BULK_BOUNDS, CONTROL_BOUNDS, HANDSHAKE_BOUNDS

RUN = "5f" * 32
EAST, ASIA, MARS = (create_identity(name) for name in ("us-east", "asia", "mars"))
DEADLINE_S = 15.0


def settings(me: Identity, *peers: tuple[Identity, str | None], **changes: object) -> LinkSettings:
    made = LinkSettings(
        name=me.name,
        run=RUN,
        incarnation=1,
        key_pem=me.key_pem,
        certificate_pem=me.certificate_pem,
        peers=tuple(PeerAddress(p.name, p.certificate_pem, (where,) if where else ()) for p, where in peers),
        listen="127.0.0.1:0",
        heartbeat_s=0.2,
        timeout_s=2.0,
        handshake_timeout_s=2.0,
    )
    return msgspec.structs.replace(made, **changes)


class Ends:
    """Opens links and closes them all at the end."""

    def __init__(self) -> None:
        self._links: list[TcpLink] = []

    def open(self, made: LinkSettings) -> TcpLink:
        link = TcpLink(made)
        self._links.append(link)
        return link

    def __enter__(self) -> Ends:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for link in self._links:
            link.close(timeout_s=0.0)


def collect(link: TcpLink, *kinds: type[LinkEvent], words: str = "") -> list[LinkEvent]:
    """Events until each kind has come as often as it is named; the last kind's must contain ``words``."""
    deadline_s = time.monotonic() + DEADLINE_S
    events: list[LinkEvent] = []

    def fitting(kind: type[LinkEvent]) -> int:
        return sum(isinstance(event, kind) and (kind is not kinds[-1] or words in str(event)) for event in events)

    while any(fitting(kind) < kinds.count(kind) for kind in kinds):
        assert time.monotonic() < deadline_s, f"no {[k.__name__ for k in kinds]} ({words!r}) among {events}"
        link.wait(deadline_s - time.monotonic())
        events += link.poll()
    return events


def of(events: Iterable[LinkEvent], kind: type) -> list:
    return [event for event in events if isinstance(event, kind)]


def header(publication: int, num_bytes: int, **changes: object) -> Header:
    made = Header(
        run=RUN,
        sender="asia",
        receiver="us-east",
        fragment=0,
        epoch=0,
        version=0,
        sender_incarnation=1,
        receiver_incarnation=1,
        publication=publication,
        step=1,
        tokens=10,
        weight_tokens=10,
        run_tokens=10,
        cursor=0,
        reference=b"",
        codec="int4",
        num_bytes=num_bytes,
    )
    return msgspec.structs.replace(made, **changes)


def plain_socket(address: str) -> socket.socket:
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=DEADLINE_S)


class Rogue:
    """An island with a key of the roster that speaks the protocol by hand."""

    def __init__(self, address: str, identity: Identity = ASIA, victim: Identity = EAST) -> None:
        self.address = address
        self.identity = identity
        self.context = TlsContexts(identity, {victim.name: victim.certificate_pem}).client
        self._sockets: list[ssl.SSLSocket] = []
        self.hello = SessionHello(
            run=RUN,
            sender=identity.name,
            receiver=victim.name,
            incarnation=1,
            kind=SessionKind.CONTROL,
            number=1,
            session=b"rogue session id",
        )

    def dial(self, context: ssl.SSLContext | None = None) -> ssl.SSLSocket:
        sock = (context or self.context).wrap_socket(plain_socket(self.address))
        self._sockets.append(sock)
        return sock

    def greet(self, hello: bytes) -> tuple[ssl.SSLSocket, Frame]:
        """Dial, send a HELLO body, and read the answer."""
        sock = self.dial()
        sock.sendall(encode_frame(Kind.HELLO, hello))
        return sock, read_frame(sock, FrameParser(HANDSHAKE_BOUNDS))

    def connect(self) -> tuple[ssl.SSLSocket, ssl.SSLSocket]:
        """A whole session; its control connection and the bulk connection that this end writes to."""
        control, answer = self.greet(encode_hello(self.hello))
        assert answer.kind == Kind.HELLO
        control.sendall(encode_frame(Kind.READY))
        # the other end settles on READY, so the first control frame says that bulk connections may follow
        read_frame(control, FrameParser(CONTROL_BOUNDS))
        bulk = []
        for kind in (SessionKind.BULK_OUT, SessionKind.BULK_IN):
            sock, answer = self.greet(encode_hello(msgspec.structs.replace(self.hello, kind=kind)))
            assert answer.kind == Kind.HELLO
            bulk.append(sock)
        return control, bulk[0]

    def __enter__(self) -> Rogue:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for sock in self._sockets:
            sock.close()


def read_frame(sock: ssl.SSLSocket, parser: FrameParser) -> Frame:
    while True:
        num_bytes = sock.recv_into(parser.writable())
        assert num_bytes, "the other end hung up"
        if (frame := parser.advance(num_bytes)) is not None:
            return frame


def bulk_frames(stream: bytes) -> list[Frame]:
    return FrameParser(BULK_BOUNDS).feed(stream)
