"""The control connection of a session: messages, heartbeats, acknowledgements; one thread reads and writes it."""

from __future__ import annotations

import selectors
import socket
import ssl
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from isthmus.errors import ProtocolError
from isthmus.transport.connection import describe
from isthmus.transport.ipc import Said
from isthmus.transport.tls import encrypted_bytes
from isthmus.units import KIB, MIB
from isthmus.wire import Frame, Holding, Kind, Received, decode_body, decode_message, encode_frame
from isthmus.wire.frames import CONTROL_BOUNDS

if TYPE_CHECKING:
    from isthmus.transport.peer import Peer, Session

MAX_QUEUED_BYTES = 64 * MIB

_WRITE_BYTES = 16 * KIB
_READS_PER_TURN = 64


class ControlQueue:
    """Control frames that wait to be written; any thread may put one in and wakes the thread that writes."""

    def __init__(self) -> None:
        self._frames: deque[memoryview] = deque()
        self._num_bytes = 0
        self._lock = threading.Lock()
        self.wake_end, self._other_end = socket.socketpair()
        self.wake_end.setblocking(False)
        self._other_end.setblocking(False)

    def put(self, frame: bytes) -> bool:
        """Queue a frame; False, and dropped, if too much waits already."""
        with self._lock:
            if self._num_bytes + len(frame) > MAX_QUEUED_BYTES:
                return False
            self._frames.append(memoryview(frame))
            self._num_bytes += len(frame)
        self.wake()
        return True

    def wake(self) -> None:
        """Have the writing thread look again."""
        try:
            self._other_end.send(b"\0")
        except OSError:
            return  # it is awake already, or gone

    def rest(self) -> None:
        """Take note of all wakes so far."""
        try:
            self.wake_end.recv(4 * KIB)
        except BlockingIOError:
            return

    def head(self) -> memoryview | None:
        """What to write next, at most a TLS record of it; the same until ``written`` says otherwise."""
        with self._lock:
            return self._frames[0][:_WRITE_BYTES] if self._frames else None

    def written(self, num_bytes: int) -> None:
        """``num_bytes`` of the head were written."""
        with self._lock:
            self._num_bytes -= num_bytes
            self._frames[0] = self._frames[0][num_bytes:]
            if not self._frames[0]:
                self._frames.popleft()

    def close(self) -> None:
        """Release the wake sockets; by the thread that writes, at the end."""
        self.wake_end.close()
        self._other_end.close()


class ControlLoop:
    """Serves a session's control connection until the session ends, and ends it if the peer falls silent."""

    def __init__(self, peer: Peer, session: Session) -> None:
        self._peer = peer
        self._session = session
        self._connection = session.control
        self._heard_s = time.monotonic()
        self._next_ping_s = self._heard_s

    def run(self) -> None:
        """Serve; returns when the session has ended, and has closed the connection then."""
        self._connection.parser.bounds = CONTROL_BOUNDS
        self._connection.sock.setblocking(False)
        try:
            self._serve()
        except ProtocolError as error:
            self._peer.hub.alarm(self._peer.name, f"{self._peer.name} broke the protocol: {error}")
            self._peer.end(self._session, "broke the protocol")
        except EOFError:
            self._peer.end(self._session, "its connection was closed")
        except OSError as error:
            self._peer.end(self._session, f"its connection broke: {describe(error)}")
        finally:
            self._connection.close()
            self._session.queue.close()

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._session.queue.wake_end, selectors.EVENT_READ)
            selector.register(self._connection.sock, selectors.EVENT_READ)
            while not self._session.ended.is_set():
                more = self._read()
                now_s = time.monotonic()
                self._beat(now_s)
                blocked = self._write()
                events = selectors.EVENT_READ | (selectors.EVENT_WRITE if blocked else 0)
                selector.modify(self._connection.sock, events)
                selector.select(0 if more else max(0.0, self._next_ping_s - now_s))
                self._session.queue.rest()

    def _read(self) -> bool:
        for _ in range(_READS_PER_TURN):
            try:
                frame = self._connection.receive_some()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return False
            self._heard_s = time.monotonic()
            if frame is not None:
                self._handle(frame)
        return True

    def _write(self) -> bool:
        while (head := self._session.queue.head()) is not None:
            num_bytes = self._connection.send_some(head)
            if not num_bytes:
                return True
            self._session.queue.written(num_bytes)
            self._peer.hub.limiter.reserve(encrypted_bytes(num_bytes), time.monotonic())
        return False

    def _beat(self, now_s: float) -> None:
        settings = self._peer.hub.settings
        if now_s - self._heard_s > settings.timeout_s:
            self._peer.end(self._session, f"silent for {settings.timeout_s:g} s")
        elif now_s >= self._next_ping_s:
            self._session.queue.put(encode_frame(Kind.PING))
            self._next_ping_s = now_s + settings.heartbeat_s

    def _handle(self, frame: Frame) -> None:
        if frame.kind == Kind.MESSAGE:
            decode_message(frame.body)
            if not self._peer.hub.outbox.put_message(Said(self._peer.name, bytes(frame.body))):
                self._peer.hub.alarm(self._peer.name, "too many unread messages; one was dropped", kind="unread")
        elif frame.kind == Kind.HOLDING:
            self._session.holding = decode_body(frame.body, Holding)
            self._session.holding_known.set()
        elif frame.kind == Kind.RECEIVED:
            self._peer.settled(self._session, decode_body(frame.body, Received).publication)
        elif frame.kind == Kind.GOODBYE:
            self._peer.end(self._session, "closed its link")
