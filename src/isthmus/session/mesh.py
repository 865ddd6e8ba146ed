"""What is published and when a meeting is applied by the mesh rule: all islands meet at once. No tensors, no I/O."""

from __future__ import annotations

from isthmus import meeting
from isthmus.meeting import Action, Edge
from isthmus.session.company import Company
from isthmus.session.memory import Memory, Plan
from isthmus.session.orders import Order, Warn
from isthmus.session.trade import LOSSLESS, NO_PAYLOAD, Trade
from isthmus.terms import NO_REFERENCE, Header


class MeshTrade(Trade):
    """Publications and meetings by the mesh rule: classical streaming DiLoCo, the reference for the pair rule.

    A meeting is of all islands of the roster. Each publishes the same bytes to every other one, against a reference
    that all hold, and applies the meeting when it holds everybody's. So all edges of a fragment move in step: one that
    begins a new epoch takes the others along, at this end and, by HELLO, at all.

    An island that cannot be reached stops the averaging, though nobody's training: the mesh serves few islands that
    stay, and the pair rule is what survives losses. All islands must have been started with the same roster. A newcomer
    takes part in every fragment's next meeting with an empty publication, and adopts the outcome.

    Args:
        plan: The settings.
        memory: The island's memory; edges change in place.
        company: The other islands.
        incarnation: The number of this start.
        outbox: Where orders go.
    """

    def __init__(self, plan: Plan, memory: Memory, company: Company, incarnation: int, *, outbox: list[Order]) -> None:
        super().__init__(plan, memory, company, incarnation, outbox=outbox)
        self._peers = tuple(sorted(plan.peers, key=plan.peers.__getitem__))

    @property
    def donors(self) -> tuple[str, ...]:
        """Whom a newcomer waits for: everybody."""
        return self._peers

    def lost(self, peer: str) -> None:
        """An island cannot be reached; say what that means."""
        text = f"{peer} cannot be reached: by the mesh rule nothing is averaged without it; training goes on"
        self._outbox.append(Warn(text, peer))

    def receive(self, peer: str, header: Header) -> bool:
        """Take in a verified publication; False if it is not of the current incarnations of both ends.

        One of the next version, of an island that held all of this one sooner, is dropped and asked for afterwards.
        """
        if not self._follows(peer, header):
            return super().receive(peer, header)
        self._set(peer, header.fragment, self._edge(peer, header.fragment).change(early=True))
        return True

    def order_arrivals(self, step: int, *, at_once: bool) -> None:
        """Bring the edges of every fragment into step, and order every arrival that is due."""
        for fragment in self._plan.fragments:
            self._align(fragment)
            if self._is_whole(fragment) and (at_once or step >= self._edges(fragment)[0].due_step):
                self._outbox.append(self._arrive(self._peers, fragment))

    def arrive_before(self, peer: str, header: Header) -> bool:
        """Order the arrival that a publication follows, however early, if everybody's are here; whether it did."""
        if not self._follows(peer, header) or not self._is_whole(header.fragment):
            return False
        self._outbox.append(self._arrive(self._peers, header.fragment))
        return True

    def arrived(self, peers: tuple[str, ...], fragment: int, reference: bytes) -> None:
        """A meeting was applied; ask for what came too early for it."""
        early = [peer for peer in peers if self._edge(peer, fragment).early]
        super().arrived(peers, fragment, reference)
        for peer in early:
            self._company.perform(peer, fragment, (Action.HELLO,))

    def trade(self, fragment: int) -> None:
        """After a departure, publish to everybody, unless somebody is missing or has not answered the last time."""
        if self._may_publish(fragment):
            self._publish_to_all(fragment)

    def knock_as_newcomer(self, now_s: float) -> None:
        """Take part in the next meeting of every fragment with empty hands, if a complete island takes part."""
        for fragment in set(self._plan.fragments) - self._memory.adopted:
            complete = any(self._company.may_knock(peer, fragment) for peer in self._peers)
            if complete and all(edge.open and edge.mine is None for edge in self._edges(fragment)):
                self._publish(self._peers, fragment, codec=NO_PAYLOAD)

    def close(self, fragment: int) -> None:
        """At the end of the run: complete what others began, then hold one last meeting of all without loss."""
        knocked = any(edge.theirs is not None for edge in self._edges(fragment))
        wanted = knocked or not (self._outbox or fragment in self._memory.final)
        if wanted and fragment not in self._withheld and self._may_publish(fragment):
            self._publish_to_all(fragment)

    def _publish_to_all(self, fragment: int) -> None:
        theirs = [edge.theirs for edge in self._edges(fragment) if edge.theirs is not None]
        final = self._memory.finishing and all(header.final for header in theirs)
        lossless = final or any(header.final or header.codec == NO_PAYLOAD for header in theirs)
        answer = len(theirs) == len(self._peers)
        self._publish(self._peers, fragment, codec=LOSSLESS if lossless else "", final=final, answer=answer)

    def _may_publish(self, fragment: int) -> bool:
        """Whether no own publication waits for an answer, and all others have published or can be hoped to."""
        return bool(self._peers) and all(self._takes_part(peer, fragment) for peer in self._peers)

    def _takes_part(self, peer: str, fragment: int) -> bool:
        edge = self._edge(peer, fragment)
        knocked = peer in self._company.living and edge.open and edge.theirs is not None
        return edge.mine is None and (knocked or self._company.may_knock(peer, fragment))

    def _is_whole(self, fragment: int) -> bool:
        """Whether everybody's publications are here, of which not all are empty, and can be used.

        An edge that is shut may yet turn out to be one with an island that no longer knows what it published.
        """
        edges = self._edges(fragment)
        if not edges or not all(edge.open and meeting.is_complete(edge) for edge in edges):
            return False
        headers = [edges[0].mine, *(edge.theirs for edge in edges)]
        return any(header is not None and header.codec != NO_PAYLOAD for header in headers)

    def _align(self, fragment: int) -> None:
        """Let all edges of a fragment follow the one in the newest epoch, or begin a new one where that is under way.

        Edges part where a HELLO shows that an island went back behind what others hold, or where the roster has grown.
        """
        edges = self._edges(fragment)
        if len({_stand(edge) for edge in edges}) <= 1:
            return
        epoch = max(edge.epoch for edge in edges)
        epoch += any(edge.epoch == epoch and _stand(edge) != _blank(epoch) for edge in edges)
        for peer, edge in zip(self._peers, edges, strict=True):
            if _stand(edge) != _blank(epoch):
                self._set(peer, fragment, meeting.cleared(edge, epoch))
                self._company.perform(peer, fragment, (Action.CLEARED, Action.HELLO))

    def _follows(self, peer: str, header: Header) -> bool:
        return self._is_current(peer, header) and meeting.follows(self._edge(peer, header.fragment), header)

    def _ignores(self, header: Header) -> bool:
        """Nothing is ignored: other newcomers are missed in a meeting, too."""
        return False

    def _edges(self, fragment: int) -> list[Edge]:
        return [self._edge(peer, fragment) for peer in self._peers]


_Stand = tuple[int, int, bytes, int | None]


def _stand(edge: Edge) -> _Stand:
    """What all edges of a fragment have in common."""
    return edge.epoch, edge.version, edge.reference, edge.mine.publication if edge.mine else None


def _blank(epoch: int) -> _Stand:
    return epoch, 0, NO_REFERENCE, None
