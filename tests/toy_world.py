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
from isthmus.terms import Hello, Layout, MessageReceived, PeerDown, PeerUp, PublicationReceived
from toy_islands import Crash, Holdings, ToyIsland


@dataclass
class Faults:
    """How the network misbehaves."""

    loss: float = 0.0
    duplicates: float = 0.0
    delay_s: tuple[float, float] = (0.05, 0.05)


class World:
    """Islands, the network between them, and the virtual clock of both.

    ``branched`` says that an island went back to an older checkpoint while a newer one stayed: from then on it may
    change between two pasts, and what a partner saw of one need not be known to the other.
    """

    def __init__(self, plans: dict[str, Plan], *, seed: int = 0, step_s: dict[str, float] | None = None) -> None:
        self.rng = Random(seed)
        self.now_s = 0.0
        self.branched = False
        self.faults = Faults()
        self.islands = {name: ToyIsland(self, plan, (step_s or {}).get(name, 1.0)) for name, plan in plans.items()}
        self.published: Counter[str] = Counter()
        self.hellos: Counter[str] = Counter()
        self.layouts: Counter[str] = Counter()
        self.trace: list[str] = []
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._joined: Counter[frozenset[str]] = Counter()
        self._connected: set[frozenset[str]] = set()

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

    def start(self, name: str, snapshot: tuple[bytes, Holdings] | None = None) -> ToyIsland:
        """Start an island and connect it with all that live."""
        island = self.islands[name]
        island.start(snapshot)
        self.note(f"start {name} incarnation {island.incarnation} {'from a snapshot' if snapshot else 'from nothing'}")
        incarnation = island.incarnation
        self.at(self.rng.uniform(0.0, 0.1), lambda: self._act(name, incarnation))
        for other in self.islands.values():
            if other is not island and other.alive:
                self.connect(name, other.name)
        return island

    def start_all(self) -> None:
        """Start every island from nothing."""
        for name in self.islands:
            self.start(name)

    def crash(self, name: str) -> None:
        """End an island's process; what it sent stays on its way."""
        island = self.islands[name]
        self.note(f"crash {name} at step {island.memory.step}")
        island.alive = False
        for other in self.islands.values():
            if other is not island:
                self._disconnect(name, other.name)

    def connect(self, one: str, other: str) -> None:
        """Join two living islands; each hears of it in its own time."""
        pair = frozenset((one, other))
        if pair in self._connected or not (self.islands[one].alive and self.islands[other].alive):
            return
        self._connected.add(pair)
        self._joined[pair] += 1
        for end, peer in ((one, other), (other, one)):
            self._tell(pair, end, peer, up=True)

    def cut(self, one: str, other: str) -> None:
        """Part two islands; what is on its way between them is lost."""
        self.note(f"cut {one} {other}")
        self._disconnect(one, other)
        self._queue = [entry for entry in self._queue if getattr(entry[2], "pair", None) != {one, other}]
        heapq.heapify(self._queue)

    def carry(self, sender: str, receiver: str, event: MessageReceived | PublicationReceived) -> None:
        """Carry something, unless it is lost."""
        pair = frozenset((sender, receiver))
        if pair not in self._connected:
            return
        for _ in range(2 if self.rng.random() < self.faults.duplicates else 1):
            if self.rng.random() >= self.faults.loss:
                self.at(self.rng.uniform(*self.faults.delay_s), _Delivery(self, pair, receiver, event))

    def count(self, sender: str, message: object) -> None:
        """Count what tells a storm."""
        if isinstance(message, Hello):
            self.hellos[sender] += 1
        elif isinstance(message, Layout):
            self.layouts[sender] += 1

    def note(self, what: str) -> None:
        """Write a line of the schedule."""
        self.trace.append(f"{self.now_s:7.2f} s  {what}")

    def _disconnect(self, one: str, other: str) -> None:
        pair = frozenset((one, other))
        if pair in self._connected:
            self._connected.remove(pair)
            for end, peer in ((one, other), (other, one)):
                self._tell(pair, end, peer, up=False)

    def _tell(self, pair: frozenset[str], end: str, peer: str, *, up: bool) -> None:
        joined = self._joined[pair]

        def tell() -> None:
            if self.islands[end].alive and self._joined[pair] == joined and (pair in self._connected) is up:
                event = PeerUp(peer, self.islands[peer].incarnation) if up else PeerDown(peer, "lost")
                self.islands[end].inbox.append(event)

        self.at(self.rng.uniform(0.0, 1.0 if self.faults.loss else 0.1), tell)

    def _act(self, name: str, incarnation: int) -> None:
        island = self.islands[name]
        if not island.alive or island.incarnation != incarnation:
            return
        try:
            island.act()
        except Crash:
            self.crash(name)
            return
        self.at(island.step_s * self.rng.uniform(0.9, 1.1), lambda: self._act(name, incarnation))


@dataclass(frozen=True)
class _Delivery:
    """Something on its way."""

    world: World
    pair: frozenset[str]
    receiver: str
    event: Event

    def __call__(self) -> None:
        island = self.world[self.receiver]
        if island.alive:
            island.inbox.append(self.event)
