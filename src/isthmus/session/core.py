"""The decisions of one island: events and time in, orders out. No tensors, no I/O, no clock.

``advance`` is called at every step boundary, and while the island waits. The engine performs the orders and hands their
results back to ``advance`` until no order is left. The rules are those of "The pair rule" in the design.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from isthmus import schedule
from isthmus.session.company import Company
from isthmus.session.ending import RunEnd
from isthmus.session.frozen import CoreState, EndingState
from isthmus.session.memory import Memory, Plan
from isthmus.session.mesh import MeshTrade
from isthmus.session.orders import (
    ArrivalRefused,
    Arrived,
    Depart,
    Departed,
    DepartureRefused,
    Event,
    Order,
    Published,
    Result,
    Save,
    Saved,
    Warn,
    Withheld,
)
from isthmus.session.trade import NO_PLAN, Trade
from isthmus.terms import (
    Ending,
    LinkAlarm,
    MessageReceived,
    PeerDown,
    PeerUp,
    Phase,
    PublicationReceived,
)


class Core:
    """One island's decisions.

    Args:
        plan: The settings.
        memory: What a checkpoint remembers, or a fresh memory.
        incarnation: The number of this start, already durable.
        fresh: Whether there was no checkpoint.
        layout_lines: Every parameter in words, for a peer whose layout differs.
    """

    def __init__(
        self, plan: Plan, memory: Memory, *, incarnation: int, fresh: bool, layout_lines: tuple[str, ...]
    ) -> None:
        self.plan, self.memory, self.incarnation = plan, memory, incarnation
        self.phase = Phase.JOINING
        self._outbox: list[Order] = []
        self._unread: deque[Event] = deque()
        self._again: set[int] = set()
        self.company = Company(plan, memory, incarnation, layout_lines=layout_lines, outbox=self._outbox)
        trade = MeshTrade if plan.rule == "mesh" else Trade
        self._trade = trade(plan, memory, self.company, incarnation, outbox=self._outbox)
        self._ending = RunEnd(plan, memory, self.company, self._trade, incarnation, outbox=self._outbox)
        self._now_s = 0.0
        self._fresh = fresh
        self._waiting_since_s: float | None = None
        self._saved_step = memory.step
        memory.sequence = 0
        memory.finishing = False
        if memory.end_plan:
            self._trade.freeze_meetings(NO_PLAN)

    @property
    def progress(self) -> float:
        """The run's progress in [0, 1]: tokens of all islands as last heard, plus one's own, of the budget."""
        return min(1.0, self.memory.run_tokens / self.plan.token_budget)

    @property
    def open_meetings(self) -> int:
        """Own publications that wait for their answer."""
        return sum(edge.mine is not None for _, _, edge in self.memory.all_edges())

    @property
    def met_last(self) -> bool:
        """Whether the last meeting of every fragment is over; a lone island has none to hold."""
        return not self.plan.peers or len(self.memory.final) == len(self.plan.initial)

    @property
    def provisional(self) -> bool:
        """Whether the weights at the end are not the run's, which are the same, bit for bit, at all that have them."""
        return not self.met_last

    @property
    def waits_for(self) -> tuple[str, ...]:
        """The islands that a joining, finishing or done island waits for."""
        peers, company = set(self.plan.peers), self.company
        if self.phase is Phase.JOINING and self.memory.complete:
            return tuple(sorted(company.unheard))
        if self.phase is Phase.JOINING:
            return self._trade.donors
        if self.phase is Phase.FINISHING and self.plan.rule == "pair":
            return self._ending.waits_for
        going = {peer for peer in peers if self.memory.peers[peer].phase is not Phase.DONE}
        living = set(company.living)
        return tuple(sorted(company.takers(going | living if self.phase is Phase.FINISHING else going & living)))

    def trained(self, *, tokens: int, cursor: int) -> None:
        """Count one training step of ``tokens`` tokens that left the data cursor at ``cursor``."""
        self.memory.step += 1
        self.memory.tokens += tokens
        self.memory.cursor = cursor

    def finish(self, now_s: float) -> None:
        """Begin the end of the run: a last, plain departure of every fragment, then lossless meetings.

        An island that is started again after the run has ended whole is done at once.
        """
        if self.plan.peers and self.met_last:
            self.phase = Phase.DONE
            self._ending.begin(now_s, over=True)
            return
        self.phase = Phase.FINISHING
        self._waiting_since_s = now_s
        self.memory.finishing = True
        self.memory.final.clear()
        self._ending.begin(now_s)
        if not self.memory.end_result:
            self._outbox.extend(Depart(fragment, *schedule.CALM) for fragment in self.plan.fragments)

    def leave(self) -> None:
        """Let every fragment depart now, out of turn: what this island has trained may yet reach a partner."""
        trades = self.memory.complete and self.plan.peers and not self.memory.end_plan
        if self.phase is Phase.TRAINING and trades:
            self._outbox.extend(self._depart(fragment) for fragment in self.plan.fragments)

    def advance(self, step: int, events: Iterable[Event], now_s: float) -> list[Order]:
        """Take in what happened and say what is to be done now.

        What the link reported is taken in one by one, each after the meetings that the one before completed: a
        partner's next publication may come with the one that it follows. HELLOs are said last, of what is true then.

        Args:
            step: The step boundary at which this island stands.
            events: What the link reported, and the results of the orders given before.
            now_s: The time, for bounded waits only.

        Returns:
            Orders to perform one after the other; their results are the next call's events. Empty when all is done.
        """
        self._now_s = now_s
        if self._waiting_since_s is None:
            self._waiting_since_s = now_s
        for event in events:
            if isinstance(event, Result):
                if isinstance(event, Arrived) and self.phase is Phase.FINISHING:
                    self._waiting_since_s = now_s
                self._take(event)
            else:
                self._unread.append(event)
        while self._unread and not self._outbox:
            if self._comes_early(self._unread[0]):
                break
            self._take(self._unread.popleft())
            self._order_arrivals(step)
        if not self._outbox:
            self._decide(step, now_s - self._waiting_since_s)
        if not self._outbox:
            self.company.flush_hellos(now_s, self.phase)
        orders = self._outbox.copy()
        self._outbox.clear()
        return orders

    def freeze(self) -> CoreState:
        """What a restart may forget, the memory aside; nothing is unread or unsaid between two steps."""
        assert not self._unread and not self._outbox
        return CoreState(
            phase=self.phase,
            fresh=self._fresh,
            waiting_since_s=self._waiting_since_s,
            saved_step=self._saved_step,
            withheld=self._trade.freeze(),
            ending=self.freeze_end(),
            company=self.company.freeze(),
        )

    def freeze_end(self) -> EndingState:
        """Of that what the end of the run is about."""
        return self._ending.freeze()

    def thaw(self, state: CoreState, memory: Memory) -> None:
        """Go on from what ``freeze`` gave, with the memory of that moment."""
        self.phase, self._fresh = state.phase, state.fresh
        self._waiting_since_s, self._saved_step = state.waiting_since_s, state.saved_step
        self._trade.thaw(state.withheld)
        self._ending.thaw(state.ending)
        self.company.thaw(state.company)
        for name in memory.__struct_fields__:
            setattr(self.memory, name, getattr(memory, name))

    def _comes_early(self, event: Event) -> bool:
        """Whether a publication must wait for an arrival, which is then ordered."""
        match event:
            case PublicationReceived(peer, signed) if peer in self.plan.peers:
                return self._trade.arrive_before(peer, signed.header)
            case _:
                return False

    def _order_arrivals(self, step: int) -> None:
        over = self.phase in (Phase.FINISHING, Phase.DONE)
        self._trade.order_arrivals(step, at_once=over or not self.memory.complete)

    def _take(self, event: Event) -> None:
        self.memory.order += 1
        if isinstance(event, Result):
            self._take_result(event)
            return
        match event:
            case PeerUp(peer, incarnation):
                self.company.came(peer, incarnation)
            case PeerDown(peer):
                self.company.went(peer)
                if self.phase is Phase.TRAINING:
                    self._trade.lost(peer)
            case MessageReceived(peer, message) if peer in self.plan.peers:
                if isinstance(message, Ending):
                    self._ending.hear(message, self._now_s)
                self.company.hear(peer, message)
                self._step_aside(peer)
            case PublicationReceived(peer, signed) if peer in self.plan.peers:
                if self._trade.receive(peer, signed.header):
                    self.company.hold(peer, signed)
            case LinkAlarm(peer, what) if not self.memory.has_ended(peer):
                self._outbox.append(Warn(what, peer))
            case _:
                pass

    def _take_result(self, result: Result) -> None:
        match result:
            case Departed(fragment):
                self._departed(fragment)
            case DepartureRefused(fragment, why):
                self._outbox.append(Warn(f"fragment {fragment} did not depart: {why}"))
            case Published(headers, answer):
                self._trade.published(headers, answer=answer)
                self._count_meeting(headers[0].fragment)
            case Withheld(peer, fragment, why):
                self._trade.withheld(fragment)
                self._outbox.append(Warn(f"fragment {fragment} was not published: {why}", peer))
            case Arrived(peers, fragment, reference):
                mine = self.memory.edges[peers[0]][fragment].mine
                if mine is not None and mine.ending:
                    self._ending.met(fragment, mine.ending, reference, self._now_s)
                self._trade.arrived(peers, fragment, reference)
                self._again.add(fragment)
            case ArrivalRefused(peer, fragment, why):
                self._trade.refuse(peer, fragment, why)
            case Saved(stored):
                self._ending.saved(stored=stored)

    def _decide(self, step: int, waited_s: float) -> None:
        """Arrivals come before the departure, in every phase."""
        self._order_arrivals(step)
        self._meet_again()
        if self._outbox:
            return
        match self.phase:
            case Phase.JOINING:
                self._join(waited_s)
            case Phase.TRAINING:
                self._train(step)
            case Phase.FINISHING:
                self._close(waited_s)
            case Phase.DONE:
                if self.plan.rule == "pair":
                    self._ending.step(self._now_s)

    def _join(self, waited_s: float) -> None:
        company, peers = self.company, self.memory.peers
        if not self.memory.complete:
            self._join_as_newcomer()
            return
        if company.unheard and waited_s < self.plan.join_wait_s:
            return
        ahead = sorted(peer for peer in company.heard if peers[peer].complete and peers[peer].rounds > 1)
        lower = sorted(p for p in company.other_start if peers[p].complete and self.plan.peers[p] < self.plan.slot)
        if self._fresh and ahead:
            self._become_newcomer(f"the run is under way at {', '.join(ahead)}; taking its weights")
        elif self._fresh and lower:
            self._become_newcomer(f"initial weights differ from those of {', '.join(lower)}; taking the lowest slot's")
        else:
            self.phase = Phase.TRAINING
            for peer in sorted(set(self.plan.peers) - company.heard):
                self._trade.lost(peer)

    def _join_as_newcomer(self) -> None:
        if len(self.memory.adopted) == len(self.plan.initial):
            self._become_complete()
        elif self._is_first_of_none():
            self._outbox.append(Warn("no island holds the run's weights any more; going on from those here"))
            self._become_complete()
        else:
            self._trade.knock_as_newcomer(self._now_s)

    def _is_first_of_none(self) -> bool:
        """Whether all islands are here, all wait for the run's weights, and this is the lowest slot of them."""
        living, peers = set(self.company.living) & self.company.heard, self.plan.peers
        nobody = not any(self.memory.peers[peer].complete for peer in peers)
        return nobody and living == set(peers) and self.plan.slot < min(peers.values())

    def _step_aside(self, peer: str) -> None:
        """A fresh island that could reach nobody, and then finds a run far ahead, joins it rather than hold it back."""
        if not self._fresh or self.phase is not Phase.TRAINING:
            return
        known, own = self.memory.peers[peer], self.memory
        far_ahead = known.complete and known.rounds > 2 * sum(own.rounds) + len(self.plan.initial)
        if far_ahead and own.complete and all(edge.met == 0 for _, _, edge in own.all_edges()):
            self._become_newcomer(
                f"{peer} is {known.rounds} rounds ahead of this island's lone start; taking its weights"
            )

    def _become_newcomer(self, why: str) -> None:
        self.phase = Phase.JOINING
        self.memory.complete = False
        self.memory.adopted.clear()
        at_the_end = (Phase.FINISHING, Phase.DONE)
        self.memory.may_vote &= not any(peer.phase in at_the_end for peer in self.memory.peers.values())
        self._trade.change_standing()
        self.company.say_hello_to_all()
        self._outbox.append(Warn(why))

    def _become_complete(self) -> None:
        self.memory.complete = True
        self.phase = Phase.TRAINING
        self._trade.change_standing()
        self.company.say_hello_to_all()

    def _train(self, step: int) -> None:
        if step > self.memory.departed_step and not self.memory.end_plan:  # what was promised at the end stays as it is
            self.memory.departed_step = step
            due = schedule.departures(step, window_steps=self.plan.window_steps, num_fragments=len(self.plan.initial))
            self._outbox.extend(map(self._depart, due))
        if not self._outbox and step - self._saved_step >= self.plan.save_every_steps:
            self._saved_step = step
            self._outbox.append(Save())

    def _depart(self, fragment: int) -> Depart:
        rounds = self.memory.rounds[fragment]
        return Depart(fragment, *schedule.outer_step(self.plan.outer, progress=self.progress, rounds=rounds))

    def _departed(self, fragment: int) -> None:
        memory = self.memory
        memory.rounds[fragment] += 1
        memory.departed_tokens[fragment] = (memory.departed_tokens[fragment][1], memory.tokens)
        if self.phase is Phase.TRAINING:
            memory.meetings_left[fragment] = self.plan.meetings
            self._trade.trade(fragment)
        self.company.pulse(self.phase)

    def _count_meeting(self, fragment: int) -> None:
        left = self.memory.meetings_left
        left[fragment] = max(0, left[fragment] - 1)

    def _meet_again(self) -> None:
        """Go on to the next partner with what departed last, as often as the run wants; once for all that arrived."""
        if self._outbox:
            return
        for fragment in sorted(self._again):
            if self.phase is Phase.TRAINING and self.plan.meetings > 1 and self.memory.meetings_left[fragment]:
                self._trade.trade(fragment)
        self._again.clear()

    def _close(self, waited_s: float) -> None:
        """Answer what knocks, then come to one outcome without loss; wait for others, but not for ever."""
        if self.plan.rule == "pair":
            self._ending.step(self._now_s)
            over = self._ending.over
        else:
            for fragment in self.plan.fragments:
                self._trade.close(fragment)
            over = self.met_last or not self.waits_for or waited_s >= self.plan.finish_wait_s
        if self._outbox:
            return
        if over:
            self.phase = Phase.DONE
            self.company.pulse(self.phase)
