"""What all threads of a link process share."""

from __future__ import annotations

import os
import queue
import threading
import time
from dataclasses import dataclass

from isthmus.identity import Identity, load_identity
from isthmus.terms import LinkAlarm
from isthmus.transport.buffers import SharedBuffer
from isthmus.transport.ipc import Alarmed, Channel, Command, Report, Said
from isthmus.transport.meter import Meter
from isthmus.transport.pacing import AlarmLimiter, RateLimiter
from isthmus.transport.settings import LinkSettings
from isthmus.transport.tls import TlsContexts
from isthmus.units import MIB

MAX_UNREAD_MESSAGE_BYTES = 64 * MIB


@dataclass(frozen=True)
class _Item:
    report: Report
    buffer: SharedBuffer | None = None
    num_bytes: int = 0


class Outbox:
    """Reports on their way to the island; nobody who puts one in ever waits for the island to read it."""

    def __init__(self, channel: Channel[Command, Report]) -> None:
        self._channel = channel
        self._items: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._message_bytes = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="outbox", daemon=True)
        self._thread.start()

    def put(self, report: Report, buffer: SharedBuffer | None = None) -> None:
        """Queue a report, and the buffer that goes with it."""
        self._items.put(_Item(report, buffer))

    def put_message(self, said: Said) -> bool:
        """Queue a peer's message; False, and dropped, if too much is unread already."""
        with self._lock:
            if self._message_bytes + len(said.body) > MAX_UNREAD_MESSAGE_BYTES:
                return False
            self._message_bytes += len(said.body)
        self._items.put(_Item(said, num_bytes=len(said.body)))
        return True

    def finish(self, timeout_s: float) -> None:
        """Wait until all is handed over."""
        self._items.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (item := self._items.get()) is not None:
            self._channel.push(item.report, None if item.buffer is None else item.buffer.fd)
            try:
                self._channel.flush()
            except OSError:
                os._exit(0)  # the island is gone, and the link ends with it
            with self._lock:
                self._message_bytes -= item.num_bytes


class Hub:
    """Settings, keys, counters and the way to the island.

    Raises:
        IdentityError: a key or certificate does not parse, or they do not belong together.
    """

    def __init__(self, settings: LinkSettings, outbox: Outbox) -> None:
        self.settings = settings
        self.outbox = outbox
        self.identity: Identity = load_identity(settings.name, settings.key_pem, settings.certificate_pem)
        self.tls = TlsContexts(self.identity, {peer.name: peer.certificate_pem for peer in settings.peers})
        self.limiter = RateLimiter(settings.rate_bits_per_s)
        self.meter = Meter()
        self.closing = threading.Event()
        self._alarms = AlarmLimiter()

    def alarm(self, peer: str | None, what: str, *, kind: str = "") -> None:
        """Tell the island; alarms of one ``kind`` only now and then, with how many there were."""
        held_back = self._alarms.admit(kind, time.monotonic()) if kind else 0
        if held_back is not None:
            more = f" ({held_back} more like it since the last alarm)" if held_back else ""
            self.outbox.put(Alarmed(LinkAlarm(peer, what + more)))

    def handshake_deadline_s(self) -> float:
        """When a handshake that starts now must be through, on the monotonic clock."""
        return time.monotonic() + self.settings.handshake_timeout_s
