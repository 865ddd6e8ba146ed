"""Between an island and its link process: MessagePack and file descriptors over a Unix socket pair."""

from __future__ import annotations

import array
import os
import socket
import struct
from collections import deque
from typing import Generic, TypeVar

import msgspec

from isthmus.terms import Header, LinkAlarm, LinkSample, PeerDown, PeerUp, PublicationSent, SignedHeader
from isthmus.transport.settings import LinkSettings

_PREFIX = struct.Struct("!IB")
_READ_BYTES = 256 * 1024
_MAX_FDS = 16


class SendMessage(msgspec.Struct, frozen=True, tag="send"):
    """Send an encoded message."""

    peer: str
    body: bytes


class Publish(msgspec.Struct, frozen=True, tag="publish"):
    """Send a publication; its payload comes as a file descriptor, or not at all if it is empty."""

    peer: str
    header: Header
    spread_s: float


class Taken(msgspec.Struct, frozen=True, tag="taken"):
    """The island has taken a received publication of ``peer``: there is room for another."""

    peer: str


class Close(msgspec.Struct, frozen=True, tag="close"):
    """Flush, then end."""

    timeout_s: float


Command = LinkSettings | SendMessage | Publish | Taken | Close


class Listening(msgspec.Struct, frozen=True, tag="listening"):
    """The link has started; ``address`` is ``host:port`` with the real port, or None."""

    address: str | None


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The link cannot start."""

    what: str
    got: str
    wanted: str
    mend: str


class Up(msgspec.Struct, frozen=True, tag="up"):
    """A ``PeerUp``."""

    event: PeerUp


class Down(msgspec.Struct, frozen=True, tag="down"):
    """A ``PeerDown``."""

    event: PeerDown


class Said(msgspec.Struct, frozen=True, tag="said"):
    """A peer's encoded message, checked to decode."""

    peer: str
    body: bytes


class Arrived(msgspec.Struct, frozen=True, tag="arrived"):
    """A verified publication; its payload comes as a file descriptor, or not at all if it is empty."""

    peer: str
    signed: SignedHeader
    wire_bytes: int


class Sent(msgspec.Struct, frozen=True, tag="sent"):
    """A ``PublicationSent``."""

    event: PublicationSent


class Samples(msgspec.Struct, frozen=True, tag="samples"):
    """The windows of about a second."""

    samples: tuple[LinkSample, ...]


class Alarmed(msgspec.Struct, frozen=True, tag="alarm"):
    """A ``LinkAlarm``."""

    event: LinkAlarm


Report = Listening | Failed | Up | Down | Said | Arrived | Sent | Samples | Alarmed

Incoming = TypeVar("Incoming")
Outgoing = TypeVar("Outgoing", bound=msgspec.Struct)


class Channel(Generic[Incoming, Outgoing]):
    """One end of the socket pair; blocks or not as its socket does. One thread may read while another writes."""

    def __init__(self, sock: socket.socket, decoder: msgspec.msgpack.Decoder[Incoming]) -> None:
        self.socket = sock
        self._decoder = decoder
        self._unsent: deque[tuple[memoryview, int | None]] = deque()
        self._unparsed = bytearray()
        self._fds: deque[int] = deque()

    @property
    def has_unsent(self) -> bool:
        """Whether something waits for the other end to read."""
        return bool(self._unsent)

    def push(self, value: Outgoing, fd: int | None = None) -> None:
        """Queue a value, and a copy of a file descriptor with it."""
        body = msgspec.msgpack.encode(value)
        data = _PREFIX.pack(len(body), fd is not None) + body
        self._unsent.append((memoryview(data), None if fd is None else os.dup(fd)))

    def flush(self) -> None:
        """Send what is queued, as far as the socket takes it.

        Raises:
            OSError: the other end is gone.
        """
        while self._unsent:
            data, fd = self._unsent[0]
            rights = [] if fd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
            try:
                num_sent = self.socket.sendmsg([data], rights)
            except BlockingIOError:
                return
            if fd is not None:
                os.close(fd)
            if num_sent == len(data):
                self._unsent.popleft()
            else:
                self._unsent[0] = (data[num_sent:], None)

    def receive(self) -> list[tuple[Incoming, int | None]]:
        """What one read brings; nothing if that completes no value, or if the socket would block.

        Raises:
            EOFError: the other end is gone.
        """
        try:
            data, ancillary, _, _ = self.socket.recvmsg(_READ_BYTES, socket.CMSG_SPACE(4 * _MAX_FDS))
        except BlockingIOError:
            return []
        except ConnectionError as error:
            raise EOFError from error
        if not data:
            raise EOFError
        for _, _, rights in ancillary:
            fds = array.array("i")
            fds.frombytes(rights[: len(rights) - len(rights) % fds.itemsize])
            self._fds.extend(fds)
        self._unparsed += data
        return self._parse()

    def _parse(self) -> list[tuple[Incoming, int | None]]:
        values: list[tuple[Incoming, int | None]] = []
        start, end = 0, len(self._unparsed)
        while end - start >= _PREFIX.size:
            length, has_fd = _PREFIX.unpack_from(self._unparsed, start)
            stop = start + _PREFIX.size + length
            if stop > end:
                break
            value = self._decoder.decode(bytes(self._unparsed[start + _PREFIX.size : stop]))
            values.append((value, self._fds.popleft() if has_fd else None))
            start = stop
        del self._unparsed[:start]
        return values

    def close(self) -> None:
        """Close the socket and every file descriptor that was not passed on."""
        self.socket.close()
        for fd in [*self._fds, *(fd for _, fd in self._unsent if fd is not None)]:
            os.close(fd)
        self._fds.clear()
        self._unsent.clear()


def island_end(sock: socket.socket) -> Channel[Report, Command]:
    """The island's end: reports in, commands out."""
    return Channel(sock, msgspec.msgpack.Decoder(Report))


def link_end(sock: socket.socket) -> Channel[Command, Report]:
    """The link process's end: commands in, reports out."""
    return Channel(sock, msgspec.msgpack.Decoder(Command))
