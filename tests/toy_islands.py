"""Islands without tensors: the real core and payload store, with references that are hash chains.

A reference is ``sha256(reference | publications in order of slots | weights)``. A publication's bytes start with the
reference that it was coded against, so that applying it to another one, a fork, is seen at once.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from isthmus import schedule
from isthmus.codec import WHOLE_CODEC
from isthmus.meeting import Edge
from isthmus.session.core import Core
from isthmus.session.memory import Memory, Plan
from isthmus.session.orders import (
    ArrivalRefused,
    Arrive,
    Arrived,
    Clear,
    Depart,
    Departed,
    Event,
    Mode,
    Order,
    Publish,
    Published,
    Resend,
    Restore,
    Result,
    Save,
    Saved,
    Send,
    Warn,
    Withheld,
)
from isthmus.session.payloads import Payloads
from isthmus.session.slow import merge_weights
from isthmus.session.trade import LOSSLESS, NO_PAYLOAD
from isthmus.terms import NO_REFERENCE, Header, MessageReceived, Phase, PublicationReceived, SignedHeader
from toy_numbers import NUM_BYTES, Numbers, pack, unpack

if TYPE_CHECKING:
    from toy_world import World

NAMES = tuple(
    ["ash", "birch", "cedar", "dogwood", "elm", "fir", "ginkgo", "hazel", "ironwood", "juniper", "katsura", "larch"]
)
MAX_ORDERS_PER_PUMP = 1000


def reference_of(text: str) -> bytes:
    """A made-up reference hash."""
    return hashlib.sha256(text.encode()).digest()


def make_plans(num_islands: int, num_fragments: int = 1, **changes: object) -> dict[str, Plan]:
    """Plans of islands that begin alike."""
    names = NAMES[:num_islands]
    base = Plan(
        run="run",
        name="",
        slot=0,
        peers={},
        layout=b"layout",
        initial=tuple(reference_of(f"init {fragment}") for fragment in range(num_fragments)),
        window_steps=max(2, num_fragments),
        flight_steps=1,
        outer=schedule.OuterPlan(schedule.OuterStep(1.2, 0.2)),
        token_budget=10**12,
        save_every_steps=5,
        join_wait_s=4.0,
        finish_wait_s=60.0,
        hello_every_s=2.0,
    )
    return {
        name: replace(
            base, name=name, slot=slot, peers={other: s for s, other in enumerate(names) if other != name}, **changes
        )
        for slot, name in enumerate(names)
    }


class Met(NamedTuple):
    """One meeting as one end applied it; ids in order of slots, the correction weighted with this end's share."""

    before: bytes
    publications: tuple[int, ...]
    after: bytes
    correction: float


Key = tuple[str, int, int, int]
"""(peer, fragment, epoch, version) of a meeting."""


@dataclass
class Holdings:
    """What a toy engine holds besides the core's memory, and what it did to get there; a checkpoint keeps it."""

    references: dict[tuple[str, int], bytes] = field(default_factory=dict)
    payloads: dict[tuple[str, int], bytes] = field(default_factory=dict)
    lineage: dict[Key, Met] = field(default_factory=dict)
    counted: dict[tuple[str, int], int] = field(default_factory=dict)
    slow: dict[int, bytes] = field(default_factory=dict)
    fast: dict[int, bytes] = field(default_factory=dict)
    numbers: Numbers = field(default_factory=Numbers)

    def copy(self) -> Holdings:
        """An independent copy."""
        return Holdings(
            dict(self.references),
            dict(self.payloads),
            dict(self.lineage),
            dict(self.counted),
            dict(self.slow),
            dict(self.fast),
            self.numbers.copy(),
        )


class Crash(Exception):
    """The island's process ends between two orders."""


