"""What a TCP link is told when it starts."""

from __future__ import annotations

import msgspec

from isthmus.transport.checks import MAX_PUBLICATION_BYTES


class PeerAddress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An island of the roster: its identity certificate and where it listens (``host:port``), if anywhere."""

    name: str
    certificate_pem: bytes
    addresses: tuple[str, ...] = ()


class LinkSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="start"):
    """Everything a link needs to know.

    ``listen`` is ``host:port``; port 0 takes any free one, None does not listen at all. ``rate_bits_per_s`` caps
    what this island sends to all peers together. A peer that is silent for ``timeout_s`` is down; heartbeats go out
    every ``heartbeat_s``. The link's process is given ``start_timeout_s`` to start.
    """

    name: str
    run: str
    incarnation: int
    key_pem: bytes
    certificate_pem: bytes
    peers: tuple[PeerAddress, ...]
    listen: str | None = None
    rate_bits_per_s: float | None = None
    heartbeat_s: float = 2.0
    timeout_s: float = 15.0
    handshake_timeout_s: float = 10.0
    start_timeout_s: float = 20.0
    max_publication_bytes: int = MAX_PUBLICATION_BYTES

    def __repr__(self) -> str:
        """Without the key."""
        return f"LinkSettings(name={self.name!r}, run={self.run!r}, listen={self.listen!r})"
