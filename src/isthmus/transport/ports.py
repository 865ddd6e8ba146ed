"""A port that nobody uses now."""

from __future__ import annotations

import socket


def free_address(host: str = "127.0.0.1") -> str:
    """``host:port`` with a port that the system says is free; another process may take it before the caller does."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return f"{host}:{probe.getsockname()[1]}"
