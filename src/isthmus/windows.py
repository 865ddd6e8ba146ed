"""When an island's capacity is there: the windows that the roster says. Pure.

A window is a text: ``2026-12-07T22:00Z/2026-12-08T06:00Z`` from one moment to another, ``22:00/06:00`` every day in
UTC, or ``PT4H`` so long from the island's own start on (ISO 8601). What windows say makes nobody wait in vain; nothing
that must be right depends on them, as clocks may be hours apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, time, timedelta

from pydantic import TypeAdapter, ValidationError

_DAY = timedelta(days=1)
_DURATION = TypeAdapter(timedelta)

WINDOW_FORMS = "2026-12-07T22:00Z/2026-12-08T06:00Z, 22:00/06:00 (every day, UTC), or PT4H (from its own start)"
"""What a window can be, for people."""

_Daily = tuple[time, time]
_Once = tuple[datetime, datetime]


def check_window(text: str) -> str:
    """The text of a window, or ValueError."""
    _parse(text)
    return text


def closes_at(windows: Iterable[str], wall_s: float, *, started_s: float) -> float | None:
    """When the island's capacity ends, if it is there at ``wall_s``: seconds since the epoch; None if it is not.

    Args:
        windows: The island's; none at all: it is always there.
        wall_s: The time.
        started_s: When the island started.
    """
    spans = [span for window in windows for span in _spans(window, wall_s, started_s)]
    if not spans:
        return math.inf if not tuple(windows) else None
    end = wall_s
    for opens, closes in sorted(spans):
        if opens <= end < closes:
            end = closes
    return end if end > wall_s else None


def opens_at(windows: Iterable[str], wall_s: float) -> float | None:
    """When the next of an island's windows opens, in seconds since the epoch; None if none does any more."""
    spans = [span for window in windows for span in _spans(window, wall_s, wall_s)]
    return min((opens for opens, _ in spans if opens >= wall_s), default=None)


def say_time(wall_s: float) -> str:
    """A moment for people: ``2026-12-07 22:00:00 UTC``."""
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _spans(window: str, wall_s: float, started_s: float) -> Iterator[tuple[float, float]]:
    """The times of a window, of a daily one those of yesterday, today and the next two days."""
    parsed = _parse(window)
    if isinstance(parsed, timedelta):
        yield started_s, started_s + parsed.total_seconds()
        return
    begin, end = parsed
    if isinstance(begin, datetime) and isinstance(end, datetime):
        yield begin.timestamp(), end.timestamp()
        return
    assert isinstance(begin, time) and isinstance(end, time)
    today = datetime.fromtimestamp(wall_s, UTC).date()
    for days in range(-1, 3):
        opens = datetime.combine(today + days * _DAY, begin, UTC)
        closes = datetime.combine(today + days * _DAY, end, UTC)
        yield opens.timestamp(), (closes if closes > opens else closes + _DAY).timestamp()


def _parse(text: str) -> timedelta | _Daily | _Once:
    begin, slash, end = text.partition("/")
    try:
        if not slash:
            length = _DURATION.validate_python(text)
            if text.startswith("P") and length > timedelta(0):
                return length
        elif "T" in begin:
            first, last = datetime.fromisoformat(begin), datetime.fromisoformat(end)
            if first.tzinfo and last.tzinfo and first < last:
                return first, last
        else:
            opens, closes = time.fromisoformat(begin), time.fromisoformat(end)
            if opens.tzinfo is closes.tzinfo is None and opens != closes:
                return opens, closes
    except (ValueError, ValidationError):
        pass
    raise ValueError(f"Input should be a window: {WINDOW_FORMS}")
