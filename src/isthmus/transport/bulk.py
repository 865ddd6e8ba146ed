"""Publications over a bulk connection, one way: the loop that sends and the loop that receives."""

from __future__ import annotations

import math
import time

from isthmus.errors import IdentityError, ProtocolError
from isthmus.terms import PublicationSent
from isthmus.transport.buffers import SharedBuffer
from isthmus.transport.connection import Connection, describe
from isthmus.transport.ipc import Arrived, Sent
from isthmus.transport.pacing import Spread, slice_bytes
from isthmus.transport.peer import Job, Partial, Peer, Session
from isthmus.transport.tls import encrypted_bytes
from isthmus.wire import (
    Assembly,
    Begin,
    Dispatch,
    End,
    Frame,
    Holding,
    Kind,
    Received,
    check_header,
    decode_body,
    encode_body,
    encode_frame,
    sign_header,
)
from isthmus.wire.frames import BULK_BOUNDS, HEADER_BYTES

_NOTHING_HELD = Holding(0, 0, 0)
_LOOK_UP_S = 0.2


class BulkSender:
    """Sends a peer's publications in the order they were queued, each spread over its time."""

    def __init__(self, peer: Peer, session: Session, connection: Connection) -> None:
        self._peer, self._session, self._connection = peer, session, connection
        self._hub = peer.hub

    def run(self) -> None:
        """Serve until the session ends."""
        self._connection.block()
        self._connection.pace(self._hub.limiter.bytes_per_s)
        self._session.holding_known.wait()
        try:
            while (job := self._peer.next_job(self._session)) is not None:
                self._send(job)
        except OSError as error:
            self._peer.end(self._session, f"its connection broke: {describe(error)}")
        finally:
            self._connection.close()

    def _send(self, job: Job) -> None:
        start_s = time.monotonic()
        dispatch = Dispatch(job.header, job.payload, first_chunk=self._session.chunks_held(job.header))
        wire_bytes = self._write(dispatch.begin())
        spread = Spread(dispatch.remaining_bytes, job.end_s)
        for packed_bytes, head, data in dispatch.chunks():
            wire_bytes += self._write_chunk(head, memoryview(data), packed_bytes, spread)
        signed = sign_header(self._hub.identity, job.header, dispatch.root())
        wire_bytes += self._write(dispatch.end(signed))
        seconds = time.monotonic() - start_s
        self._hub.outbox.put(Sent(PublicationSent(self._peer.name, signed, wire_bytes, seconds)))

    def _write_chunk(self, head: bytes, data: memoryview, packed_bytes: int, spread: Spread) -> int:
        total, wire_bytes, position = len(data), 0, 0
        cap = self._hub.limiter.bytes_per_s or math.inf
        while position < total:
            now_s = time.monotonic()
            step = slice_bytes(min(cap, spread.bytes_per_s(now_s) * total / packed_bytes))
            part = data[position : position + step]
            pause_s = spread.take_s(packed_bytes * len(part) / total, now_s)
            wire_bytes += self._write(head + part if position == 0 else part)
            position += len(part)
            self._wait_until(now_s + pause_s)
        return wire_bytes

    def _write(self, data: bytes | memoryview) -> int:
        delay_s = self._hub.limiter.reserve(encrypted_bytes(len(data)), time.monotonic())
        if delay_s:
            self._session.ended.wait(delay_s)
        return self._connection.send(data)

    def _wait_until(self, time_s: float) -> None:
        while not (self._session.ended.is_set() or self._hub.closing.is_set()):
            left_s = time_s - time.monotonic()
            if left_s <= 0:
                return
            self._session.ended.wait(min(left_s, 0.1))


class BulkReceiver:
    """Collects a peer's publications and hands over those that are right in every respect.

    What is wrong inside intact frames costs the publication and an alarm; broken frames cost the session. A
    publication cut short by the end of a session is kept for the next one.
    """

    def __init__(self, peer: Peer, session: Session, connection: Connection) -> None:
        self._peer, self._session, self._connection = peer, session, connection
        self._hub = peer.hub
        self._skipping = False

    def run(self) -> None:
        """Serve until the session ends."""
        self._connection.block()
        self._connection.parser.bounds = BULK_BOUNDS
        try:
            with self._peer.receiving:
                self._say_what_is_held()
                while not self._session.ended.is_set():
                    self._take(self._connection.receive())
        except ProtocolError as error:
            self._hub.alarm(self._peer.name, f"{self._peer.name} broke the protocol: {error}")
            self._peer.end(self._session, "broke the protocol")
        except EOFError:
            self._peer.end(self._session, "its connection was closed")
        except OSError as error:
            self._peer.end(self._session, f"its connection broke: {describe(error)}")
        finally:
            self._connection.close()

    def _say_what_is_held(self) -> None:
        partial = self._peer.partial
        holding = _NOTHING_HELD if partial is None else partial.assembly.holding()
        self._session.queue.put(encode_frame(Kind.HOLDING, encode_body(holding)))

    def _take(self, frame: Frame) -> None:
        try:
            if frame.kind == Kind.BEGIN:
                self._begin(decode_body(frame.body, Begin))
            elif not self._skipping:
                self._go_on(frame)
            if frame.kind == Kind.END:
                self._acknowledge(decode_body(frame.body, End).signed.header.publication)
        except (ProtocolError, IdentityError) as error:
            self._peer.partial, self._skipping = None, True
            self._hub.alarm(self._peer.name, f"a publication of {self._peer.name} was dropped: {error}")

    def _begin(self, begin: Begin) -> None:
        self._skipping = False
        settings = self._hub.settings
        check_header(
            begin.header,
            run=settings.run,
            sender=self._peer.name,
            receiver=settings.name,
            max_bytes=settings.max_publication_bytes,
        )
        partial = self._peer.partial
        if partial is not None and partial.assembly.resume(begin):
            return
        if begin.first_chunk:
            raise ProtocolError("a publication goes on where none is held", got=f"chunk {begin.first_chunk}")
        self._peer.partial = None
        buffer = SharedBuffer.create(begin.header.num_bytes) if begin.header.num_bytes else None
        sink = memoryview(b"" if buffer is None else buffer)
        self._peer.partial = Partial(Assembly(begin.header, sink), buffer)

    def _go_on(self, frame: Frame) -> None:
        partial = self._peer.partial
        if partial is None:
            raise ProtocolError(f"a {frame.kind.name} frame came before any BEGIN")
        partial.assembly.wire_bytes += encrypted_bytes(HEADER_BYTES + len(frame.body))
        if frame.kind == Kind.CHUNK:
            partial.assembly.add(frame.body, frame.flags)
            return
        signed = decode_body(frame.body, End).signed
        partial.assembly.finish(signed, self._peer.certificate_pem)
        self._peer.partial = None
        while not self._peer.room.acquire(timeout=_LOOK_UP_S):
            if self._session.ended.is_set():
                return
        self._hub.outbox.put(Arrived(self._peer.name, signed, partial.assembly.wire_bytes), partial.buffer)

    def _acknowledge(self, publication: int) -> None:
        self._session.queue.put(encode_frame(Kind.RECEIVED, encode_body(Received(publication))))
