"""isthmus: train one model on islands of compute joined by a thin link."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Island", "__version__", "attach", "hold_lease"]

if TYPE_CHECKING:
    from isthmus.session import Island as Island
    from isthmus.session import attach as attach
    from isthmus.session import hold_lease as hold_lease


def __getattr__(name: str) -> Any:
    """Import the session only when it is asked for: the link's process must not load torch."""
    if name in ("Island", "attach", "hold_lease"):
        from isthmus import session

        return getattr(session, name)
    raise AttributeError(f"module 'isthmus' has no attribute {name!r}")
