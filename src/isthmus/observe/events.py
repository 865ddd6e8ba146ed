"""What of a run is worth a person's notice, in words."""

from __future__ import annotations

import msgspec

from isthmus.observe.records import (
    Alarm,
    Finished,
    Joined,
    Meeting,
    Note,
    PeerChange,
    PhaseChange,
    Record,
    RunStarted,
    Severity,
    Waiting,
)
from isthmus.terms import Phase
from isthmus.units import format_count, format_duration


class Event(msgspec.Struct, frozen=True):
    """One line for people: when, at which island, how grave, what sort, and what happened."""

    wall_s: float
    island: str
    severity: Severity
    sort: str
    text: str


def printable(text: str) -> str:
    """The text with every control character replaced, so that no record can drive a terminal."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def describe(record: Record) -> Event | None:
    """The event a record stands for, or ``None`` if it is everyday."""
    told = _told(record)
    if told is None:
        return None
    severity, sort, text = told
    return Event(record.wall_s, record.island, severity, sort, printable(text))


def _told(record: Record) -> tuple[Severity, str, str] | None:
    match record:
        case Alarm():
            text = f"{record.what} ({record.peer})" if record.peer else record.what
            return record.severity, "alarm", text
        case PeerChange():
            return _told_peer(record)
        case Joined():
            return "info", "joined", _joined_text(record)
        case RunStarted() if record.resumed_from:
            return "info", "restart", f"process started again, from {record.resumed_from}"
        case Meeting() if record.late and not record.final:
            age = format_duration(record.age_s)
            steps = record.arrived_step - record.departed_step
            text = f"fragment {record.fragment} met {record.peer} late: {steps} steps, {age} after departure"
            return "info", "late", text
        case Waiting():
            limit = "" if record.at_most_s is None else f", for at most {format_duration(record.at_most_s)}"
            whom = ", ".join(record.peers) or "islands that cannot be reached"
            return "info", "waiting", f"waiting for {whom}: {record.reason}{limit}"
        case PhaseChange(phase=Phase.FINISHING):
            return "info", "finishing", "token budget spent, finishing"
        case Finished():
            return _told_finished(record)
        case Note():
            return "info", "note", record.text
        case _:
            return None


def _told_peer(record: PeerChange) -> tuple[Severity, str, str]:
    if record.ended:
        return "info", "peer ended", f"{record.peer} has ended and left"
    if record.left:
        return "info", "peer left", f"{record.peer} has left: {record.reason}"
    if not record.up:
        return "warning", "peer down", f"lost {record.peer}" + (f": {record.reason}" if record.reason else "")
    rtt = "" if record.rtt_s is None else f", {format_duration(record.rtt_s)} round trip"
    return "info", "peer up", f"reached {record.peer}{rtt}"


def _joined_text(record: Joined) -> str:
    text = {
        "fresh": "starts from the seed",
        "checkpoint": "goes on from its own checkpoint",
        "adopted": "has adopted the weights of the others",
    }[record.how]
    if record.lost_tokens:
        text += f"; {format_count(record.lost_tokens)} tokens trained before are lost"
    if record.waited_for:
        text += f"; waited {format_duration(record.waited_s)} for {', '.join(record.waited_for)}"
    return text


def _told_finished(record: Finished) -> tuple[Severity, str, str]:
    detail = f": {record.detail}" if record.detail else ""
    if record.reason == "failed":
        return "error", "failed", f"failed{detail}"
    if record.reason == "interrupted":
        return "warning", "interrupted", f"interrupted, state saved{detail}"
    if record.provisional:
        return "warning", "done", f"done, cut off: its weights are provisional{detail}"
    return "info", "done", f"done{detail}"
