"""Links between islands: ``TcpLink`` over TLS 1.3 in a process of its own, ``MemoryLink`` on a virtual clock.

Both implement ``Link``. Nothing here imports torch, so that the link's process starts at once.
"""

from __future__ import annotations

from isthmus.transport._pair import LinkQuality
from isthmus.transport.link import Link
from isthmus.transport.memory import MemoryNetwork, MemorySettings
from isthmus.transport.memory_link import MemoryLink
from isthmus.transport.settings import LinkSettings, PeerAddress
from isthmus.transport.tcp import TcpLink

__all__ = [
    "Link",
    "LinkQuality",
    "LinkSettings",
    "MemoryLink",
    "MemoryNetwork",
    "MemorySettings",
    "PeerAddress",
    "TcpLink",
]
