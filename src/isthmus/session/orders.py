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
    MERGE = "merge"


class Send(msgspec.Struct, frozen=True):
    """Send a small message to a peer."""

    peer: str
    message: Message


class Depart(msgspec.Struct, frozen=True):
    """Take the outer step of one fragment."""

    fragment: int
    outer_lr: float
    momentum: float


class Restore(msgspec.Struct, frozen=True):
    """Let the slow weights of one fragment be the fast ones again, as they were when the end of the run began."""

    fragment: int


class Publish(msgspec.Struct, frozen=True):
    """Code a fragment once, against the reference of an edge, and send it to that edge's partner.

    By the mesh rule to everybody: one header for each receiver, all edges with the same reference. ``codec`` is empty
    where the engine chooses by the size of what is coded. ``answer`` says that all others' publications wait for this,
    so that the meeting is complete at once.
    """

    headers: tuple[Header, ...]
    answer: bool = False


class Resend(msgspec.Struct, frozen=True):
    """Send a kept publication again; its header carries the current incarnations."""

    header: Header


class Arrive(msgspec.Struct, frozen=True):
    """Apply a completed meeting: merge its publications into the edges' reference, and correct, adopt or assign.

    ``peers`` are the other ends in order of slots, one of them or, by the mesh rule, all; ``theirs`` is what they
    published. ``place`` says how many of them have lower slots than this end.
    """

    peers: tuple[str, ...]
    fragment: int
    mine: Header
    theirs: tuple[Header, ...]
    place: int
    mode: Mode

    @property
    def headers(self) -> tuple[Header, ...]:
        """All publications of the meeting, in order of slots."""
        return *self.theirs[: self.place], self.mine, *self.theirs[self.place :]


class Clear(msgspec.Struct, frozen=True):
    """Forget an edge's reference of one fragment."""

    peer: str
    fragment: int


class Save(msgspec.Struct, frozen=True):
    """Write a checkpoint; ``durable``: before anything else is done, and ``Saved`` says whether it was."""

    durable: bool = False


class Warn(msgspec.Struct, frozen=True):
    """Tell the user, and write it down."""

    what: str
    peer: str | None = None


Order = Send | Depart | Restore | Publish | Resend | Arrive | Clear | Save | Warn


class Departed(msgspec.Struct, frozen=True):
    """The outer step was taken."""

    fragment: int


class DepartureRefused(msgspec.Struct, frozen=True):
    """The fragment's own progress is not finite; nothing was changed."""

    fragment: int
    why: str


class Published(msgspec.Struct, frozen=True):
    """The publication was coded and handed to the link; the headers are whole."""

    headers: tuple[Header, ...]
    answer: bool = False


class Withheld(msgspec.Struct, frozen=True):
    """The publication could not be coded."""

    peer: str
    fragment: int
    why: str


class Arrived(msgspec.Struct, frozen=True):
    """The meeting with ``peers`` was applied; ``reference`` is H(c')."""

    peers: tuple[str, ...]
    fragment: int
    reference: bytes


class ArrivalRefused(msgspec.Struct, frozen=True):
    """A partner's publication does not decode to finite numbers; nothing was changed."""

    peer: str
    fragment: int
    why: str


class Saved(msgspec.Struct, frozen=True):
    """How a durable save ended: whether it is on the disk."""

    stored: bool


Result = Departed | DepartureRefused | Published | Withheld | Arrived | ArrivalRefused | Saved
Event = LinkEvent | Result
