"""A network and a clock for toy islands: what is sent is lost, repeated, reordered and cut off as told."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from isthmus.session.memory import Plan
from isthmus.session.orders import Event
from isthmus.terms import Hello, Layout, LinkAlarm, MessageReceived, PeerDown, PeerUp, PublicationReceived
from toy_islands import Crash, Holdings, Key, Met, ToyIsland

Sent = MessageReceived | PublicationReceived


@dataclass
class Faults:
    """How the network misbehaves."""

    loss: float = 0.0
    duplicates: float = 0.0
    corruption: float = 0.0
    delay_s: tuple[float, float] = (0.05, 0.05)


class World:
    """Islands, the network between them, and the virtual clock of both.

    Processes sit in seats; a seat has the name of its island unless a second process of that runs. A link takes what
    the real one does: of two processes of one island the one of the higher incarnation, where it is known.

    ``branched`` says that an island went back to an older checkpoint while a newer one stayed: from then on it may
    change between two pasts, and what a partner saw of one need not be known to the other.
    """

    def __init__(self, plans: dict[str, Plan], *, seed: int = 0, step_s: dict[str, float] | None = None) -> None:
        self.rng = Random(seed)
        self.now_s = 0.0
        self.branched = False
        self.faults = Faults()
        self.islands = {name: ToyIsland(self, plan, (step_s or {}).get(name, 1.0)) for name, plan in plans.items()}
        self.blocked: Counter[frozenset[str]] = Counter()
        self.deaf: Counter[tuple[str, str]] = Counter()
        self.published: Counter[str] = Counter()
        self.hellos: Counter[str] = Counter()
        self.layouts: Counter[str] = Counter()
        self.trace: list[str] = []
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._starts: Counter[str] = Counter()
        self._known: dict[tuple[str, str], int] = {}
        self._joined: Counter[frozenset[str]] = Counter()
        self._connected: set[frozenset[str]] = set()
        self._seats: dict[tuple[str, str], str] = {}

    def __getitem__(self, name: str) -> ToyIsland:
        return self.islands[name]

    def at(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do something later."""
        heapq.heappush(self._queue, (self.now_s + delay_s, next(self._numbers), action))

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Let time pass until ``until``; whether it came true."""
        end_s = self.now_s + seconds
        while not until():
            if not self._queue or self._queue[0][0] > end_s:
                self.now_s = end_s
                return until()
            self.now_s, _, action = heapq.heappop(self._queue)
            action()
        return True

    def next_incarnation(self, name: str) -> int:
        """The number of an island's next start, above all before."""
        self._starts[name] += 1
        return self._starts[name]

    def start(self, seat: str, snapshot: tuple[bytes, Holdings] | None = None) -> ToyIsland:
        """Start an island and connect it with all that live."""
        island = self.islands[seat]
        island.start(snapshot)
        self.note(f"start {seat} incarnation {island.incarnation} {'from a snapshot' if snapshot else 'from nothing'}")
        incarnation = island.incarnation
        self.at(self.rng.uniform(0.0, 0.1), lambda: self._act(seat, incarnation))
        for other in self.islands.values():
            if other.name != island.name and other.alive:
                self.connect(seat, other.seat)
        return island

    def start_all(self) -> None:
        """Start every island from nothing."""
        for name in self.islands:
            self.start(name)

    def start_twin(self, name: str) -> ToyIsland:
        """Start a second process of an island from a copy of its disk."""
        original = self.islands[name]
        twin = ToyIsland(self, original.plan, original.step_s, original.tokens_per_step, seat=f"{name}*")
        twin.snapshots, twin.noise = original.snapshots.copy(), original.noise
        self.islands[twin.seat] = twin
        return self.start(twin.seat, twin.snapshots[-1] if twin.snapshots else None)

    def crash(self, seat: str) -> None:
        """End an island's process; what it sent stays on its way."""
        island = self.islands[seat]
        self.note(f"crash {seat} at step {island.memory.step}")
        island.alive = False
        self.part(seat)

    def part(self, seat: str) -> None:
        """End all connections of a process."""
        for other in self.islands.values():
            if other.seat != seat:
                self._disconnect(seat, other.seat)

    def connect(self, one: str, other: str) -> None:
        """Join two living islands; each hears of it in its own time."""
        pair = frozenset((one, other))
        ends = (self.islands[one], self.islands[other])
        dead = not all(each.alive for each in ends) or ends[0].name == ends[1].name
        if dead or pair in self._connected or self.blocked[frozenset(each.name for each in ends)]:
            return
        for end, peer in (ends, ends[::-1]):
            if peer.incarnation < self._known.get((end.seat, peer.name), 0):
                return  # an older process of that island: refused
        for end, peer in (ends, ends[::-1]):
            self._known[end.seat, peer.name] = peer.incarnation
            if (seat := self._seats.get((end.seat, peer.name))) is not None:
                self._disconnect(end.seat, seat)
        self._connected.add(pair)
        self._joined[pair] += 1
        for end, peer in (ends, ends[::-1]):
            self._seats[end.seat, peer.name] = peer.seat
            self._tell(pair, end, peer, up=True)

    def connect_all(self) -> None:
        """Join all that can reach each other."""
        for one, other in itertools.combinations(self.islands, 2):
            self.connect(one, other)

    def cut(self, one: str, other: str) -> None:
        """Part two islands; what is on its way between them is lost."""
        self.note(f"cut {one} {other}")
        self._disconnect(one, other)
        self._queue = [entry for entry in self._queue if getattr(entry[2], "pair", None) != {one, other}]
        heapq.heapify(self._queue)

    def carry(self, sender: ToyIsland, receiver: str, event: Sent) -> None:
        """Carry something, unless it is lost."""
        seat = self._seats.get((sender.seat, receiver))
        if seat is None or self.deaf[sender.name, receiver]:
            return
        pair = frozenset((sender.seat, seat))
        for _ in range(2 if self.rng.random() < self.faults.duplicates else 1):
            if self.rng.random() < self.faults.loss:
                self.hit("loss", sender.seat, receiver)
            elif self.faults.corruption and self.rng.random() < self.faults.corruption:
                self.hit("corruption", sender.seat, receiver)
                self.islands[seat].inbox.append(LinkAlarm(sender.name, "a chunk does not hash to its root"))
            else:
                self.at(self.rng.uniform(*self.faults.delay_s), _Delivery(self, pair, seat, event))

    def hit(self, fault: str, seat: str, peer: str) -> None:
        """A fault of the network has hit something that was sent."""

    def count(self, sender: str, message: object) -> None:
        """Count what tells a storm."""
        if isinstance(message, Hello):
            self.hellos[sender] += 1
        elif isinstance(message, Layout):
            self.layouts[sender] += 1

    def note(self, what: str) -> None:
        """Write a line of the schedule."""
        self.trace.append(f"{self.now_s:7.2f} s  {what}")

    def acted(self, island: ToyIsland) -> None:
        """An island has acted; a test may look at it here."""

    def met(self, island: ToyIsland, key: Key, met: Met) -> None:
        """An island has applied a meeting; a test may look at it here."""

    def _disconnect(self, one: str, other: str) -> None:
        pair = frozenset((one, other))
        if pair in self._connected:
            self._connected.remove(pair)
            ends = (self.islands[one], self.islands[other])
            for end, peer in (ends, ends[::-1]):
                self._seats.pop((end.seat, peer.name), None)
                self._tell(pair, end, peer, up=False)

    def _tell(self, pair: frozenset[str], end: ToyIsland, peer: ToyIsland, *, up: bool) -> None:
        joined, incarnations = self._joined[pair], (end.incarnation, peer.incarnation)

        def tell() -> None:
            current = self._joined[pair] == joined and (pair in self._connected) is up
            replaced = not up and (end.seat, peer.name) in self._seats  # another process of that island is there now
            if end.alive and end.incarnation == incarnations[0] and current and not replaced:
                end.inbox.append(PeerUp(peer.name, incarnations[1]) if up else PeerDown(peer.name, "lost"))

        self.at(self.rng.uniform(0.0, 1.0 if self.faults.loss else 0.1), tell)

    def _act(self, seat: str, incarnation: int) -> None:
        island = self.islands.get(seat)
        if island is None or not island.alive or island.incarnation != incarnation:
            return
        if not island.asleep:
            try:
                island.act()
                self.acted(island)
            except Crash:
                self.crash(seat)
                return
        self.at(island.step_s * self.rng.uniform(0.9, 1.1), lambda: self._act(seat, incarnation))


@dataclass(frozen=True)
class _Delivery:
    """Something on its way."""

    world: World
    pair: frozenset[str]
    receiver: str
    event: Event

    def __call__(self) -> None:
        island = self.world.islands.get(self.receiver)
        if island is not None and island.alive:
            island.inbox.append(self.event)
