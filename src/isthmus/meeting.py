"""Edges, versions and open meetings of one fragment: one transition table, no tensors, no I/O.

An ``Edge`` is what one end holds of one fragment on one edge. Every function takes an edge and what happened, and
returns the edge after it with the actions that the caller must perform. The table makes both ends agree again after any
loss, repetition, reordering, cut, restart or rollback; it never lets one end apply a meeting twice, and a disagreement
that cannot be mended is ended by a new epoch without a reference.

Incarnations are a matter of the whole edge, not of a fragment; ``core.py`` checks them before it comes here.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto

import msgspec

from isthmus.terms import NO_PUBLICATION, NO_REFERENCE, EdgeReport, Header


class Action(Enum):
    """What the caller must do after a transition; ``ASK`` is a HELLO that is left out if one was said a moment ago."""

    HELLO = auto()
    ASK = auto()
    SEND_MINE = auto()
    RESEND_LAST = auto()
    CLEARED = auto()
    TAKEN = auto()


class Edge(msgspec.Struct, frozen=True, kw_only=True):
    """One end's view of one fragment on one edge.

    Attributes:
        epoch: Raised whenever the two ends give up their common reference.
        version: Completed meetings in this epoch.
        reference: H(c); ``NO_REFERENCE`` where c = 0.
        open: Whether the last HELLO found both ends in agreement; publications of a shut edge are dropped.
        mine: Header of the own publication that waits for its answer.
        due_step: The first own step at which the answer to ``mine`` may be applied.
        theirs: Header of the partner's publication of this version.
        knocked: Order number at which ``theirs`` came; the smallest has waited longest.
        last: The own header of the last completed meeting and the partner's publication id.
        tokens_met: T of this end at its last completed meeting.
        peer_tokens_met: T of the other end there.
        met: Order number of the last completed meeting; the smallest is the least recently met.
        early: Whether a publication of the next version was dropped because this meeting was not over; mesh rule only.
    """

    epoch: int = 0
    version: int = 0
    reference: bytes = NO_REFERENCE
    open: bool = False
    mine: Header | None = None
    due_step: int = 0
    theirs: Header | None = None
    knocked: int = 0
    last: tuple[Header, int] | None = None
    tokens_met: int = 0
    peer_tokens_met: int = 0
    met: int = 0
    early: bool = False

    def change(self, **fields: object) -> Edge:
        """The same edge with some fields replaced."""
        return msgspec.structs.replace(self, **fields)

    def report(self) -> EdgeReport:
        """What a HELLO says of this edge."""
        return EdgeReport(
            epoch=self.epoch,
            version=self.version,
            reference=self.reference,
            open=self.open,
            mine=self.mine.publication if self.mine else NO_PUBLICATION,
            theirs=self.theirs.publication if self.theirs else NO_PUBLICATION,
            last=(self.last[0].publication, self.last[1]) if self.last else None,
            tokens_met=self.tokens_met,
            peer_tokens_met=self.peer_tokens_met,
        )


Outcome = tuple[Edge, tuple[Action, ...]]


class Relation(Enum):
    """How the partner's HELLO compares with what this end holds."""

    NEWER_EPOCH = auto()
    OLDER_EPOCH = auto()
    SAME = auto()
    BEHIND = auto()
    AHEAD = auto()
    APART = auto()


def relation(edge: Edge, report: EdgeReport) -> Relation:
    """Name the row of the table that a HELLO falls into; "behind" and "ahead" are the partner's place."""
    if report.epoch != edge.epoch:
        return Relation.NEWER_EPOCH if report.epoch > edge.epoch else Relation.OLDER_EPOCH
    if (report.version, report.reference) == (edge.version, edge.reference):
        return Relation.SAME
    if report.version == edge.version - 1 and edge.last and edge.last[1] == report.mine != NO_PUBLICATION:
        return Relation.BEHIND
    if report.version == edge.version + 1 and edge.mine and report.last:
        return Relation.AHEAD if report.last[1] == edge.mine.publication else Relation.APART
    return Relation.APART


def on_hello(edge: Edge, report: EdgeReport) -> Outcome:
    """A HELLO of the same incarnations came in; compare, and mend what differs."""
    edge = edge.change(
        tokens_met=max(edge.tokens_met, report.peer_tokens_met),
        peer_tokens_met=max(edge.peer_tokens_met, report.tokens_met),
    )
    return HELLO_TABLE[relation(edge, report)](edge, report)