@dataclass
class ToyIsland:
    """One island: performs the core's orders on hash chains. ``fuse`` is the number of orders until it crashes.

    ``seat`` tells it from another process of the same island; ``skew_s`` is by how much its clock is wrong.
    """

    world: World
    plan: Plan
    step_s: float
    tokens_per_step: int = 100
    seat: str = ""
    incarnation: int = 0
    alive: bool = False
    asleep: bool = False
    skew_s: float = 0.0
    noise: float = 0.0
    drift: float = 0.0
    started_s: float = 0.0
    trains: bool = True
    fuse: int | None = None
    inbox: list[Event] = field(default_factory=list)
    snapshots: list[tuple[bytes, Holdings]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    modes: Counter[Mode] = field(default_factory=Counter)
    departures: list[Depart] = field(default_factory=list)
    saves: int = 0
    disk_full: bool = False
    refuses_payload: Callable[[Header], bool] = lambda header: False
    withholds: Callable[[Header], bool] = lambda header: False
    core: Core = field(init=False)
    held: Holdings = field(init=False)
    payloads: Payloads = field(init=False)

    def __post_init__(self) -> None:
        self.seat = self.seat or self.plan.name

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def memory(self) -> Memory:
        return self.core.memory

    def edge(self, peer: str, fragment: int = 0) -> Edge:
        return self.memory.edges[peer][fragment]

    def start(self, snapshot: tuple[bytes, Holdings] | None = None) -> None:
        """Start anew, from a snapshot or from nothing."""
        self.incarnation = self.world.next_incarnation(self.name)
        data, held = snapshot or (None, Holdings())
        memory = Memory.fresh(self.plan) if data is None else Memory.decode(data, self.plan)
        self.core = Core(
            self.plan, memory, incarnation=self.incarnation, fresh=data is None, layout_lines=(f"of {self.name}",)
        )
        self.held, self.payloads = held.copy(), Payloads()
        self.payloads.load_state_dict(self.held.payloads)
        self.inbox, self.fuse, self.alive, self.asleep = [], None, True, False
        self.started_s = self.world.now_s

    def snapshot(self) -> None:
        """What ``Save`` writes."""
        self.held.payloads = dict(self.payloads.state_dict())
        self.snapshots.append((self.memory.encode(), self.held.copy()))

    def act(self) -> None:
        """One training step where the island trains, then all that is to be done at its boundary."""
        if self.core.phase is Phase.TRAINING and self.trains:
            for fragment in self.plan.fragments:
                noise = self.noise * self.world.rng.uniform(-1.0, 1.0) if self.noise else 0.0
                self.held.numbers.train(fragment, self.drift + noise)
            self.core.trained(tokens=self.tokens_per_step, cursor=self.memory.cursor + 1)
        self.pump()

    def finish(self) -> None:
        """Begin the end of the run."""
        self.core.finish(self.now_s)
        self.pump()

    @property
    def now_s(self) -> float:
        """What its clock says."""
        return self.world.now_s + self.skew_s

    def pump(self) -> None:
        """As ``Engine.pump``."""
        results: list[Event] = self.inbox
        self.inbox = []
        for event in results:
            if isinstance(event, PublicationReceived):
                self.payloads.put(event.signed.header, event.payload)
        num_orders = 0
        while orders := self.core.advance(self.memory.step, results, self.now_s):
            results = [result for order in orders if (result := self._burn(order)) is not None]
            num_orders += len(orders)
            assert num_orders < MAX_ORDERS_PER_PUMP, f"{self.name} never comes to rest: {orders[:3]}"
        self.payloads.sweep(self.name, self.memory)

    def reference(self, peer: str, fragment: int) -> bytes:
        return self.held.references.get((peer, fragment), self.plan.initial[fragment])

    def _burn(self, order: Order) -> Result | None:
        if self.fuse is not None:
            if self.fuse == 0:
                raise Crash
            self.fuse -= 1
        return self._perform(order)

    def _perform(self, order: Order) -> Result | None:
        match order:
            case Send(peer, message):
                self.world.count(self.name, message)
                self.world.carry(self, peer, MessageReceived(self.name, message))
            case Depart(fragment, outer_lr, momentum):
                self.departures.append(order)
                self.held.numbers.depart(fragment, outer_lr, momentum)
                self._train(fragment, f"{self.name} {self.memory.tokens}".encode())
                return Departed(fragment)
            case Restore(fragment):
                self.held.slow[fragment] = self.held.fast[fragment]
                self.held.numbers.slow[fragment] = self.held.numbers.fast.get(fragment, 0.0)
            case Publish():
                return self._publish(order)
            case Resend(header):
                self._carry(header)
            case Arrive():
                return self._arrive(order)
            case Clear(peer, fragment):
                self.held.references[peer, fragment] = NO_REFERENCE
                self.held.numbers.common[peer, fragment] = 0.0
            case Save(durable):
                self.saves += 1
                if not self.disk_full:
                    self.snapshot()
                return Saved(not self.disk_full) if durable else None
            case Warn(what):
                self.warnings.append(what)
        return None

    def _publish(self, order: Publish) -> Result:
        first = order.headers[0]
        if self.withholds(first):
            return Withheld(first.receiver, first.fragment, "a value is not finite")
        whole = tuple(header.coded(header.codec or "int4", 1) for header in order.headers)
        for header in whole:
            against = self.reference(header.receiver, header.fragment)
            assert against == header.reference, f"{self.name}: the core's reference is not the engine's: {header}"
        coded = first.reference.ljust(32, b"\0") + f"{self.name} {first.publication}".encode()
        number = self.held.numbers.code(first.receiver, first.fragment, lossless=first.codec == LOSSLESS)
        if first.codec == WHOLE_CODEC:
            coded, number = self.held.slow[first.fragment], self.held.numbers.slow[first.fragment]
        elif first.ending:
            coded = b""
        self.payloads.put(whole[0], memoryview(coded + pack(number)))
        for header in whole:
            self._carry(header)
        return Published(whole, order.answer)

    def _carry(self, header: Header) -> None:
        signed = SignedHeader(header, b"", b"")
        self.world.published[self.name] += 1
        self.world.carry(self, header.receiver, PublicationReceived(self.name, signed, self.payloads.get(header)))

    def _arrive(self, order: Arrive) -> Result:
        for peer, header in zip(order.peers, order.theirs, strict=True):
            if self.refuses_payload(header):
                return ArrivalRefused(peer, order.fragment, "not finite")
        payloads = [bytes(self.payloads.get(header)) for header in order.headers]
        said, coded = [each[:-NUM_BYTES] for each in payloads], [unpack(each) for each in payloads]
        before = self.reference(order.peers[0], order.fragment)
        if order.mode is Mode.MERGE:
            return self._merge(order, said, coded, before)
        assert all(each[:32] == before.ljust(32, b"\0") for each in said), f"FORK at {self.name}: {order}"
        weights = merge_weights(order)
        for weight, header in zip(weights, order.headers, strict=True):
            assert weight == 0.0 or header.codec != NO_PAYLOAD, (
                f"an empty publication has weight at {self.name}: {order}"
            )
        assert order.mode is not Mode.CORRECT or order.mine.codec != NO_PAYLOAD, (
            f"corrects without a publication: {order}"
        )
        digest = hashlib.sha256(before + b"".join(each for each, weight in zip(said, weights, strict=True) if weight))
        digest.update(repr(weights).encode())
        correction = self.held.numbers.arrive(order, coded, weights)
        for peer, theirs in zip(order.peers, order.theirs, strict=True):
            self._enter(order, peer, theirs, before, digest.digest(), correction)
        self.modes[order.mode] += 1
        if order.mode is not Mode.CORRECT or weights[order.place] != 1.0:  # a correction of nothing changes nothing
            self._train(order.fragment, digest.digest())
        return Arrived(order.peers, order.fragment, digest.digest())

    def _merge(self, order: Arrive, said: list[bytes], coded: list[float], before: bytes) -> Result:
        """The mean of what both hold: of one that has all the weight just that, else bits that only their sum has."""
        weights = merge_weights(order)
        assert all(each or not weight for each, weight in zip(said, weights, strict=True)), (
            f"nothing has weight: {order}"
        )
        terms = [(each, weight) for each, weight in zip(said, weights, strict=True) if weight]
        outcome = terms[0][0] if len(terms) == 1 else hashlib.sha256(repr(terms).encode()).digest()
        self.held.numbers.merge(order, coded, weights)
        self._enter(order, order.peers[0], order.theirs[0], before, outcome, 0.0)
        self.held.slow[order.fragment] = outcome
        self.modes[order.mode] += 1
        return Arrived(order.peers, order.fragment, outcome)

    def _train(self, fragment: int, what: bytes) -> None:
        """Move slow and fast weights as only this does."""
        for weights in (self.held.slow, self.held.fast):
            weights[fragment] = hashlib.sha256(weights.get(fragment, b"") + what).digest()

    def _enter(self, order: Arrive, peer: str, theirs: Header, before: bytes, after: bytes, correction: float) -> None:
        edge, fragment = self.edge(peer, order.fragment), order.fragment
        for header in (order.mine, theirs):
            assert (header.epoch, header.version, header.reference) == (edge.epoch, edge.version, before), order
        key = (peer, fragment, edge.epoch, edge.version)
        assert key not in self.held.lineage, f"{self.name} applied {key} twice"
        publications = tuple(header.publication for header in order.headers)
        self.held.lineage[key] = met = Met(before, publications, after, correction)
        self.world.met(self, key, met)
        counted = self.held.counted.get((peer, fragment), 0)
        if not theirs.final and theirs.weight_tokens and not self.world.branched:
            since = theirs.tokens - theirs.weight_tokens
            assert since >= counted, f"{self.name} counts tokens of {peer} twice: {since} < {counted}: {theirs}"
        self.held.counted[peer, fragment] = max(counted, theirs.tokens)
        self.held.references[peer, fragment] = after
