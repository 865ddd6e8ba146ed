"""Where this process is, for others: its host, and where it can be reached."""

from __future__ import annotations

import hashlib
import os
import socket
import uuid
from pathlib import Path

from isthmus.addresses import join_address, split_address

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_ANYWHERE = ("0.0.0.0", "::")


def host_name() -> str:
    """This machine's name, for people."""
    return socket.gethostname()


def place_of(directory: Path) -> str:
    """A directory on this machine since its boot; the same for all processes that see each other there."""
    boot = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else str(uuid.getnode())
    return hashlib.sha256("\n".join((host_name(), boot, os.path.realpath(directory))).encode()).hexdigest()


def reached_at(listen: str, *, towards: str) -> str:
    """Where others reach who listens at ``listen``: there, or at the address from which this machine speaks to another.

    Args:
        listen: ``host:port``.
        towards: The other, as ``host:port``; looked up, not connected to.

    Returns:
        ``host:port``; empty if the port is not known before it is bound, or nothing leads to the other.
    """
    host, port = split_address(listen)
    if port == 0:
        return ""
    if host not in _ANYWHERE:
        return listen
    try:
        family, *_, where = socket.getaddrinfo(*split_address(towards), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as out:
            out.connect(where)
            return join_address(out.getsockname()[0], port)
    except OSError:
        return ""