def on_publication(edge: Edge, header: Header, *, order: int) -> Outcome:
    """A publication of the current incarnations came in.

    Args:
        edge: This end.
        header: The publication's verified header.
        order: A number that grows with every event, to tell the longest-waiting knock.
    """
    known = (edge.theirs.publication if edge.theirs else None, edge.last[1] if edge.last else None)
    if not edge.open or header.publication in known:
        return edge, ()
    if (header.epoch, header.version, header.reference) != (edge.epoch, edge.version, edge.reference):
        return edge, (Action.HELLO,)
    if edge.theirs is not None:
        return edge, (Action.HELLO,)
    return edge.change(theirs=header, knocked=order), (Action.TAKEN,)


def follows(edge: Edge, header: Header) -> bool:
    """Whether a publication is of the version after a meeting that is complete here and not applied yet."""
    return edge.open and is_complete(edge) and (header.epoch, header.version) == (edge.epoch, edge.version + 1)


def on_published(edge: Edge, header: Header, *, due_step: int) -> Edge:
    """An own publication was coded against this edge's reference and is on its way."""
    assert edge.open and edge.mine is None, edge
    return edge.change(mine=header, due_step=due_step)


def on_arrived(edge: Edge, reference: bytes, *, order: int) -> Edge:
    """The meeting of ``mine`` and ``theirs`` was applied, once; ``reference`` is H(c')."""
    assert edge.mine is not None and edge.theirs is not None, edge
    return edge.change(
        version=edge.version + 1,
        reference=reference,
        last=(edge.mine, edge.theirs.publication),
        tokens_met=max(edge.tokens_met, edge.mine.tokens),
        peer_tokens_met=max(edge.peer_tokens_met, edge.theirs.tokens),
        mine=None,
        theirs=None,
        met=order,
        early=False,
    )


def renewed(edge: Edge) -> Outcome:
    """Give up the common reference, and with it all that is open."""
    return cleared(edge, edge.epoch + 1), (Action.CLEARED, Action.HELLO)


def is_complete(edge: Edge) -> bool:
    """Whether both publications of a meeting are here."""
    return edge.mine is not None and edge.theirs is not None


def cleared(edge: Edge, epoch: int) -> Edge:
    """No mine, theirs, last or reference; version 0. Token records stay."""
    return Edge(
        epoch=epoch,
        tokens_met=edge.tokens_met,
        peer_tokens_met=edge.peer_tokens_met,
        met=edge.met,
    )


def _newer_epoch(edge: Edge, report: EdgeReport) -> Outcome:
    return cleared(edge, report.epoch), (Action.CLEARED, Action.HELLO)


def _older_epoch(edge: Edge, report: EdgeReport) -> Outcome:
    return edge, (Action.HELLO,)


def _same(edge: Edge, report: EdgeReport) -> Outcome:
    actions: tuple[Action, ...] = () if report.open else (Action.HELLO,)
    edge = _opened(edge, keep=(report.mine,))
    if edge.mine is not None and edge.mine.publication != report.theirs:
        actions += (Action.SEND_MINE,)
    if edge.theirs is None and report.mine != NO_PUBLICATION:
        actions += (Action.ASK,)
    return edge, actions


def _behind(edge: Edge, report: EdgeReport) -> Outcome:
    actions: tuple[Action, ...] = () if report.open else (Action.HELLO,)
    actions += (Action.RESEND_LAST,) if edge.mine is None else (Action.RESEND_LAST, Action.SEND_MINE)
    return _opened(edge, keep=(report.mine,)), actions


def _ahead(edge: Edge, report: EdgeReport) -> Outcome:
    assert report.last is not None
    return _opened(edge, keep=(report.last[0],)), (Action.HELLO,)


def _apart(edge: Edge, report: EdgeReport) -> Outcome:
    return renewed(edge)


def _opened(edge: Edge, *, keep: tuple[int, ...]) -> Edge:
    if edge.theirs is not None and edge.theirs.publication not in keep:
        edge = edge.change(theirs=None)
    return edge.change(open=True)


HELLO_TABLE: dict[Relation, Callable[[Edge, EdgeReport], Outcome]] = {
    Relation.NEWER_EPOCH: _newer_epoch,
    Relation.OLDER_EPOCH: _older_epoch,
    Relation.SAME: _same,
    Relation.BEHIND: _behind,
    Relation.AHEAD: _ahead,
    Relation.APART: _apart,
}
