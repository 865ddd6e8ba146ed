"""A run in lines for a log: one a round, and every event but late meetings."""

from __future__ import annotations

import time

from isthmus.observe.events import Event, describe, printable
from isthmus.observe.records import Record, Severity
from isthmus.observe.tally import Tally
from isthmus.units import format_bytes, format_count, format_duration


class Narrator:
    """Tells one island's records as they are written.

    Args:
        name: The island.
    """

    def __init__(self, name: str) -> None:
        self._tally = Tally(name)
        self._told_rounds = 0

    def tell(self, record: Record) -> list[tuple[Severity, str]]:
        """The lines that a record is worth, each with how grave it is."""
        self._tally.add(record)
        lines: list[tuple[Severity, str]] = []
        event = describe(record)
        if event is not None and event.sort != "late":
            lines.append((event.severity, event_line(event)))
        if self._tally.rounds > self._told_rounds:
            self._told_rounds = self._tally.rounds
            lines.append(("info", round_line(self._tally, record.wall_s)))
        return lines


def event_line(event: Event) -> str:
    """An event with its time and island."""
    label = f"{event.severity.upper()}: " if event.severity != "info" else ""
    return f"{_time_of_day(event.wall_s)} {printable(event.island)}: {label}{event.text}"


def round_line(tally: Tally, wall_s: float, *, link: str = "") -> str:
    """Where an island is at the end of a round; ``link`` is its use of the link now, where that is known."""
    loss = "" if tally.loss_nats is None else f", loss {tally.loss_nats:.3f}"
    return (
        f"{_time_of_day(wall_s)} {printable(tally.name)}: round {tally.rounds}, step {tally.step}, "
        f"{format_count(tally.tokens)} tokens{loss}, {format_count(tally.tokens_per_s)} tokens/s, "
        f"{tally.meetings.open} open, {tally.meetings.late} late, "
        f"sent {format_bytes(tally.traffic.sent_bytes)}{link and f' at {link}'}, blocked {blocked_words(tally)}"
    )


def blocked_words(tally: Tally) -> str:
    """Seconds that an island's steps waited for the link or a peer, and their share."""
    share = tally.blocked_s / tally.step_s if tally.step_s else 0.0
    return f"{format_duration(tally.blocked_s)} {share:.1%}"


def _time_of_day(wall_s: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(wall_s))
