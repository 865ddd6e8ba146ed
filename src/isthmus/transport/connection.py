"""One TLS connection that carries frames, and how it is opened."""

from __future__ import annotations

import socket
import ssl
import sys
import time

from isthmus.addresses import split_address
from isthmus.errors import IdentityError
from isthmus.transport.meter import Meter, kernel_counts
from isthmus.transport.tls import TlsContexts, encrypted_bytes
from isthmus.units import KIB
from isthmus.wire import Frame, FrameParser
from isthmus.wire.frames import HANDSHAKE_BOUNDS

_UNSENT_S = 0.1
_MIN_UNSENT_BYTES = 32 * KIB


class Connection:
    """Frames over TLS; blocking, unless its owner makes the socket otherwise. ``where`` is for people."""

    def __init__(self, sock: ssl.SSLSocket, where: str, meter: Meter) -> None:
        self.sock = sock
        self.where = where
        self.parser = FrameParser(HANDSHAKE_BOUNDS)
        self._meter = meter
        self._estimate = [0, 0]
        meter.add(self)

    def secure(self, tls: TlsContexts, deadline_s: float) -> str:
        """Shake hands; the name of the island at the other end. Closed if that fails.

        Raises:
            OSError: no TLS with an island of the roster.
            IdentityError: an island of another roster.
        """
        try:
            self.sock.settimeout(_left_s(deadline_s))
            self.sock.do_handshake()
            return tls.peer_of(self.sock)
        except (OSError, IdentityError):
            self.close()
            raise

    def send(self, data: bytes | memoryview) -> int:
        """Send all of ``data``; how many bytes that is on the wire, encryption included."""
        self.sock.sendall(data)
        wire_bytes = encrypted_bytes(len(data))
        self._estimate[0] += wire_bytes
        return wire_bytes

    def send_some(self, data: memoryview) -> int:
        """Send what a non-blocking socket takes of ``data``; how many bytes of it that was."""
        try:
            num_bytes = self.sock.send(data)
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            return 0
        self._estimate[0] += encrypted_bytes(num_bytes)
        return num_bytes

    def receive_some(self) -> Frame | None:
        """Read once; a frame if that completes one.

        Raises:
            EOFError: the other end closed the connection.
            ProtocolError: what came is no frame allowed here.
        """
        num_bytes = self.sock.recv_into(self.parser.writable())
        if not num_bytes:
            raise EOFError("the connection was closed")
        self._estimate[1] += encrypted_bytes(num_bytes)
        return self.parser.advance(num_bytes)

    def receive(self, deadline_s: float | None = None) -> Frame:
        """Wait for the next frame, until ``deadline_s`` on the monotonic clock if given.

        Raises:
            TimeoutError: it did not come in time.
            EOFError: the other end closed the connection.
            ProtocolError: what came is no frame allowed here.
        """
        while True:
            if deadline_s is not None:
                self.sock.settimeout(_left_s(deadline_s))
            if (frame := self.receive_some()) is not None:
                return frame

    def block(self) -> None:
        """From now on wait for as long as it takes."""
        self.sock.settimeout(None)

    def pace(self, bytes_per_s: float | None) -> None:
        """Have the kernel smooth what leaves, and hold little that has not left; for bulk data."""
        if bytes_per_s is None:
            return
        unsent_bytes = max(_MIN_UNSENT_BYTES, int(bytes_per_s * _UNSENT_S))
        for level, name, value in (
            (socket.SOL_SOCKET, "SO_MAX_PACING_RATE", int(bytes_per_s)),
            (socket.IPPROTO_TCP, "TCP_NOTSENT_LOWAT", unsent_bytes),
        ):
            option = getattr(socket, name, _LINUX_OPTIONS.get(name))
            if option is not None:
                _try_option(self.sock, level, option, min(value, 2**31 - 1))

    def wire_counts(self) -> tuple[int, int]:
        """Bytes sent and received: the kernel's count, or an estimate of the ciphertext where it has none."""
        counts = kernel_counts(self.sock)
        return (self._estimate[0], self._estimate[1]) if counts is None else counts

    def shut(self) -> None:
        """End it from any thread: whoever reads or writes it notices."""
        shut_socket(self.sock)

    def close(self) -> None:
        """Release the socket; by the thread that uses it."""
        self._meter.remove(self)
        self.sock.close()


def dial(address: str, tls: TlsContexts, meter: Meter, deadline_s: float) -> tuple[Connection, str]:
    """Open a connection to ``host:port``; it and the name of the island that answers.

    Raises:
        OSError: no connection, or no TLS with an island of the roster.
        IdentityError: an island of another roster.
    """
    try:
        raw = socket.create_connection(split_address(address), timeout=_left_s(deadline_s))
    except ValueError as error:
        raise OSError(f"{address!r} is no host:port") from error
    connection = Connection(wrap(raw, tls.client), address, meter)
    return connection, connection.secure(tls, deadline_s)


def wrap(raw: socket.socket, context: ssl.SSLContext) -> ssl.SSLSocket:
    """A TCP connection with TLS around it, before the handshake; takes over ``raw``.

    Raises:
        OSError: it is gone already.
    """
    try:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        server_side = context.protocol == ssl.PROTOCOL_TLS_SERVER
        return context.wrap_socket(raw, server_side=server_side, do_handshake_on_connect=False)
    except (OSError, ValueError) as error:
        raw.close()
        raise OSError(str(error)) from error


def shut_socket(sock: socket.socket) -> None:
    """Shut both directions of a socket that may be gone already."""
    try:
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
    except OSError:
        return


def describe(error: BaseException) -> str:
    """An error of a connection in words for people."""
    if isinstance(error, socket.gaierror):
        return f"the name does not resolve ({error.strerror})"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ssl.SSLEOFError):
        return "the connection was closed"
    if isinstance(error, ssl.SSLCertVerificationError):
        return "its certificate was issued by no island of the roster"
    if isinstance(error, ssl.SSLError) and error.reason and "ALERT" in error.reason:
        return f"it refuses this island's certificate ({error.reason.lower().replace('_', ' ')})"
    if isinstance(error, ssl.SSLError) and error.reason:
        return f"TLS failed ({error.reason.lower().replace('_', ' ')})"
    return str(error)


_LINUX_OPTIONS = {"SO_MAX_PACING_RATE": 47} if sys.platform == "linux" else {}


def _left_s(deadline_s: float) -> float:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


def _try_option(sock: socket.socket, level: int, option: int, value: int) -> None:
    try:
        sock.setsockopt(level, option, value)
    except OSError:
        return
