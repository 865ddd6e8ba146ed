"""Where an island can be reached, as text: ``host:port`` or ``[v6]:port``."""

from __future__ import annotations


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[v6]:port``.

    Raises:
        ValueError: It is neither.
    """
    host, colon, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    if not colon or not host or (":" in host) != bracketed or any(letter.isspace() for letter in host):
        raise ValueError("Input should be host:port or [v6]:port")
    if not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ValueError("Input should have a port from 0 to 65535 after the last colon")
    return host, int(port)


def join_address(host: str, port: int) -> str:
    """The text that ``split_address`` takes apart."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
