"""What the core tells the engine to do, and what the engine tells it back. Plain values."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from isthmus.terms import Header, LinkEvent, Message


class Mode(StrEnum):
    """How a completed meeting changes this end."""

    CORRECT = "correct"
    ADOPT = "adopt"
    ASSIGN = "assign"


class Send(msgspec.Struct, frozen=True):
    """Send a small message to a peer."""

    peer: str
    message: Message


class Depart(msgspec.Struct, frozen=True):
    """Take the outer step of one fragment."""

    fragment: int
    outer_lr: float
    momentum: float


class Publish(msgspec.Struct, frozen=True):
    """Code a fragment against an edge's reference and send it.

    ``header.codec`` is empty where the engine chooses by the size of what is coded. ``answer`` says that a knock waits
    for this, so that the meeting is complete at once.
    """

    header: Header
    answer: bool = False


class Resend(msgspec.Struct, frozen=True):
    """Send a kept publication again; its header carries the current incarnations."""

    header: Header


class Arrive(msgspec.Struct, frozen=True):
    """Apply a completed meeting: merge both publications into the edge's reference, and correct, adopt or assign.

    ``mine_first`` says that this end has the lower slot.
    """

    peer: str
    fragment: int
    mine: Header
    theirs: Header
    mine_first: bool
    mode: Mode


class Clear(msgspec.Struct, frozen=True):
    """Forget an edge's reference of one fragment."""

    peer: str
    fragment: int


class Save(msgspec.Struct, frozen=True):
    """Write a checkpoint."""


class Warn(msgspec.Struct, frozen=True):
    """Tell the user, and write it down."""

    what: str
    peer: str | None = None


Order = Send | Depart | Publish | Resend | Arrive | Clear | Save | Warn


class Departed(msgspec.Struct, frozen=True):
    """The outer step was taken."""

    fragment: int


class DepartureRefused(msgspec.Struct, frozen=True):
    """The fragment's own progress is not finite; nothing was changed."""

    fragment: int
    why: str


class Published(msgspec.Struct, frozen=True):
    """The publication was coded and handed to the link; the header is whole."""

    header: Header
    answer: bool = False


class Withheld(msgspec.Struct, frozen=True):
    """The publication could not be coded."""

    peer: str
    fragment: int
    why: str


class Arrived(msgspec.Struct, frozen=True):
    """The meeting was applied; ``reference`` is H(c')."""

    peer: str
    fragment: int
    reference: bytes


class ArrivalRefused(msgspec.Struct, frozen=True):
    """The partner's publication does not decode to finite numbers; nothing was changed."""

    peer: str
    fragment: int
    why: str


Result = Departed | DepartureRefused | Published | Withheld | Arrived | ArrivalRefused
Event = LinkEvent | Result
