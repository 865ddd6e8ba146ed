"""The link over TLS 1.3, as the island sees it; sockets, keys and threads live in a process of its own."""

from __future__ import annotations

import selectors
import socket
import subprocess
import sys
import time

import msgspec

from isthmus.errors import LinkError
from isthmus.terms import Header, LinkAlarm, LinkEvent, Message, MessageReceived, PeerDown, PublicationReceived
from isthmus.transport.buffers import SharedBuffer, share
from isthmus.transport.checks import check_peer, check_publication
from isthmus.transport.ipc import (
    Alarmed,
    Arrived,
    Close,
    Command,
    Down,
    Failed,
    Listening,
    Publish,
    Report,
    Said,
    Samples,
    SendMessage,
    Sent,
    Taken,
    Up,
    island_end,
)
from isthmus.transport.settings import LinkSettings
from isthmus.wire import decode_message, encode_message

RESTART_EVERY_S = 60.0
"""A link process that dies is replaced; one that dies again within this time is given up."""

_EXIT_GRACE_S = 2.0


class LinkProcess:
    """One link process and the socket pair to it."""

    def __init__(self, settings: LinkSettings) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "isthmus.transport", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        ours.setblocking(False)
        self.channel = island_end(ours)
        self.channel.push(settings)

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def wait_readable(self, timeout_s: float) -> None:
        """Sleep until a report comes, or room for more commands, or ``timeout_s`` has passed."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self.channel.has_unsent else 0)
        with selectors.DefaultSelector() as selector:
            selector.register(self.channel.socket, events)
            selector.select(timeout_s)

    def end(self, grace_s: float) -> int:
        """Wait for the process to end, kill it if it takes longer than ``grace_s``; its exit code."""
        self.channel.close()
        try:
            return self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


class TcpLink:
    """A ``Link`` over TCP and TLS 1.3; for one thread.

    A link process that dies is replaced once a minute, with an alarm and a ``PeerDown`` for each peer.

    Raises:
        LinkError: the link cannot start: its address is taken, its keys are unusable.
    """

    def __init__(self, settings: LinkSettings) -> None:
        self._settings = settings
        self._peers = frozenset(peer.name for peer in settings.peers)
        self._events: list[LinkEvent] = []
        self._up: set[str] = set()
        self._restarted_s: float | None = None
        self._closed = False
        self._failure: LinkError | None = None
        self.listen_address: str | None = None
        self._started = False
        self._process = LinkProcess(settings)
        self._await_start()

    @property
    def process_id(self) -> int:
        """The id of the link process."""
        return self._process.pid

    def buffer(self, num_bytes: int) -> memoryview:
        """See ``Link.buffer``; shared with the link process."""
        return memoryview(SharedBuffer.create(num_bytes) if num_bytes else bytearray())

    def send(self, peer: str, message: Message) -> None:
        """See ``Link.send``.

        Raises:
            LinkError: ``peer`` is unknown, the message too large, or the link lost for good.
        """
        check_peer(peer, self._peers)
        self._command(SendMessage(peer, encode_message(message)))

    def publish(self, peer: str, header: Header, payload: memoryview, *, spread_s: float) -> None:
        """See ``Link.publish``; a whole ``buffer`` is passed on, anything else is copied.

        Raises:
            LinkError: ``peer`` is unknown, the header does not fit, or the link is lost for good.
        """
        check_peer(peer, self._peers)
        settings = self._settings
        check_publication(
            header,
            payload,
            run=settings.run,
            me=settings.name,
            peer=peer,
            max_bytes=settings.max_publication_bytes,
        )
        buffer = share(payload) if payload.nbytes else None
        self._command(Publish(peer, header, spread_s), buffer)

    def poll(self) -> list[LinkEvent]:
        """See ``Link.poll``.

        Raises:
            LinkError: the link process died again soon after it was replaced.
        """
        self._exchange()
        events, self._events = self._events, []
        if not events and self._failure is not None:
            raise self._failure
        return events

    def wait(self, timeout_s: float) -> None:
        """See ``Link.wait``."""
        deadline_s = time.monotonic() + timeout_s
        self._exchange()
        while not (self._events or self._closed or self._failure):
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return
            self._process.wait_readable(left_s)
            self._exchange()

    def close(self, *, timeout_s: float) -> None:
        """See ``Link.close``; what came until then can still be polled."""
        if self._closed:
            return
        if self._failure is None:
            self._process.channel.push(Close(timeout_s))
            deadline_s = time.monotonic() + timeout_s + _EXIT_GRACE_S
            while (left_s := deadline_s - time.monotonic()) > 0 and self._read():
                self._process.wait_readable(left_s)
        self._closed = True
        self._process.end(_EXIT_GRACE_S)

    def _await_start(self) -> None:
        deadline_s = time.monotonic() + self._settings.start_timeout_s
        while self._read() and not (self._started or self._failure) and time.monotonic() < deadline_s:
            self._process.wait_readable(max(0.0, deadline_s - time.monotonic()))
        if not self._started:
            self._closed = True
            code = self._process.end(0.0)
            raise self._failure or LinkError("the link process did not start", got=f"exit code {code}")

    def _command(self, command: Command, buffer: SharedBuffer | None = None) -> None:
        if self._failure is not None:
            raise self._failure
        if not self._closed:
            self._process.channel.push(command, None if buffer is None else buffer.fd)
            self._exchange()

    def _exchange(self) -> None:
        """Send and read what can be without waiting; replace a dead link process."""
        if self._closed or self._failure or self._read():
            return
        if self._failure is None:
            self._replace()

    def _read(self) -> bool:
        channel = self._process.channel
        try:
            channel.flush()
            while reports := channel.receive():
                for report, fd in reports:
                    self._take(report, fd)
        except (OSError, EOFError):
            return False
        return True

    def _take(self, report: Report, fd: int | None) -> None:
        if isinstance(report, Listening):
            self._started, self.listen_address = True, report.address
        elif isinstance(report, Failed):
            self._failure = LinkError(
                report.what, got=report.got or None, wanted=report.wanted or None, mend=report.mend
            )
        elif isinstance(report, Said):
            self._events.append(MessageReceived(report.peer, decode_message(report.body)))
        elif isinstance(report, Arrived):
            num_bytes = report.signed.header.num_bytes
            payload = memoryview(b"" if fd is None else SharedBuffer.received(fd, num_bytes))
            self._events.append(PublicationReceived(report.peer, report.signed, payload, report.wire_bytes))
            self._process.channel.push(Taken(report.peer))
        elif isinstance(report, Samples):
            self._events.extend(report.samples)
        else:
            self._note(report)

    def _note(self, report: Up | Down | Sent | Alarmed) -> None:
        if isinstance(report, Up):
            self._up.add(report.event.peer)
        elif isinstance(report, Down):
            self._up.discard(report.event.peer)
        self._events.append(report.event)

    def _replace(self) -> None:
        code = self._process.end(0.0)
        now_s = time.monotonic()
        for peer in sorted(self._up):
            self._events.append(PeerDown(peer, "this island's link process died"))
        self._up.clear()
        if self._restarted_s is not None and now_s - self._restarted_s < RESTART_EVERY_S:
            self._failure = LinkError(
                "the link process died again soon after it was replaced",
                got=f"exit code {code}",
                mend="Its last words are on stderr; training resumes from the checkpoint once that is mended.",
            )
            return
        self._events.append(LinkAlarm(None, f"the link process died (exit code {code}) and was started again"))
        self._restarted_s = now_s
        listen = self.listen_address or self._settings.listen
        self._process = LinkProcess(msgspec.structs.replace(self._settings, listen=listen))
