"""Eight toy islands in a storm: performs its faults, counts what they hit, and holds every island to its promises."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable

from isthmus.roster import partners
from isthmus.session.trade import FAR_REFERENCES, MOST_OVERDUE, NO_PAYLOAD
from isthmus.terms import Phase
from storm_faults import Fault, FaultKind
from toy_islands import Met, ToyIsland
from toy_world import Faults, World

DETECTION_S = 2.0
SLACK_S = 3.0
HOUR_S = 3600.0
DEAF_UNNOTICED = 0.3
"""The share of one-way cuts that no timeout of the link sees."""

STATES = ("rest", "knocking", "knocked", "complete", "shut", "adopting", "ending")
"""What a fragment's edge can be at when something happens to it."""

Hits = Counter[tuple[str, str]]
"""How often a fault hit an edge in a state."""


class StormWorld(World):
    """A world of islands that things happen to; ``hits`` counts them."""

    hits: Hits
    ended: dict[tuple[str, int], tuple[bool, dict[int, bytes]]]
    """By seat and incarnation of those that have ended: whether provisionally, and with which weights."""

    def prepare(self, delay_s: float) -> None:
        """Set what a world of its own has."""
        self.hits, self.ended, self.quality = Counter(), {}, Faults(delay_s=(0.05, delay_s))
        self.faults = self.quality
        self.peaceful = False
        self._storms: Counter[str] = Counter()
        self._rested_s: dict[str, float] = {}

    # -- faults --------------------------------------------------------------------------------------------------------

    def strike(self, fault: Fault) -> None:
        """Let a fault happen, and end when it does."""
        if self.peaceful:
            return
        end = getattr(self, f"_{fault.kind}")(fault)
        if end is not None:
            self.note(f"{fault.kind} {' '.join(fault.islands)} for {fault.for_s} s")
            for name in fault.islands:
                self._hit_edges(fault.kind, self[name])
            self.at(fault.for_s, lambda: None if self.peaceful else end())

    def peace(self) -> None:
        """End all faults at once."""
        self.note("peace")
        self.peaceful = True
        self.faults = Faults()
        self.blocked.clear()
        self.deaf.clear()
        for seat, island in list(self.islands.items()):
            island.fuse, island.disk_full, island.asleep, island.step_s = None, False, False, min(island.step_s, 1.0)
            if any(known.is_refused for other in self._started() for known in [other.memory.peers.get(seat)] if known):
                self.crash(seat)  # whoever refuses it takes it again once it has been started anew
            island.refuses_payload = lambda header: False
            if seat != island.name:
                self._end_twin(island.name, keeps_twin=False)
        for seat, island in self.islands.items():
            if not island.alive:
                self.start(seat, island.snapshots[-1] if island.snapshots else None)
        self.connect_all()

    def _started(self) -> list[ToyIsland]:
        return [island for island in self.islands.values() if hasattr(island, "core")]

    def hit(self, fault: str, seat: str, peer: str) -> None:
        """See ``World.hit``."""
        for fragment in self[seat].plan.fragments:
            self.hits[fault, state_of(self[seat], peer, fragment)] += 1

    def _hit_edges(self, kind: FaultKind, island: ToyIsland) -> None:
        if not hasattr(island, "core"):  # it has not started yet
            return
        for peer, fragment, _ in island.memory.all_edges():
            self.hits[kind, state_of(island, peer, fragment)] += 1

    def _crash(self, fault: Fault, restart: Callable[[ToyIsland], None] | None = None) -> Callable[[], None] | None:
        (name,) = fault.islands
        island = self[name]
        if not island.alive or self._has_twin(name):
            return None
        island.fuse = int(fault.how * 12)

        def back() -> None:
            island.fuse = None
            if island.alive:  # no order came to burn the fuse
                self.crash(name)
            (restart or self._restart)(island)

        return back

    def _restart(self, island: ToyIsland) -> None:
        del island.snapshots[:-4]
        self.start(island.seat, island.snapshots[-1] if island.snapshots else None)

    def _wipe(self, fault: Fault) -> Callable[[], None] | None:
        def restart(island: ToyIsland) -> None:
            island.snapshots.clear()
            self._restart(island)

        return self._crash(fault, restart)

    def _older(self, fault: Fault) -> Callable[[], None] | None:
        def restart(island: ToyIsland) -> None:
            del island.snapshots[:-4]
            if len(island.snapshots) > 1 and not has_promised(island):
                chosen = island.snapshots[int(fault.how * (len(island.snapshots) - 1))]
                if fault.how < 0.5:
                    del island.snapshots[island.snapshots.index(chosen) + 1 :]
                self.branched = True
                self.start(island.seat, chosen)
            else:
                self._restart(island)

        return self._crash(fault, restart)

    def _torn(self, fault: Fault) -> Callable[[], None] | None:
        def restart(island: ToyIsland) -> None:
            if not has_promised(island):
                del island.snapshots[-1:]
                self.branched = True
            self._restart(island)

        return self._crash(fault, restart)

    def _skew(self, fault: Fault) -> Callable[[], None] | None:
        def restart(island: ToyIsland) -> None:
            island.skew_s = (fault.how - 0.5) * 10 * HOUR_S
            self._restart(island)

        return self._crash(fault, restart)

    def _hang(self, fault: Fault) -> Callable[[], None] | None:
        island = self[fault.islands[0]]
        if not island.alive or island.asleep:
            return None
        island.asleep = True
        incarnation = island.incarnation

        def wake() -> None:
            if island.incarnation == incarnation:
                island.asleep, self._rested_s[island.seat] = False, self.now_s

        return wake

    def _freeze(self, fault: Fault) -> Callable[[], None] | None:
        """A hang of the whole machine, which the others' links notice."""
        wake, island = self._hang(fault), self[fault.islands[0]]
        if wake is None:
            return None
        incarnation = island.incarnation
        self._shut_off([(island.name, other) for other in island.plan.peers], min(DETECTION_S, fault.for_s / 2))

        def thaw() -> None:
            wake()
            if island.incarnation == incarnation:
                self._rested_s[island.seat] = self.now_s
            self._reach([(island.name, other) for other in island.plan.peers])

        return thaw

    def _slow(self, fault: Fault) -> Callable[[], None]:
        island, times = self[fault.islands[0]], 2 + 6 * fault.how
        island.step_s *= times

        def fast() -> None:
            island.step_s /= times

        return fast

    def _full(self, fault: Fault) -> Callable[[], None]:
        island = self[fault.islands[0]]
        island.disk_full = True

        def free() -> None:
            island.disk_full = False

        return free

    def _garbage(self, fault: Fault) -> Callable[[], None]:
        """What an island publishes decodes to no numbers, until it is started again."""
        (name,) = fault.islands
        until = self[name].incarnation
        for other in self.islands.values():
            before = other.refuses_payload
            other.refuses_payload = lambda header, before=before: (
                (header.sender == name and header.sender_incarnation == until) or before(header)
            )

        def again() -> None:
            island = self[name]
            if island.alive and island.incarnation == until and not self._has_twin(name):
                island.snapshot()
                self.crash(name)
                self._restart(island)

        return again

    def _twin(self, fault: Fault) -> Callable[[], None] | None:
        (name,) = fault.islands
        if not self[name].alive or self[name].asleep or self._has_twin(name) or has_promised(self[name]):
            return None
        self.branched = True
        self.start_twin(name)
        return lambda: self._end_twin(name, keeps_twin=fault.how < 0.5)

    def _has_twin(self, name: str) -> bool:
        return f"{name}*" in self.islands

    def _end_twin(self, name: str, *, keeps_twin: bool) -> None:
        """End both processes of an island; it is started again from one of the two disks."""
        twin, island = self[f"{name}*"], self[name]
        for each in (twin, island):
            if each.alive:
                self.crash(each.seat)
        del self.islands[twin.seat]
        if keeps_twin:
            island.snapshots = twin.snapshots
        island.fuse = None
        self._restart(island)

    def _cut(self, fault: Fault) -> Callable[[], None]:
        return self._cut_off([fault.islands])

    def _partition(self, fault: Fault) -> Callable[[], None]:
        others = [name for name in self[fault.islands[0]].plan.peers if name not in fault.islands]
        return self._cut_off(list(itertools.product(fault.islands, others)))

    def _deaf(self, fault: Fault) -> Callable[[], None]:
        """One direction of a link is lost; the link finds out after a while, or never."""
        direction = (fault.islands[0], fault.islands[1])
        self.deaf[direction] += 1
        noticed = fault.how >= DEAF_UNNOTICED and fault.for_s > DETECTION_S
        if noticed:
            self._shut_off([direction], DETECTION_S)

        def hear() -> None:
            self.deaf[direction] -= 1
            if noticed:
                self._reach([direction])

        return hear

    def _cut_off(self, pairs: list[tuple[str, ...]]) -> Callable[[], None]:
        self._shut_off(pairs, 0.0)
        return lambda: self._reach(pairs)

    def _shut_off(self, pairs: list[tuple[str, ...]], after_s: float) -> None:
        def shut() -> None:
            for one, other in pairs:
                self.blocked[frozenset((one, other))] += 1
                for a, b in itertools.product(self._seats_of(one), self._seats_of(other)):
                    self.cut(a, b)

        if after_s:
            self.at(after_s, lambda: None if self.peaceful else shut())
        else:
            shut()

    def _reach(self, pairs: list[tuple[str, ...]]) -> None:
        for one, other in pairs:
            self.blocked[frozenset((one, other))] -= 1
            for a, b in itertools.product(self._seats_of(one), self._seats_of(other)):
                self.connect(a, b)

    def _seats_of(self, name: str) -> list[str]:
        return [seat for seat in (name, f"{name}*") if seat in self.islands]

    def _loss(self, fault: Fault) -> Callable[[], None]:
        return self._storm("loss", 0.3)

    def _corruption(self, fault: Fault) -> Callable[[], None]:
        return self._storm("corruption", 0.2)

    def _duplicates(self, fault: Fault) -> Callable[[], None]:
        return self._everywhere("duplicates", self._storm("duplicates", 0.5))

    def _reordering(self, fault: Fault) -> Callable[[], None]:
        low, high = self.quality.delay_s
        return self._everywhere("reordering", self._storm("delay_s", (low, high + 8 * fault.how)))

    def _everywhere(self, kind: FaultKind, end: Callable[[], None]) -> Callable[[], None]:
        for island in self.islands.values():
            self._hit_edges(kind, island)
        return end

    def _storm(self, name: str, value: object) -> Callable[[], None]:
        self._storms[name] += 1
        setattr(self.faults, name, value)

        def calm() -> None:
            self._storms[name] -= 1
            if not self._storms[name]:
                setattr(self.faults, name, (0.05, 0.1) if name == "delay_s" else 0.0)

        return calm

    # -- promises ------------------------------------------------------------------------------------------------------

    def acted(self, island: ToyIsland) -> None:
        """Look at an island that has acted; end its training when the budget is spent."""
        if island.core.phase is Phase.TRAINING and island.core.progress >= 1.0:
            island.snapshot()
            island.finish()
        self._waits_for_nobody(island)
        self._remembers_little(island)
        if island.core.phase is Phase.DONE and (key := (island.seat, island.incarnation)) not in self.ended:
            self.ended[key] = island.core.provisional, dict(island.held.slow)
            if not island.disk_full:
                island.snapshot()

    def met(self, island: ToyIsland, key: tuple[str, int, int, int], met: Met) -> None:
        """Hold what an end has applied against what the other end has."""
        peer, fragment, epoch, version = key
        other = self.islands[peer].held.lineage.get((island.name, fragment, epoch, version))
        if other is None or other.before != met.before or self.branched:
            return
        assert other[:3] == met[:3], f"{island.name} and {peer} applied other pairs at {key}"
        drift = abs(other.correction + met.correction)
        assert drift < 1e-9, f"the corrections of {island.name} and {peer} do not cancel at {key}: {drift}"
        theirs = self.islands[peer].edge(island.name, fragment)
        if (theirs.epoch, theirs.version) == (epoch, version + 1):
            assert theirs.reference == met.after, f"{island.name} and {peer} hold other references after {key}"

    def _waits_for_nobody(self, island: ToyIsland) -> None:
        since_s = self.now_s - max(island.started_s, self._rested_s.get(island.seat, 0.0))
        bound_s = island.plan.join_wait_s + SLACK_S + 2 * island.step_s
        waits = island.core.phase is Phase.JOINING and island.memory.complete
        assert not waits or since_s <= bound_s, f"{island.name} waits for {island.core.waits_for} for {since_s:.1f} s"

    def _remembers_little(self, island: ToyIsland) -> None:
        if island.core.phase is not Phase.TRAINING:
            return
        names = {slot: name for name, slot in island.plan.peers.items()}
        near = {names[partner.slot] for partner in partners(island.plan.slot, (*names, island.plan.slot))}
        for fragment in island.plan.fragments:
            far = [
                peer
                for peer in island.plan.peers
                if peer not in near
                and (edge := island.edge(peer, fragment)).version
                and edge.reference
                and not (edge.mine or edge.theirs)
            ]
            assert len(far) <= FAR_REFERENCES + MOST_OVERDUE, f"{island.name} keeps references of {far}"

    @property
    def spread(self) -> float:
        """How far the islands' slow weights are apart, over the fragments."""
        numbers = [island.held.numbers.slow for island in self.islands.values()]
        fragments = self[next(iter(self.islands))].plan.fragments
        apart = [
            max(each.get(f, 0.0) for each in numbers) - min(each.get(f, 0.0) for each in numbers) for f in fragments
        ]
        assert all(map(math.isfinite, apart)), "a weight is not finite"
        return max(apart)


def state_of(island: ToyIsland, peer: str, fragment: int) -> str:
    """Which of ``STATES`` an edge is in at this end."""
    edge = island.edge(peer, fragment)
    mine, theirs = edge.mine, edge.theirs
    if any(each is not None and each.ending for each in (mine, theirs)):
        return "ending"
    if any(each is not None and each.codec == NO_PAYLOAD for each in (mine, theirs)):
        return "adopting"
    if not edge.open:
        return "shut"
    if mine and theirs:
        return "complete"
    return "knocking" if mine else "knocked" if theirs else "rest"


def has_promised(island: ToyIsland) -> bool:
    """Whether an island has promised or voted at the end: what holds that must not be lost."""
    return bool(island.memory.end_plan) or island.core.phase in (Phase.FINISHING, Phase.DONE)
