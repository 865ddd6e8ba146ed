"""Who else is there: reachable, of the same make, and in agreement about every edge. No tensors, no I/O."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from isthmus import meeting
from isthmus.meeting import Action
from isthmus.session.frozen import CompanyState
from isthmus.session.memory import Memory, Plan
from isthmus.session.orders import Clear, Order, Resend, Send, Warn
from isthmus.terms import Header, Hello, Layout, Message, Phase, Pulse, SignedHeader


class Company:
    """The other islands as this one sees them.

    Args:
        plan: The settings.
        memory: The island's memory; edges and peers change in place.
        incarnation: The number of this start.
        layout_lines: Every parameter in words, for a peer whose layout differs.
        outbox: Where orders go.
    """

    def __init__(
        self,
        plan: Plan,
        memory: Memory,
        incarnation: int,
        *,
        layout_lines: tuple[str, ...],
        outbox: list[Order],
    ) -> None:
        self.heard: set[str] = set()
        self.misfits: set[str] = set()
        self.other_start: set[str] = set()
        self.away: frozenset[str] = frozenset()
        self._plan, self._memory, self._incarnation = plan, memory, incarnation
        self._layout_lines, self._outbox = layout_lines, outbox
        self._alive: set[str] = set()
        self._hello_due: set[str] = set()
        self._asking: set[str] = set()
        self._hello_at_s: dict[str, float] = {}

    @property
    def living(self) -> list[str]:
        """Islands that can be reached and whose model fits, by name."""
        return sorted(self._alive - self.misfits)

    @property
    def unheard(self) -> set[str]:
        """Islands that have not said HELLO, and may yet: their models fit, and their windows are open."""
        return set(self._plan.peers) - self.heard - self.misfits - (self.away - self._alive)

    def reaches(self, peer: str) -> bool:
        """Whether the link to a peer is up."""
        return peer in self._alive

    def takers(self, peers: Iterable[str]) -> set[str]:
        """Those of ``peers`` that could take part in a meeting: of the same make, and not refused."""
        known = self._memory.peers
        return {peer for peer in peers if not known[peer].is_refused} - self.misfits

    def may_knock(self, peer: str, fragment: int) -> bool:
        """Whether a publication to this peer can hope for an answer."""
        return self.answers(peer) and self._memory.edges[peer][fragment].open

    def is_awaited(self, peer: str, fragment: int) -> bool:
        """Whether an own publication to this peer waits for an answer that can still come."""
        return self.answers(peer) and self._memory.edges[peer][fragment].mine is not None

    def came(self, peer: str, incarnation: int) -> None:
        """The link reached a peer."""
        if peer in self._plan.peers:
            self._meet(peer, incarnation)
            self._alive.add(peer)
            self._hello_due.add(peer)

    def went(self, peer: str) -> None:
        """The link lost a peer."""
        self._alive.discard(peer)

    def hear(self, peer: str, message: Message) -> None:
        """Take in a small message."""
        match message:
            case Hello():
                self._take_hello(peer, message)
            case Pulse():
                self._memory.peers[peer].phase = message.phase
                for name, tokens in message.tokens.items():
                    self.hear_tokens(name, tokens)
            case Layout():
                self.misfits.add(peer)
            case _:
                pass

    def hear_tokens(self, name: str, tokens: int) -> None:
        """Remember the most tokens that anybody has reported of an island."""
        if name in self._memory.peers:
            known = self._memory.peers[name]
            known.tokens = max(known.tokens, tokens)

    def hold(self, peer: str, signed: SignedHeader) -> None:
        """Keep the header that shows the most tokens of a peer's; what comes late or again may show fewer."""
        known = self._memory.peers[peer]
        if known.held is None or signed.header.tokens >= known.held.header.tokens:
            known.held = signed

    def say_hello_to_all(self) -> None:
        """Say HELLO to everybody at the next chance."""
        self._hello_due.update(self._alive)

    def pulse(self, phase: Phase) -> None:
        """Tell the living how many tokens each island has trained, and one's own phase."""
        message = self._pulse(phase)
        self._outbox.extend(Send(peer, message) for peer in self.living)

    def flush_hellos(self, now_s: float, phase: Phase) -> None:
        """Say HELLO, and in which phase this island is, where the table asked for it; again where ends still differ.

        An island that does not train meanwhile asks sooner for an answer that has not come.
        """
        every_s = self._plan.hello_every_s
        patience = 6 if phase is Phase.TRAINING else 1
        said_at_s = self._hello_at_s
        for peer in self.takers([peer for peer in self._alive if now_s - said_at_s.get(peer, -inf) >= every_s]):
            since_s = now_s - said_at_s.get(peer, -inf)
            edges = self._memory.edges[peer]
            apart = peer in self._asking or any(not edge.open for edge in edges)
            unanswered = any(edge.mine for edge in edges)
            if apart or (unanswered and since_s >= patience * every_s):
                self._hello_due.add(peer)
        self._asking.clear()
        for peer in sorted(self._hello_due & self._alive):
            self._outbox += [Send(peer, self._hello(peer)), Send(peer, self._pulse(phase))]
            self._hello_at_s[peer] = now_s
        self._hello_due.clear()

    def perform(self, peer: str, fragment: int, actions: tuple[Action, ...]) -> None:
        """Turn the table's actions into orders."""
        edge = self._memory.edges[peer][fragment]
        for action in actions:
            match action:
                case Action.HELLO:
                    self._hello_due.add(peer)
                case Action.ASK:
                    self._asking.add(peer)
                case Action.CLEARED:
                    self._outbox.append(Clear(peer, fragment))
                case Action.SEND_MINE if edge.mine is not None:
                    self._outbox.append(Resend(self._readdressed(edge.mine)))
                case Action.RESEND_LAST if edge.last is not None:
                    self._outbox.append(Resend(self._readdressed(edge.last[0])))
                case _:
                    pass

    def freeze(self) -> CompanyState:
        """What a restart may forget; no HELLO is due between two steps."""
        assert not self._hello_due and not self._asking
        return CompanyState(
            heard=self.heard,
            misfits=self.misfits,
            other_start=self.other_start,
            alive=self._alive,
            hello_at_s=self._hello_at_s,
        )

    def thaw(self, state: CompanyState) -> None:
        """Go on from what ``freeze`` gave."""
        self.heard, self.misfits, self.other_start = state.heard, state.misfits, state.other_start
        self._alive, self._hello_at_s = state.alive, state.hello_at_s

    def gives(self, peer: str) -> bool:
        """Whether a newcomer can ask this peer for the run's weights; it can, too, when that is done."""
        return self.reaches(peer) and self._fits(peer) and self._memory.peers[peer].complete

    def answers(self, peer: str) -> bool:
        """Whether this peer can be reached and answers knocks."""
        return self.gives(peer) and self._memory.peers[peer].phase is not Phase.DONE

    def _fits(self, peer: str) -> bool:
        return peer not in self.misfits and not self._memory.peers[peer].is_refused

    def _meet(self, peer: str, incarnation: int) -> None:
        """Learn of an incarnation; a newer one shuts every edge until both have said HELLO."""
        known = self._memory.peers[peer]
        if incarnation > known.incarnation:
            known.incarnation = incarnation
            known.phase = Phase.JOINING
            self._memory.shut(peer)
            self.heard.discard(peer)

    def _take_hello(self, peer: str, hello: Hello) -> None:
        known = self._memory.peers[peer]
        if hello.incarnation < known.incarnation:
            return
        self._meet(peer, hello.incarnation)
        if hello.layout != self._plan.layout or len(hello.edges) != len(self._plan.initial):
            self.misfits.add(peer)
            self._outbox.append(Send(peer, Layout(self._layout_lines)))
            return
        self.misfits.discard(peer)
        if hello.peer_incarnation != self._incarnation:
            self._hello_due.add(peer)
            return
        known.rounds, known.complete = hello.rounds, hello.complete
        self.hear_tokens(peer, hello.tokens)
        self._recover_tokens(peer, hello)
        self._compare_start(peer, hello)
        self.heard.add(peer)
        if known.is_refused:
            return  # its edges stay shut, as they are
        for fragment, report in enumerate(hello.edges):
            edge, actions = meeting.on_hello(self._memory.edges[peer][fragment], report)
            self._memory.edges[peer][fragment] = edge
            self.perform(peer, fragment, actions)

    def _recover_tokens(self, peer: str, hello: Hello) -> None:
        """T and the data cursor become the largest that own signed headers show, so that no token counts twice."""
        if hello.held is None or hello.held.header.sender != self._plan.name:
            return
        header, memory = hello.held.header, self._memory
        if header.tokens > memory.tokens:
            ahead = header.tokens - memory.tokens
            memory.tokens, memory.cursor = header.tokens, max(header.cursor, memory.cursor)
            text = f"{ahead} tokens trained before the restart live on at {peer}; they are not trained again"
            self._outbox.append(Warn(text, peer))

    def _compare_start(self, peer: str, hello: Hello) -> None:
        """At the start of a run, note whose initial weights differ."""
        untouched = all(edge.epoch == edge.version == 0 for edge in self._memory.edges[peer])
        theirs_too = all(report.version == 0 for report in hello.edges)
        if untouched and theirs_too and tuple(report.reference for report in hello.edges) != self._plan.initial:
            self.other_start.add(peer)

    def _pulse(self, phase: Phase) -> Pulse:
        tokens = {name: peer.tokens for name, peer in self._memory.peers.items()}
        tokens[self._plan.name] = self._memory.tokens
        return Pulse(tokens=tokens, phase=phase, step=self._memory.step, roster=self._plan.roster)

    def _hello(self, peer: str) -> Hello:
        memory = self._memory
        return Hello(
            run=self._plan.run,
            sender=self._plan.name,
            incarnation=self._incarnation,
            peer_incarnation=memory.peers[peer].incarnation,
            tokens=memory.tokens,
            rounds=sum(memory.rounds),
            complete=memory.complete,
            layout=self._plan.layout,
            edges=tuple(edge.report() for edge in memory.edges[peer]),
            held=memory.peers[peer].held,
        )

    def _readdressed(self, header: Header) -> Header:
        receiver_incarnation = self._memory.peers[header.receiver].incarnation
        return header.addressed(self._incarnation, receiver_incarnation)
