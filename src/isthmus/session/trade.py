"""What is published, to whom, and when a meeting is applied. No tensors, no I/O."""

from __future__ import annotations

from isthmus import meeting
from isthmus.codec import NO_CODEC, WHOLE_CODEC
from isthmus.meeting import Edge
from isthmus.roster import choose_partner, partners
from isthmus.session.company import Company
from isthmus.session.memory import Memory, Plan
from isthmus.session.orders import Arrive, Mode, Order, Publish, Warn
from isthmus.terms import TAG_BITS, Header

NO_PAYLOAD = NO_CODEC
"""The codec of a newcomer's publication, which carries nothing."""

NO_PLAN = -1
"""No meeting is of the plan of this number."""

OVERDUE_WINDOWS = 2
"""An answer that has not come for so many windows is no longer counted on."""

MOST_OVERDUE = 2
"""So many answers of a fragment may be overdue before it is published to nobody else."""

DONOR_PATIENCE = 6
"""A newcomer asks another donor after so many times as long as it waits for HELLOs."""

FAR_REFERENCES = 2
"""References that an island keeps of a fragment with others than its partners: those it met last."""

LOSSLESS = "fp32"
"""The codec of the last meetings of a run, and of what a newcomer adopts."""


class Trade:
    """An island's publications and meetings, by the pair rule.

    Args:
        plan: The settings.
        memory: The island's memory; edges change in place.
        company: The other islands.
        incarnation: The number of this start.
        outbox: Where orders go.
    """

    def __init__(self, plan: Plan, memory: Memory, company: Company, incarnation: int, *, outbox: list[Order]) -> None:
        self._plan, self._memory, self._company = plan, memory, company
        self._incarnation, self._outbox = incarnation, outbox
        self._withheld: set[int] = set()
        self._end_number = 0
        self._asked_at_s: dict[int, float] = {}
        slots = {slot: name for name, slot in plan.peers.items()}
        self._near = {slots[partner.slot] for partner in partners(plan.slot, (*slots, plan.slot))}

    @property
    def donors(self) -> tuple[str, ...]:
        """Whom a newcomer waits for: all that can be reached, or anybody."""
        return tuple(self._company.living) or tuple(sorted(self._plan.peers))

    def lost(self, peer: str) -> None:
        """An island cannot be reached; this one trades with the others."""

    def receive(self, peer: str, header: Header) -> bool:
        """Take in a verified publication; False if it is not of the current incarnations of both ends."""
        if not self._is_current(peer, header):
            return False
        if self._ignores(header):
            return True
        if not self._memory.peers[peer].is_refused:
            self._company.hear_tokens(peer, header.tokens)
            edge = self._edge(peer, header.fragment)
            edge, actions = meeting.on_publication(edge, header, order=self._memory.order)
            self._set(peer, header.fragment, edge)
            self._company.perform(peer, header.fragment, actions)
        return True

    def order_arrivals(self, step: int, *, at_once: bool) -> None:
        """Order every arrival that is due: τ steps after the own publication at the earliest, at once for an answer."""
        both = [
            (peer, fragment, edge)
            for peer, edges in self._memory.edges.items()
            for fragment, edge in enumerate(edges)
            if edge.mine is not None and edge.theirs is not None
        ]
        for peer, fragment, edge in both:
            due = at_once or step >= edge.due_step
            if due and self._may_arrive(edge) and not self._memory.peers[peer].is_refused:
                self._outbox.append(self._arrive((peer,), fragment))

    def arrive_before(self, peer: str, header: Header) -> bool:
        """Order the arrival that a publication follows, however early, lest it be dropped; whether there was one."""
        if not self._is_current(peer, header):
            return False
        edge = self._edge(peer, header.fragment)
        if not meeting.follows(edge, header) or not self._may_arrive(edge):
            return False
        self._outbox.append(self._arrive((peer,), header.fragment))
        return True

    def arrived(self, peers: tuple[str, ...], fragment: int, reference: bytes) -> None:
        """A meeting with ``peers`` was applied."""
        if not self._memory.complete:
            self._memory.adopted.add(fragment)
        if all(_both_final(self._edge(peer, fragment)) for peer in peers) and not self._end_number:
            self._memory.final.add(fragment)
        for peer in peers:
            edge = meeting.on_arrived(self._edge(peer, fragment), reference, order=self._memory.order)
            self._set(peer, fragment, edge)
        if not self._end_number and self._plan.rule == "pair":
            self._forget_far(fragment)

    def refuse(self, peer: str, fragment: int, why: str) -> None:
        """A publication that cannot be used shuts the edge for as long as its sender does not start anew."""
        known = self._memory.peers[peer]
        known.refused = known.incarnation
        self._memory.shut(peer)
        self._set(peer, fragment, self._edge(peer, fragment).change(theirs=None))
        text = (
            f"what {peer} published of fragment {fragment} cannot be used ({why}); its edge is shut until it restarts"
        )
        self._outbox.append(Warn(text, peer))

    def trade(self, fragment: int) -> None:
        """After a departure, answer the longest-waiting knock; else knock at the partner least recently met."""
        knocks = [(self._edge(peer, fragment).knocked, peer) for peer in self._knocking(fragment)]
        if knocks:
            self._answer(min(knocks)[1], fragment)
        elif self._may_knock_again(fragment):
            partner = self._partner(fragment)
            if partner is not None:
                self._publish((partner,), fragment)

    def knock_as_newcomer(self, now_s: float) -> None:
        """Knock with empty hands only at complete islands: for all fragments at one of them, each newcomer at another.

        A donor that is silent for long is asked no more, but another; should it answer after all, that does no harm.
        """
        patience_s = DONOR_PATIENCE * self._plan.join_wait_s
        able = [peer for peer in self._company.heard if self._company.gives(peer)]
        trained = [peer for peer in able if self._memory.peers[peer].rounds]
        donors = sorted(trained or able, key=self._plan.peers.__getitem__)
        first = self._plan.slot % len(donors) if donors else 0
        for fragment in sorted(set(self._plan.fragments) - self._memory.adopted):
            free = [peer for peer in (*donors[first:], *donors[:first]) if self._edge(peer, fragment).mine is None]
            ready = [peer for peer in free if self._edge(peer, fragment).open]
            waited_s = now_s - self._asked_at_s.setdefault(fragment, now_s)
            asked = len(free) < len(donors)
            first_is_ready = free[:1] == ready[:1] or waited_s >= self._plan.hello_every_s
            if ready and (waited_s >= patience_s if asked else first_is_ready):
                self._asked_at_s[fragment] = now_s
                self._publish((ready[0],), fragment, codec=NO_PAYLOAD)

    def change_standing(self) -> None:
        """This island became a newcomer, or complete: what it published as the other is withdrawn by a new epoch.

        A newcomer forgets other newcomers' knocks too; they have nothing for each other.
        """
        for peer, fragment, edge in self._memory.all_edges():
            if edge.mine is not None:
                self.renew(peer, fragment)
            elif edge.theirs is not None and edge.theirs.codec == NO_PAYLOAD:
                self._set(peer, fragment, edge.change(theirs=None))

    def renew(self, peer: str, fragment: int) -> None:
        """Give up an edge's reference, and with it all that is open on it."""
        anew, actions = meeting.renewed(self._edge(peer, fragment))
        self._set(peer, fragment, anew)
        self._company.perform(peer, fragment, actions)

    def withheld(self, fragment: int) -> None:
        """A publication could not be coded; at the end of the run it is not tried for ever."""
        if self._memory.finishing:
            self._withheld.add(fragment)

    def close(self, fragment: int) -> None:
        """At the end of the run: answer every knock; once a plan is followed, newcomers' alone."""
        if fragment in self._withheld:
            return
        for peer in self._knocking(fragment):
            theirs = self._edge(peer, fragment).theirs
            if not self._end_number or (theirs is not None and theirs.codec == NO_PAYLOAD):
                self._answer(peer, fragment)

    @property
    def is_quiet(self) -> bool:
        """Whether no own publication waits for an answer that can still come."""
        return not any(
            self._company.is_awaited(peer, fragment) for peer in self._plan.peers for fragment in self._plan.fragments
        )

    @property
    def cannot_publish(self) -> bool:
        """Whether a publication could not be coded at the end of the run."""
        return bool(self._withheld)

    def freeze_meetings(self, end_number: int) -> None:
        """Apply no meeting any more but those of the plan of that number."""
        self._end_number = end_number

    def publish_at_end(self, peer: str, fragment: int, *, tag: int, mass: int) -> None:
        """Publish slow weights as they are, for the meeting of the end that ``tag`` names; nothing without mass."""
        self._publish((peer,), fragment, codec=WHOLE_CODEC if mass else NO_PAYLOAD, ending=(tag, mass))

    def published(self, headers: tuple[Header, ...], *, answer: bool) -> None:
        """An own publication is on its way."""
        due_step = self._memory.step + (0 if answer else self._plan.flight_steps)
        for header in headers:
            edge = meeting.on_published(self._edge(header.receiver, header.fragment), header, due_step=due_step)
            self._set(header.receiver, header.fragment, edge)

    def freeze(self) -> set[int]:
        """What a restart may forget: the fragments that could not be coded at the end of the run."""
        return self._withheld

    def thaw(self, state: set[int]) -> None:
        """Go on from what ``freeze`` gave."""
        self._withheld = state

    def _may_knock_again(self, fragment: int) -> bool:
        """Whether no answer is awaited that may still be on its way.

        One that has not come for two windows is no longer counted on: its island hangs, or its link is slow. But no
        more than two such stay open: many late answers at once would correct the same difference many times.
        """
        awaited = [
            edge.mine.step
            for peer in self._plan.peers
            if self._company.is_awaited(peer, fragment) and (edge := self._edge(peer, fragment)).mine is not None
        ]
        overdue = self._memory.step - OVERDUE_WINDOWS * self._plan.window_steps
        return len(awaited) < MOST_OVERDUE and all(step <= overdue for step in awaited)

    def _knocking(self, fragment: int) -> list[str]:
        """Partners whose publication waits for an answer; what one published that is gone by now counts still."""
        return [
            peer
            for peer in sorted(self._company.takers(self._plan.peers))  # alike at all ranks of an island
            if (edge := self._edge(peer, fragment)).open
            and edge.theirs is not None
            and edge.mine is None
            and not edge.theirs.ending
        ]

    def _may_arrive(self, edge: Edge) -> bool:
        """Whether both publications of a meeting are here, and it is one of those that are to be applied now."""
        if edge.mine is None or edge.theirs is None or edge.mine.ending != edge.theirs.ending:
            return False
        if edge.theirs.codec == NO_PAYLOAD and not edge.theirs.ending:
            return True  # a newcomer's: it changes nothing at this end
        return edge.mine.ending >> TAG_BITS == self._end_number

    def _answer(self, peer: str, fragment: int) -> None:
        theirs = self._edge(peer, fragment).theirs
        assert theirs is not None
        self._publish((peer,), fragment, codec=LOSSLESS if theirs.codec == NO_PAYLOAD else "", answer=True)

    def _partner(self, fragment: int) -> str | None:
        names = {slot: name for name, slot in self._plan.peers.items()}
        living = {slot for slot, name in names.items() if self._company.answers(name)}
        ready = {slot for slot in living if (edge := self._edge(names[slot], fragment)).open and edge.mine is None}
        met = {slot: self._edge(name, fragment).met for slot, name in names.items()}
        slots = (*names, self._plan.slot)
        chosen = choose_partner(self._plan.slot, living, ready, met, fragment=fragment, slots=slots)
        return None if chosen is None else names[chosen]

    def _forget_far(self, fragment: int) -> None:
        """Give up the references of islands that are no partners, but for those met last: memory stays bounded."""
        far = [
            (edge.met, peer)
            for peer, edges in self._memory.edges.items()
            if peer not in self._near
            and (edge := edges[fragment]).version
            and edge.reference
            and not (edge.mine or edge.theirs)
        ]
        for _, peer in sorted(far)[: max(0, len(far) - FAR_REFERENCES)]:
            self.renew(peer, fragment)

    def _publish(
        self,
        peers: tuple[str, ...],
        fragment: int,
        *,
        codec: str = "",
        final: bool = False,
        answer: bool = False,
        ending: tuple[int, int] | None = None,
    ) -> None:
        """Order one publication, under one id, to all of ``peers``; their edges hold the same reference."""
        memory, edges = self._memory, {peer: self._edge(peer, fragment) for peer in peers}
        memory.sequence += 1
        met = max(edge.tokens_met for edge in edges.values())
        since = memory.departed_tokens[fragment][0] if final else met
        tag, weight = ending or (0, max(0, memory.tokens - since) if memory.complete else 0)
        headers = tuple(
            Header(
                run=self._plan.run,
                sender=self._plan.name,
                receiver=peer,
                fragment=fragment,
                epoch=edge.epoch,
                version=edge.version,
                sender_incarnation=self._incarnation,
                receiver_incarnation=memory.peers[peer].incarnation,
                publication=self._incarnation << 32 | memory.sequence,
                step=memory.step,
                tokens=memory.tokens,
                weight_tokens=weight,
                run_tokens=max(weight, memory.run_tokens),
                cursor=memory.cursor,
                reference=edge.reference,
                codec=codec,
                num_bytes=0,
                final=final or tag != 0,
                ending=tag,
            )
            for peer, edge in edges.items()
        )
        self._outbox.append(Publish(headers, answer))

    def _arrive(self, peers: tuple[str, ...], fragment: int) -> Arrive:
        edges = [self._edge(peer, fragment) for peer in peers]
        mine, theirs = edges[0].mine, tuple(edge.theirs for edge in edges if edge.theirs is not None)
        assert mine is not None and len(theirs) == len(peers)
        mode = Mode.ASSIGN if all(map(_both_final, edges)) else Mode.CORRECT
        mode = Mode.MERGE if mine.ending else mode
        return Arrive(
            peers=peers,
            fragment=fragment,
            mine=mine,
            theirs=theirs,
            place=sum(self._plan.peers[peer] < self._plan.slot for peer in peers),
            mode=mode if self._memory.complete or mine.ending else Mode.ADOPT,
        )

    def _ignores(self, header: Header) -> bool:
        """Whether this is a newcomer's knock at a newcomer; they have nothing for each other."""
        return header.codec == NO_PAYLOAD and not self._memory.complete

    def _is_current(self, peer: str, header: Header) -> bool:
        """Whether a publication is between the current incarnations of both ends, of a fragment that there is."""
        current = (self._memory.peers[peer].incarnation, self._incarnation)
        addressed = (header.sender_incarnation, header.receiver_incarnation)
        return addressed == current and header.fragment in self._plan.fragments

    def _edge(self, peer: str, fragment: int) -> Edge:
        return self._memory.edges[peer][fragment]

    def _set(self, peer: str, fragment: int, edge: Edge) -> None:
        self._memory.edges[peer][fragment] = edge


def _both_final(edge: Edge) -> bool:
    return edge.mine is not None and edge.theirs is not None and edge.mine.final and edge.theirs.final
