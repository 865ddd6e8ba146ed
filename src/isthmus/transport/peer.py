"""One peer: its sessions one after the other, what is queued for it, and what it has sent half."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass

from isthmus.terms import Header, PeerDown, PeerUp
from isthmus.transport.buffers import SharedBuffer
from isthmus.transport.connection import Connection
from isthmus.transport.control import ControlQueue
from isthmus.transport.hub import Hub
from isthmus.transport.ipc import Down, Up
from isthmus.transport.settings import PeerAddress
from isthmus.wire import Assembly, Holding, Kind, PeerSessions, Refusal, SessionHello, SessionKey, encode_frame

MAX_QUEUED_PUBLICATIONS = 256
MAX_UNREAD_PUBLICATIONS = 8

_OVERTAKE_S = 1.0


@dataclass(frozen=True)
class Job:
    """A publication to send by ``end_s`` on the monotonic clock, or at once when the link closes."""

    header: Header
    payload: memoryview
    end_s: float


@dataclass(frozen=True)
class Partial:
    """A publication that has begun to arrive, and the buffer it is written to (None if it is empty)."""

    assembly: Assembly
    buffer: SharedBuffer | None


class Session:
    """One agreed connection of two islands: a control connection and the bulk connections that belong to it.

    ``key`` and ``incarnation`` are the peer's place in ``PeerSessions``; ``id`` ties bulk connections to it.
    """

    def __init__(self, key: SessionKey, hello: SessionHello, control: Connection, rtt_s: float) -> None:
        self.key = key
        self.incarnation = hello.incarnation
        self.id = hello.session
        self.rtt_s = rtt_s
        self.control = control
        self.queue = ControlQueue()
        self.bulk: list[Connection] = []
        self.ended = threading.Event()
        self.announced = False
        self.unsettled: set[int] = set()
        self.holding: Holding | None = None
        self.holding_known = threading.Event()

    def chunks_held(self, header: Header) -> int:
        """How many chunks of this publication the peer holds from an earlier session; known only once."""
        holding, self.holding = self.holding, None
        if holding is None or (holding.publication, holding.num_bytes) != (header.publication, header.num_bytes):
            return 0
        return holding.chunks


class Peer:
    """Everything about one peer that outlives its sessions; all threads that serve it share this."""

    def __init__(self, hub: Hub, address: PeerAddress) -> None:
        self.hub = hub
        self.name = address.name
        self.certificate_pem = address.certificate_pem
        self.addresses = address.addresses
        self.partial: Partial | None = None
        self.receiving = threading.Lock()
        self.room = threading.Semaphore(MAX_UNREAD_PUBLICATIONS)
        self._changed = threading.Condition(threading.RLock())
        self._sessions = PeerSessions(lower=hub.settings.name < address.name)
        self._session: Session | None = None
        self._jobs: deque[Job] = deque()

    def reserve_dial(self, timeout_s: float) -> SessionKey | None:
        """The right to dial; waits for it for ``timeout_s`` while another session is there or under way."""
        with self._changed:
            key = self._sessions.dial()
            if key is None:
                self._changed.wait(timeout_s)
            return key

    def offer(self, hello: SessionHello) -> SessionKey | Refusal:
        """Judge the peer's own attempt."""
        with self._changed:
            return self._sessions.offer(hello)

    def release(self, key: SessionKey, incarnation: int | None) -> None:
        """An attempt came to nothing."""
        with self._changed:
            self._sessions.release(key, incarnation)
            self._changed.notify_all()

    def refused(self, refusal: Refusal) -> None:
        """The peer refused an attempt."""
        with self._changed:
            self._sessions.learn(refusal.number)

    def settle(self, session: Session) -> Refusal | None:
        """Make ``session`` the peer's session in place of any other; why not, if it comes too late."""
        with self._changed:
            if (refusal := self._sessions.settle(session.key, session.incarnation)) is not None:
                return refusal
            if self._session is not None:
                self.end(self._session, "another connection took its place")
            self._session = session
            self._changed.notify_all()
            return None

    def attach(self, session_id: bytes, connection: Connection, *, needed: int) -> Session | None:
        """Add a bulk connection; the session it belongs to, which is up once it has ``needed`` of them.

        Waits a moment for the session: its READY may still be under way on the control connection.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._session and self._session.id == session_id, _OVERTAKE_S)
            session = self._session
            if session is None or session.id != session_id or session.announced:
                return None
            session.bulk.append(connection)
            if len(session.bulk) == needed:
                session.announced = True
                self.hub.outbox.put(Up(PeerUp(self.name, session.incarnation, session.rtt_s)))
            return session

    def end(self, session: Session, reason: str) -> None:
        """End a session, from any thread; what was queued for it is forgotten."""
        with self._changed:
            if session.ended.is_set():
                return
            session.ended.set()
            self._sessions.release(session.key, session.incarnation)
            if self._session is session:
                self._session = None
                self._jobs.clear()
            if session.announced and not self.hub.closing.is_set():
                self.hub.outbox.put(Down(PeerDown(self.name, reason)))
            for connection in (session.control, *session.bulk):
                connection.shut()
            session.holding_known.set()
            session.queue.wake()
            self._changed.notify_all()

    def send(self, kind: Kind, body: bytes = b"") -> None:
        """Queue a control frame; dropped if the peer is not there."""
        with self._changed:
            if self._session is not None and not self._session.queue.put(encode_frame(kind, body)):
                self.hub.alarm(self.name, f"{self.name} takes no messages; one was dropped", kind="messages")

    def publish(self, header: Header, payload: memoryview, spread_s: float) -> None:
        """Queue a publication; dropped if the peer is not there."""
        with self._changed:
            if self._session is None or not self._session.announced:
                return
            if len(self._jobs) >= MAX_QUEUED_PUBLICATIONS:
                what = f"{len(self._jobs)} publications wait for {self.name}; one more was dropped"
                self.hub.alarm(self.name, what, kind="publications")
                return
            self._session.unsettled.add(header.publication)
            self._jobs.append(Job(header, payload, time.monotonic() + spread_s))
            self._changed.notify_all()

    def next_job(self, session: Session) -> Job | None:
        """The next publication to send in this session; waits for it; None when the session has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or session.ended.is_set())
            return None if session.ended.is_set() else self._jobs.popleft()

    def settled(self, session: Session, publication: int) -> None:
        """The peer is through with a publication."""
        with self._changed:
            session.unsettled.discard(publication)
            self._changed.notify_all()

    def close(self, deadline_s: float) -> None:
        """Flush what is queued, say goodbye, and wait for the peer to hang up; not beyond ``deadline_s``."""
        with self._changed:
            session = self._session
            if session is None:
                return
            self._changed.wait_for(
                lambda: not session.unsettled or session.ended.is_set(), deadline_s - time.monotonic()
            )
        self.send(Kind.GOODBYE)
        session.ended.wait(max(0.0, deadline_s - time.monotonic()))
