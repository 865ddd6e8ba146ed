"""Runs engines on a virtual clock, each at its own pace, until their run is over."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from isthmus.clock import VirtualClock
from isthmus.session import Engine
from isthmus.terms import Phase
from isthmus.transport import MemoryLink, MemoryNetwork

_TICK_S = 0.05
"""How often a waiting island looks around, in virtual seconds."""


@dataclass(kw_only=True)
class Resident:
    """One island of a virtual world.

    Attributes:
        name: Its name in the network.
        make: Makes its engine for a link and an incarnation; called again after every restart.
        train: Trains one step on the engine's model; returns the step's tokens and the data cursor after it.
        step_s: Virtual seconds of one step.
    """

    name: str
    make: Callable[[MemoryLink, int], Engine]
    train: Callable[[], tuple[int, int]]
    step_s: float
    incarnation: int = 0
    engine: Engine | None = field(default=None, init=False)

    @property
    def is_over(self) -> bool:
        """Whether its run has ended here."""
        return self.engine is not None and self.engine.phase is Phase.DONE


class World:
    """A virtual clock, a network, and the islands on it.

    At one instant all steps are taken before anything sent at it arrives, in order of the islands' names.

    Args:
        clock: Advanced by this world alone.
        network: The islands' network, on the same clock.
    """

    def __init__(self, clock: VirtualClock, network: MemoryNetwork) -> None:
        self.clock, self.network = clock, network
        self.residents: dict[str, Resident] = {}
        self._agenda: list[tuple[float, str, int]] = []

    def start(self, resident: Resident) -> None:
        """Start an island, or start it again with a raised incarnation."""
        resident.incarnation += 1
        self.residents[resident.name] = resident
        resident.engine = resident.make(self.network.open(resident.name, resident.incarnation), resident.incarnation)
        self._plan(resident, self.clock.now_s())

    def kill(self, name: str) -> None:
        """End an island as kill -9 would."""
        self.network.kill(name)
        self.residents[name].engine = None

    def run(self, *, until: Callable[[], bool] | None = None, at_most_s: float = 1e6) -> None:
        """Let time pass until ``until``, or until every island that lives has ended its run.

        Args:
            until: Looked at after every event.
            at_most_s: Virtual seconds after which it ends all the same.
        """
        end_s = self.clock.now_s() + at_most_s
        while self._agenda and not (until is not None and until()):
            if all(resident.is_over for resident in self.residents.values() if resident.engine is not None):
                return
            now_s = min(self._agenda[0][0], self.network.next_event_s() or float("inf"))
            if now_s > end_s:
                return
            self.clock.advance_to(max(now_s, self.clock.now_s()))
            self.network.settle()
            self._act()

    def _act(self) -> None:
        """Let every island whose time has come act: train a step, or look around while it waits."""
        while self._agenda and self._agenda[0][0] <= self.clock.now_s():
            _, name, incarnation = heapq.heappop(self._agenda)
            resident = self.residents[name]
            if resident.engine is None or resident.incarnation != incarnation:
                continue
            self._live(resident, resident.engine)
            self._plan(resident, self.clock.now_s())

    def _live(self, resident: Resident, engine: Engine) -> None:
        if engine.phase is not Phase.TRAINING:
            engine.pump()
            return
        if engine.core.progress < 1.0:
            tokens, cursor = resident.train()
            engine.trained(tokens=tokens, cursor=cursor)
        if engine.core.progress >= 1.0 and engine.phase is Phase.TRAINING:
            engine.finish()

    def _plan(self, resident: Resident, now_s: float) -> None:
        engine = resident.engine
        assert engine is not None
        trains = engine.phase is Phase.TRAINING
        heapq.heappush(
            self._agenda, (now_s + (resident.step_s if trains else _TICK_S), resident.name, resident.incarnation)
        )
