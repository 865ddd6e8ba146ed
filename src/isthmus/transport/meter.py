"""How many bytes cross the wire: the kernel's own count of each TCP connection, ciphertext and resends included."""

from __future__ import annotations

import socket
import struct
import threading
from typing import Protocol

from isthmus.terms import LinkSample

_INFO_BYTES = 208
_RECEIVED = struct.Struct("@Q")
_RECEIVED_AT, _SENT_AT = 128, 200
"""Offsets of tcpi_bytes_received and tcpi_bytes_sent in Linux's struct tcp_info (4.19 and later)."""


def kernel_counts(sock: socket.socket) -> tuple[int, int] | None:
    """Bytes sent (with retransmissions) and received so far; None where the kernel does not say."""
    option = getattr(socket, "TCP_INFO", None)
    if option is None:
        return None
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, option, _INFO_BYTES)
    except OSError:
        return None
    if len(info) < _INFO_BYTES:
        return None
    return _RECEIVED.unpack_from(info, _SENT_AT)[0], _RECEIVED.unpack_from(info, _RECEIVED_AT)[0]


class Counted(Protocol):
    """A connection that knows its byte counts."""

    def wire_counts(self) -> tuple[int, int]:
        """Bytes sent and received since the connection was opened."""
        ...


class Meter:
    """Adds up all connections, closed ones included, and cuts the sum into windows."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: set[Counted] = set()
        self._closed = [0, 0]
        self._last = (0, 0)
        self._idle = True

    def add(self, connection: Counted) -> None:
        """Count a connection from its first byte on."""
        with self._lock:
            self._open.add(connection)

    def remove(self, connection: Counted) -> None:
        """Count a connection for the last time, before its socket closes."""
        with self._lock:
            if connection in self._open:
                self._open.remove(connection)
                for side, count in enumerate(connection.wire_counts()):
                    self._closed[side] += count

    def sample(self, at_s: float, window_s: float) -> LinkSample | None:
        """The window that ends now; None if it is idle and so was the one before."""
        with self._lock:
            counts = [connection.wire_counts() for connection in self._open]
            total = tuple(self._closed[side] + sum(c[side] for c in counts) for side in (0, 1))
        sent, received = total[0] - self._last[0], total[1] - self._last[1]
        was_idle, self._idle = self._idle, not (sent or received)
        self._last = (total[0], total[1])
        if self._idle and was_idle:
            return None
        return LinkSample(at_s, window_s, sent, received)
