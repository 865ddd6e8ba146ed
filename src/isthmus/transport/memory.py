"""Many islands in one process on a virtual clock: the same link without sockets, for tests and simulations.

Every pair of islands has its own delay, rate, loss, duplication and reordering in each direction, and can be cut and
healed. Nothing sleeps: events become visible as the clock is advanced, and the same seed gives the same events.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from isthmus.clock import VirtualClock
from isthmus.errors import CheckpointError, LinkError
from isthmus.identity import Identity
from isthmus.terms import LinkAlarm, MessageReceived, PeerDown, PeerUp, PublicationReceived
from isthmus.transport import _agenda
from isthmus.transport._agenda import Arrive, Connect, Detect, FinishSending, Happening, Leave, NetworkState
from isthmus.transport._pair import LinkQuality, Pair
from isthmus.transport.memory_link import MemoryLink


@dataclass(frozen=True)
class MemorySettings:
    """What holds for all pairs of a memory network.

    ``quality`` is that of every direction until ``shape`` says otherwise; ``detection_s`` is how long a cut or a
    killed island stays unnoticed; sent and received bytes are reported in windows of ``sample_window_s``, or not
    at all if that is None.
    """

    quality: LinkQuality = field(default_factory=LinkQuality)
    detection_s: float = 5.0
    sample_window_s: float | None = 0.1


DEFAULT_SETTINGS = MemorySettings()


class MemoryNetwork:
    """The world between the islands; ``open`` gives each its link.

    Args:
        clock: The virtual clock; whoever drives the islands advances it, to ``next_event_s()`` at most.
        seed: Of all chance in this network; each pair draws from a stream of its own.
        islands: The names in the roster.
        run: The hash of the run.
        identities: Signing keys by name; without one an island signs with a stand-in that only its name goes into.
        settings: What holds for all pairs.
    """

    def __init__(
        self,
        clock: VirtualClock,
        seed: int = 0,
        *,
        islands: Sequence[str],
        run: str,
        identities: Mapping[str, Identity] | None = None,
        settings: MemorySettings = DEFAULT_SETTINGS,
    ) -> None:
        self.clock = clock
        self.run = run
        self.islands = tuple(sorted(islands))
        self.identities = dict(identities or {})
        self.sample_window_s = settings.sample_window_s
        self._detection_s = settings.detection_s
        self._links: dict[str, MemoryLink] = {}
        self._incarnations: dict[str, int] = {}
        self._agenda: list[tuple[float, int, Happening]] = []
        self._order = 0
        self._pairs = {
            ends: Pair(*ends, random.Random(f"{seed}/{ends}"), dict.fromkeys(ends, settings.quality))
            for ends in itertools.combinations(self.islands, 2)
        }

    def open(self, name: str, incarnation: int) -> MemoryLink:
        """Start an island, or start it again; an incarnation older than known is refused by all others.

        Raises:
            LinkError: the network has no island of that name.
        """
        if name not in self.islands:
            raise LinkError("no island of that name", got=repr(name), wanted=list(self.islands))
        link = MemoryLink(self, name, incarnation)
        if incarnation < self._incarnations.get(name, 0):
            self._refuse(link)
            return link
        self.kill(name)
        self._links[name], self._incarnations[name] = link, incarnation
        for pair in self._pairs_of(name):
            self._plan_connection(pair)
        return link

    def kill(self, name: str) -> None:
        """End an island as if its process died; the others notice after the detection delay."""
        if (link := self._links.pop(name, None)) is None:
            return
        link.die()
        for pair in self._pairs_of(name):
            pair.believers.discard(name)
            pair.end_session()
            self._plan_detection(pair, "no longer answers")

    def shape(self, sender: str, receiver: str, quality: LinkQuality) -> None:
        """Set one direction's quality; what is in flight keeps its times."""
        self.pair(sender, receiver).quality[sender] = quality

    def partition(self, a: str, b: str) -> None:
        """Cut a pair; it is noticed after the detection delay, and until then what is sent is only held up."""
        pair = self.pair(a, b)
        if pair.cut:
            return
        pair.cut = True
        pair.cuts += 1
        self._plan_detection(pair, "no longer answers")

    def heal(self, a: str, b: str) -> None:
        """End a cut: what was held goes on, or the pair connects anew."""
        pair = self.pair(a, b)
        pair.cut = False
        held, pair.held = pair.held, []
        for receiver, event in held:
            self._transmit(pair, receiver, event, self.clock.now_s() + pair.quality[pair.other(receiver)].delay_s)
        self._plan_connection(pair)

    def next_event_s(self) -> float | None:
        """When the next thing happens that no island does itself; None if nothing is under way."""
        self.settle()
        return self._agenda[0][0] if self._agenda else None

    def settle(self) -> None:
        """Let everything happen that is due at the clock's time."""
        now_s = self.clock.now_s()
        while self._agenda and self._agenda[0][0] <= now_s:
            self._happen(heapq.heappop(self._agenda)[2])

    def pair(self, a: str, b: str) -> Pair:
        """The pair of two islands.

        Raises:
            LinkError: there is none.
        """
        pair = self._pairs.get((min(a, b), max(a, b)))
        if pair is None:
            raise LinkError("no peer of that name", got=repr(b), wanted=[n for n in self.islands if n != a])
        return pair

    def plan(self, time_s: float, what: Happening) -> None:
        """Let something happen at ``time_s``; what happens at one instant does in the order it was planned."""
        heapq.heappush(self._agenda, (time_s, self._order, what))
        self._order += 1

    def deliver(self, pair: Pair, sender: str, sent_s: float, event: MessageReceived | PublicationReceived) -> None:
        """Put ``event``, sent completely at ``sent_s``, on its way from ``sender``."""
        for arrival_s in pair.arrivals_s(sender, sent_s):
            self._transmit(pair, pair.other(sender), event, arrival_s)

    def flushed_s(self, name: str) -> float:
        """When all that an island has sent so far will have arrived."""
        return max((pair.flushed_s.get(name, 0.0) for pair in self._pairs_of(name)), default=0.0)

    def link(self, name: str) -> MemoryLink:
        """The link of an island that was opened and not closed or killed since."""
        return self._links[name]

    def freeze(self) -> bytes:
        """All of it but the clock, to go on exactly there: links, pairs, and what is under way."""
        return _agenda.encode(
            NetworkState(
                order=self._order,
                incarnations=self._incarnations,
                links={name: link.freeze() for name, link in self._links.items()},
                pairs=list(self._pairs.values()),
                agenda=sorted(self._agenda, key=lambda planned: planned[:2]),
            )
        )

    def thaw(self, frozen: bytes) -> None:
        """Become the network that was frozen, one of the same islands; ``link`` then gives its links.

        Raises:
            CheckpointError: It was one of other islands.
        """
        state = _agenda.decode(frozen)
        pairs = {pair.ends: pair for pair in state.pairs}
        if pairs.keys() != self._pairs.keys():
            raise CheckpointError("the network is one of other islands", got=sorted(pairs), wanted=sorted(self._pairs))
        self._order, self._agenda = state.order, state.agenda
        self._incarnations, self._pairs = state.incarnations, pairs
        self._links = {name: MemoryLink(self, name, link.incarnation) for name, link in state.links.items()}
        for name, link in state.links.items():
            self._links[name].thaw(link)

    def _happen(self, what: Happening) -> None:
        match what:
            case Arrive():
                self._arrive(what)
            case FinishSending(name, session, sent):
                if self.pair(name, sent.peer).session == session:
                    self._links[name].tell(sent)
            case Connect(ends, session):
                self._connect(self._pairs[ends], session)
            case Detect():
                self._detect(what)
            case Leave(name, incarnation, reason):
                self._leave(name, incarnation, reason)

    def _leave(self, name: str, incarnation: int, reason: str) -> None:
        """End an island that closed its link; the others are told."""
        if name not in self._links or self._links[name].incarnation != incarnation:
            return
        del self._links[name]
        for pair in self._pairs_of(name):
            pair.believers.discard(name)
            pair.end_session()
            self._disillusion(pair, reason)

    def _transmit(
        self, pair: Pair, receiver: str, event: MessageReceived | PublicationReceived, arrival_s: float
    ) -> None:
        self.plan(arrival_s, Arrive(pair.other(receiver), receiver, pair.session, event))

    def _arrive(self, what: Arrive) -> None:
        pair = self.pair(what.sender, what.receiver)
        if what.session != pair.session or not pair.up:
            return
        if pair.cut:
            pair.held.append((what.receiver, what.event))
        else:
            self._links[what.receiver].receive(what.event)

    def _pairs_of(self, name: str) -> list[Pair]:
        return [self.pair(name, other) for other in self.islands if other != name]

    def _plan_connection(self, pair: Pair) -> None:
        if not pair.up:
            self.plan(self.clock.now_s() + pair.round_trip_s(), Connect(pair.ends, pair.session))

    def _connect(self, pair: Pair, session: int) -> None:
        if pair.up or pair.cut or pair.session != session or not all(name in self._links for name in pair.ends):
            return
        self._disillusion(pair, "its process was replaced")
        pair.up = True
        pair.believers.update(pair.ends)
        for name in pair.ends:
            peer = pair.other(name)
            self._links[name].tell(PeerUp(peer, self._incarnations[peer], pair.round_trip_s()))

    def _plan_detection(self, pair: Pair, reason: str) -> None:
        self.plan(self.clock.now_s() + self._detection_s, Detect(pair.ends, pair.session, pair.cuts, reason))

    def _detect(self, what: Detect) -> None:
        pair = self._pairs[what.ends]
        still_cut = pair.cut and pair.cuts == what.cuts
        if pair.session == what.session and (still_cut or not pair.up):
            pair.end_session()
            self._disillusion(pair, what.reason)

    def _disillusion(self, pair: Pair, reason: str) -> None:
        for name in pair.ends:
            if name in pair.believers:
                pair.believers.discard(name)
                self._links[name].tell(PeerDown(pair.other(name), reason))

    def _refuse(self, link: MemoryLink) -> None:
        known = self._incarnations[link.name]
        what = f"incarnation {link.incarnation} of {link.name} is older than {known}, which is known already"
        link.die()
        link.tell(LinkAlarm(None, f"refused by all peers: {what}"))
        for name, other in sorted(self._links.items()):
            if name != link.name:
                other.tell(LinkAlarm(link.name, f"refused: {what}"))
