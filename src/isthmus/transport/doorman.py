"""Answers whoever dials this island; strangers cost a bounded time, a bounded number of threads and one alarm."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Mapping

import msgspec

from isthmus.addresses import join_address, split_address
from isthmus.errors import IdentityError, LinkError, ProtocolError
from isthmus.transport.bulk import BulkReceiver, BulkSender
from isthmus.transport.connection import Connection, describe, shut_socket, wrap
from isthmus.transport.control import ControlLoop
from isthmus.transport.dialler import BULK_CONNECTIONS
from isthmus.transport.hub import Hub
from isthmus.transport.peer import Peer, Session
from isthmus.wire import (
    Kind,
    Refusal,
    RefusalCode,
    SessionHello,
    SessionKey,
    SessionKind,
    decode_body,
    decode_hello,
    encode_frame,
    encode_hello,
    judge_hello,
)

MAX_STRANGERS = 32
"""Connections that have not shown a certificate yet; one more, and the oldest is hung up."""


def listen(address: str) -> socket.socket:
    """A socket that listens on ``host:port``.

    Raises:
        LinkError: the port is taken, or the address is not this machine's.
    """
    try:
        host, port = split_address(address)
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, where = found[0]
        return socket.create_server(where[:2], family=family, backlog=MAX_STRANGERS)
    except (OSError, ValueError) as error:
        raise LinkError(
            f"this island cannot listen on {address}",
            got=getattr(error, "strerror", None) or str(error),
            mend="Stop what holds the port, or set another `listen` address in island.toml.",
        ) from error


def address_of(listener: socket.socket) -> str:
    """Where a socket listens, as ``host:port``."""
    host, port = listener.getsockname()[:2]
    return join_address(host, port)


class Doorman:
    """Accepts connections; each is served by a thread of its own until it ends."""

    def __init__(self, hub: Hub, peers: Mapping[str, Peer], listener: socket.socket) -> None:
        self._hub = hub
        self._peers = peers
        self._listener = listener
        self._strangers: dict[Connection, None] = {}
        self._lock = threading.Lock()

    def run(self) -> None:
        """Serve until the listener is closed."""
        while True:
            try:
                raw, where = self._listener.accept()
            except OSError as error:
                if self._hub.closing.is_set():
                    return
                self._hub.alarm(None, f"a connection could not be accepted: {describe(error)}", kind="accept")
                self._hub.closing.wait(0.1)
                continue
            name = f"{where[0]}:{where[1]}"
            threading.Thread(target=self._serve, args=(raw, name), name=f"door {name}", daemon=True).start()

    def close(self) -> None:
        """Accept nobody any more."""
        shut_socket(self._listener)
        self._listener.close()

    def _serve(self, raw: socket.socket, where: str) -> None:
        deadline_s = self._hub.handshake_deadline_s()
        try:
            connection = Connection(wrap(raw, self._hub.tls.server), where, self._hub.meter)
            name = self._identify(connection, deadline_s)
        except (OSError, IdentityError) as error:
            what = f"{where} was turned away: {describe(error)}"
            self._hub.alarm(None, what, kind="stranger")
            return
        try:
            self._greet(connection, self._peers[name], deadline_s)
        except ProtocolError as error:
            self._hub.alarm(name, f"{name} at {where} broke the protocol: {error}", kind=f"greeting {name}")
            connection.close()
        except (OSError, EOFError):
            connection.close()  # it gave up or took too long; if it still wants to, it dials again

    def _identify(self, connection: Connection, deadline_s: float) -> str:
        with self._lock:
            if len(self._strangers) >= MAX_STRANGERS:
                next(iter(self._strangers)).shut()
            self._strangers[connection] = None
        try:
            return connection.secure(self._hub.tls, deadline_s)
        finally:
            with self._lock:
                del self._strangers[connection]

    def _greet(self, connection: Connection, peer: Peer, deadline_s: float) -> None:
        frame = connection.receive(deadline_s)
        if frame.kind != Kind.HELLO:
            raise ProtocolError("a connection does not start with HELLO", got=frame.kind.name)
        hello = decode_hello(frame.body)
        settings = self._hub.settings
        if isinstance(hello, SessionHello):
            judgement = judge_hello(hello, run=settings.run, me=settings.name, peer=peer.name)
            if judgement is not None:
                self._refuse(connection, peer, judgement)
            elif hello.kind == SessionKind.CONTROL:
                self._serve_control(connection, peer, hello, deadline_s)
            else:
                self._serve_bulk(connection, peer, hello)
        else:
            self._refuse(connection, peer, hello)

    def _serve_control(self, connection: Connection, peer: Peer, hello: SessionHello, deadline_s: float) -> None:
        key = peer.offer(hello)
        if isinstance(key, Refusal):
            self._refuse(connection, peer, key)
            return
        try:
            session = self._agree(connection, peer, hello, key, deadline_s)
        except (OSError, EOFError, ProtocolError):
            peer.release(key, hello.incarnation)
            raise
        if (refusal := peer.settle(session)) is not None:
            peer.release(key, hello.incarnation)
            self._refuse(connection, peer, refusal)
            return
        ControlLoop(peer, session).run()

    def _agree(
        self, connection: Connection, peer: Peer, hello: SessionHello, key: SessionKey, deadline_s: float
    ) -> Session:
        start_s = time.monotonic()
        self._answer(connection, hello)
        frame = connection.receive(deadline_s)
        if frame.kind == Kind.REFUSAL:
            refusal = decode_body(frame.body, Refusal)
            if refusal.code != RefusalCode.SUPERSEDED:
                self._hub.alarm(
                    peer.name, f"{peer.name} refuses this island: {refusal.reason}", kind=f"{peer.name} {refusal.code}"
                )
            raise EOFError("refused")
        if frame.kind != Kind.READY:
            raise ProtocolError("no READY followed a HELLO", got=frame.kind.name)
        return Session(key, hello, connection, time.monotonic() - start_s)

    def _serve_bulk(self, connection: Connection, peer: Peer, hello: SessionHello) -> None:
        session = peer.attach(hello.session, connection, needed=BULK_CONNECTIONS)
        if session is None:
            self._refuse(connection, peer, Refusal(RefusalCode.SUPERSEDED, "its session is over"))
            return
        try:
            self._answer(connection, hello)
        except OSError:
            peer.end(session, "its bulk connections could not be opened")
            raise
        serve = BulkReceiver if hello.kind == SessionKind.BULK_OUT else BulkSender
        serve(peer, session, connection).run()

    def _answer(self, connection: Connection, hello: SessionHello) -> None:
        settings = self._hub.settings
        answer = msgspec.structs.replace(
            hello, sender=settings.name, receiver=hello.sender, incarnation=settings.incarnation
        )
        connection.send(encode_frame(Kind.HELLO, encode_hello(answer)))

    def _refuse(self, connection: Connection, peer: Peer, refusal: Refusal) -> None:
        if refusal.code != RefusalCode.SUPERSEDED:
            what = f"{peer.name} at {connection.where} was refused: {refusal.reason}"
            self._hub.alarm(peer.name, what, kind=f"{peer.name} {refusal.code}")
        connection.send(encode_frame(Kind.REFUSAL, msgspec.msgpack.encode(refusal)))
        connection.close()
