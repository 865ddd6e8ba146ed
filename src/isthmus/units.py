"""Numbers with units, for people."""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


def format_bytes(num_bytes: float) -> str:
    """Bytes in decimal units, as links and disks count them: ``16.4 GB``."""
    return _scaled(num_bytes, 1000.0, ("B", "kB", "MB", "GB", "TB", "PB"))


def format_rate(bits_per_s: float) -> str:
    """Bits per second in decimal units: ``25 Gbit/s``."""
    return _scaled(bits_per_s, 1000.0, ("bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"))


def format_count(count: float) -> str:
    """A count with a letter: ``1.2 M``."""
    return _scaled(count, 1000.0, ("", "k", "M", "G", "T")).rstrip()


def format_duration(seconds: float) -> str:
    """Seconds as people say them: ``48 ms``, ``3.1 s``, ``4 min 05 s``, ``2 h 07 min``."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _scaled(value: float, step: float, names: tuple[str, ...]) -> str:
    for name in names[:-1]:
        if abs(value) < step * 0.9995:
            return f"{value:.3g} {name}"
        value /= step
    return f"{value:.3g} {names[-1]}"
