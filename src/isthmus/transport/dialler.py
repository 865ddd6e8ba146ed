"""Keeps one peer connected by dialling its addresses; one thread for each peer that has any."""

from __future__ import annotations

import os
import random
import ssl
import threading
import time
from collections.abc import Callable

import msgspec

from isthmus.errors import IdentityError, ProtocolError
from isthmus.transport.bulk import BulkReceiver, BulkSender
from isthmus.transport.connection import Connection, describe, dial
from isthmus.transport.control import ControlLoop
from isthmus.transport.pacing import Backoff
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

BULK_CONNECTIONS = 2
"""Of a session: one for each direction."""

_PATIENCE_ATTEMPTS = 4
_LASTING_S = 5.0
_MAX_REPORTED = 32
_SESSION_ID_BYTES = 16


class RefusedError(ProtocolError):
    """One end refused the other's HELLO."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.reason)
        self.refusal = refusal


class Dialler:
    """Dials whenever no session is there or under way, with growing pauses; says once what is in the way."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._hub = peer.hub
        self._backoff = Backoff(random.Random())
        self._reported: set[str] = set()

    def run(self) -> None:
        """Serve until the link closes."""
        while not self._hub.closing.is_set():
            key = self._peer.reserve_dial(timeout_s=1.0)
            if key is None:
                continue
            session = self._attempt(key)
            if session is not None:
                start_s = time.monotonic()
                ControlLoop(self._peer, session).run()
                if time.monotonic() - start_s > _LASTING_S:
                    self._backoff.reset()
            self._hub.closing.wait(self._backoff.next_s())

    def _attempt(self, key: SessionKey) -> Session | None:
        for address in self._peer.addresses:
            try:
                session = self._connect(address, key)
            except (OSError, EOFError, ProtocolError, IdentityError) as error:
                self._report(address, error)
            else:
                self._reported.clear()
                return session
        self._peer.release(key, None)
        return None

    def _connect(self, address: str, key: SessionKey) -> Session:
        hello = SessionHello(
            run=self._hub.settings.run,
            sender=self._hub.settings.name,
            receiver=self._peer.name,
            incarnation=self._hub.settings.incarnation,
            kind=SessionKind.CONTROL,
            number=key.number,
            session=os.urandom(_SESSION_ID_BYTES),
        )
        control, answer, rtt_s = self._open(address, hello)
        session = Session(key, answer, control, rtt_s)
        if (refusal := self._peer.settle(session)) is not None:
            control.send(encode_frame(Kind.REFUSAL, msgspec.msgpack.encode(refusal)))
            control.close()
            raise RefusedError(refusal)
        try:
            control.send(encode_frame(Kind.READY))
            self._add_bulk(address, session, hello, SessionKind.BULK_OUT, BulkSender)
            self._add_bulk(address, session, hello, SessionKind.BULK_IN, BulkReceiver)
        except (OSError, EOFError, ProtocolError, IdentityError):
            self._peer.end(session, "its bulk connections could not be opened")
            control.close()
            raise
        return session

    def _add_bulk(
        self,
        address: str,
        session: Session,
        hello: SessionHello,
        kind: SessionKind,
        serve: Callable[[Peer, Session, Connection], BulkSender | BulkReceiver],
    ) -> None:
        connection, _, _ = self._open(address, msgspec.structs.replace(hello, kind=kind))
        if self._peer.attach(session.id, connection, needed=BULK_CONNECTIONS) is None:
            connection.close()
            raise EOFError("the session ended")
        threading.Thread(target=serve(self._peer, session, connection).run, name=kind, daemon=True).start()

    def _open(self, address: str, hello: SessionHello) -> tuple[Connection, SessionHello, float]:
        deadline_s = self._hub.handshake_deadline_s()
        connection, name = dial(address, self._hub.tls, self._hub.meter, deadline_s)
        try:
            if name != self._peer.name:
                raise IdentityError("another island answers", got=name, wanted=self._peer.name)
            start_s = time.monotonic()
            connection.send(encode_frame(Kind.HELLO, encode_hello(hello)))
            answer = self._answer(connection, deadline_s)
            return connection, answer, time.monotonic() - start_s
        except (OSError, EOFError, ProtocolError, IdentityError):
            connection.close()
            raise

    def _answer(self, connection: Connection, deadline_s: float) -> SessionHello:
        frame = connection.receive(deadline_s)
        if frame.kind == Kind.REFUSAL:
            refusal = decode_body(frame.body, Refusal)
            self._peer.refused(refusal)
            raise RefusedError(refusal)
        if frame.kind != Kind.HELLO:
            raise ProtocolError("no HELLO came back", got=frame.kind.name)
        answer = decode_hello(frame.body)
        if isinstance(answer, SessionHello):
            settings = self._hub.settings
            refusal_or_none = judge_hello(answer, run=settings.run, me=settings.name, peer=self._peer.name)
            if refusal_or_none is None:
                return answer
            answer = refusal_or_none
        raise RefusedError(answer)

    def _report(self, address: str, error: Exception) -> None:
        if isinstance(error, RefusedError):
            if error.refusal.code == RefusalCode.SUPERSEDED:
                return
            what = f"{self._peer.name} at {address} and this island refuse each other: {error.refusal.reason}"
        else:
            lasting = isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError)
            passing = isinstance(error, OSError | EOFError) and not lasting
            if passing and self._backoff.attempts < _PATIENCE_ATTEMPTS:
                return
            what = f"{self._peer.name} cannot be reached at {address}: {describe(error)}; this island keeps trying"
        if what not in self._reported and len(self._reported) < _MAX_REPORTED:
            self._reported.add(what)
            self._hub.alarm(self._peer.name, what)
