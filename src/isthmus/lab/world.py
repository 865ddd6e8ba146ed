"""Runs engines on a virtual clock, each at its own pace, through scripted faults, until their run is over.

A world can be stopped after any event, stored, and made again in another process, where it goes on to the same bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import msgspec

from isthmus.checkpoint import rng_state, set_rng_state
from isthmus.clock import VirtualClock
from isthmus.errors import CheckpointError, ConfigError
from isthmus.session import Engine
from isthmus.terms import Phase
from isthmus.transport import MemoryLink, MemoryNetwork

FORMAT = 1
"""Version of a snapshot's layout."""

_TICK_S = 0.05
"""How often a waiting island looks around, in virtual seconds."""

EventKind = Literal["crash", "restart", "hang", "resume", "cut", "heal"]

_BACK = ("restart", "resume")
"""The events that bring an island back."""


class WorldEvent(msgspec.Struct, frozen=True):
    """What a script does to a world at a time: one of ``World``'s methods of that name, on these islands."""

    at_s: float
    kind: EventKind
    islands: tuple[str, ...]


@dataclass(kw_only=True)
class Resident:
    """One island of a virtual world.

    Attributes:
        name: Its name in the network.
        make: Makes its engine for a link and an incarnation, from what its storage holds; called again after every
            restart.
        train: Trains one step on the engine's model; returns the step's tokens and the data cursor after it.
        step_s: Virtual seconds of one step.
        thaw: Makes its engine for a link, an incarnation and a state, as of a checkpoint; called where a stored world
            goes on. Nothing happens then as far as the island can tell: it writes no record.
    """

    name: str
    make: Callable[[MemoryLink, int], Engine]
    train: Callable[[], tuple[int, int]]
    step_s: float
    thaw: Callable[[MemoryLink, int, Mapping[str, Any]], Engine] | None = None
    incarnation: int = 0
    engine: Engine | None = field(default=None, init=False)

    @property
    def is_over(self) -> bool:
        """Whether its run has ended here."""
        return self.engine is not None and self.engine.phase is Phase.DONE


class _State(msgspec.Struct, kw_only=True):
    """A world, without its network and its engines."""

    now_s: float
    incarnations: dict[str, int]
    due_s: dict[str, float]
    hung: dict[str, float]
    ahead: list[WorldEvent]


class World:
    """A virtual clock, a network, and the islands on it.

    At one instant scripted events come first, then what arrives, then all steps in order of the islands' names; what
    they send arrives later, be it at the same instant.

    Args:
        clock: Advanced by this world alone.
        network: The islands' network, on the same clock.
        events: What a script does; events of one instant in the order given.

    Raises:
        ConfigError: An event is none, or names islands that are not in the network.
    """

    def __init__(self, clock: VirtualClock, network: MemoryNetwork, events: Sequence[WorldEvent] = ()) -> None:
        self.clock, self.network = clock, network
        self.residents: dict[str, Resident] = {}
        for event in events:
            _check(event, network.islands)
        self._ahead = deque(sorted(events, key=lambda event: event.at_s))
        self._due_s: dict[str, float] = {}
        self._hung: dict[str, float] = {}

    @property
    def is_over(self) -> bool:
        """Whether no island goes on: none trains or waits, and the script brings none back."""
        going = {name for name, resident in self.residents.items() if not resident.is_over}
        if not going.isdisjoint(self._due_s):
            return False
        return all(going.isdisjoint(event.islands) for event in self._ahead if event.kind in _BACK)

    def is_alive(self, name: str) -> bool:
        """Whether an island has a process, be it a hung one."""
        return name in self.residents and self.residents[name].engine is not None

    # -- what a script can do ------------------------------------------------------------------------------------------

    def add(self, resident: Resident) -> None:
        """Make an island known that an event will start."""
        self.residents[resident.name] = resident

    def start(self, resident: Resident) -> None:
        """Start an island, or start it again with a raised incarnation."""
        self.add(resident)
        self._hung.pop(resident.name, None)
        resident.incarnation += 1
        resident.engine = resident.make(self.network.open(resident.name, resident.incarnation), resident.incarnation)
        self._plan(resident, resident.engine)

    def restart(self, name: str) -> None:
        """Start an island again from what its storage holds."""
        self.start(self.residents[name])

    def crash(self, name: str) -> None:
        """End an island as kill -9 would."""
        self.network.kill(name)
        self.residents[name].engine = None
        self._due_s.pop(name, None)
        self._hung.pop(name, None)

    def hang(self, name: str) -> None:
        """Stop an island's process in the middle of what it does; its link, a process of its own, goes on."""
        if name in self._due_s:
            self._hung[name] = self._due_s.pop(name) - self.clock.now_s()

    def resume(self, name: str) -> None:
        """Let a hung island go on with what it was doing."""
        if name in self._hung:
            self._due_s[name] = self.clock.now_s() + self._hung.pop(name)

    def cut(self, a: str, b: str) -> None:
        """Cut the link between two islands."""
        self.network.partition(a, b)

    def heal(self, a: str, b: str) -> None:
        """End a cut, however often the link was cut."""
        self.network.heal(a, b)

    # -- time ----------------------------------------------------------------------------------------------------------

    def run(self, *, until: Callable[[], bool] | None = None, at_most_s: float = 1e6) -> None:
        """Let time pass until ``until``, or until the world is over.

        Islands that are dead or hung with nothing scripted to bring them back are not waited for.

        Args:
            until: Looked at after every event; ``state_dict`` may be called here, and after ``run``.
            at_most_s: Virtual seconds after which it ends all the same.
        """
        end_s = self.clock.now_s() + at_most_s
        while not (until is not None and until()) and not self.is_over:
            now_s = self._next_s()
            if now_s > end_s:
                return
            self.clock.advance_to(max(now_s, self.clock.now_s()))
            while self._ahead and self._ahead[0].at_s <= self.clock.now_s():
                event = self._ahead.popleft()
                getattr(self, event.kind)(*event.islands)
            self.network.settle()
            self._act()

    def _next_s(self) -> float:
        """When the next thing happens; there is one as long as the world is not over."""
        moments = list(self._due_s.values())
        if self._ahead:
            moments.append(self._ahead[0].at_s)
        if (network_s := self.network.next_event_s()) is not None:
            moments.append(network_s)
        return min(moments)

    def _act(self) -> None:
        """Let every island whose time has come act: train a step, or look around while it waits."""
        now_s = self.clock.now_s()
        for _, name in sorted((due_s, name) for name, due_s in self._due_s.items() if due_s <= now_s):
            resident = self.residents[name]
            assert resident.engine is not None
            del self._due_s[name]
            self._live(resident, resident.engine)
            self._plan(resident, resident.engine)

    def _live(self, resident: Resident, engine: Engine) -> None:
        if engine.phase is not Phase.TRAINING:
            engine.pump()
            return
        if engine.core.progress < 1.0:
            tokens, cursor = resident.train()
            engine.trained(tokens=tokens, cursor=cursor)
        if engine.core.progress >= 1.0 and engine.phase is Phase.TRAINING:
            engine.finish()

    def _plan(self, resident: Resident, engine: Engine) -> None:
        takes_s = resident.step_s if engine.phase is Phase.TRAINING else _TICK_S
        self._due_s[resident.name] = self.clock.now_s() + takes_s

    # -- snapshots -----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All of the world as it stands between two events; to be stored before the next one.

        What the islands' storages hold, and records written so far, are their owner's to store beside it.
        """
        state = _State(
            now_s=self.clock.now_s(),
            incarnations={name: resident.incarnation for name, resident in self.residents.items()},
            due_s=self._due_s,
            hung=self._hung,
            ahead=list(self._ahead),
        )
        engines = [(name, resident.engine) for name, resident in self.residents.items()]
        return {
            "format": FORMAT,
            "world": msgspec.msgpack.encode(state),
            "network": self.network.freeze(),
            "engines": {name: engine.freeze() for name, engine in engines if engine is not None},
            "rng": rng_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any], residents: Iterable[Resident]) -> None:
        """Go on exactly where the world was that gave ``state``; this one is new and has the same settings.

        Args:
            state: What ``state_dict`` gave, stored and loaded: it is taken, not copied.
            residents: The same islands, none of them started.

        Raises:
            CheckpointError: The state is of another version, or of other islands.
        """
        if state.get("format") != FORMAT:
            raise CheckpointError("the snapshot is of another version", got=state.get("format"), wanted=FORMAT)
        stored = msgspec.msgpack.decode(state["world"], type=_State)
        self.residents = {resident.name: resident for resident in residents}
        if self.residents.keys() != stored.incarnations.keys():
            raise CheckpointError(
                "the snapshot is of other islands", got=sorted(stored.incarnations), wanted=sorted(self.residents)
            )
        self.clock.advance_to(stored.now_s)
        self.network.thaw(state["network"])
        self._ahead, self._due_s, self._hung = deque(stored.ahead), stored.due_s, stored.hung
        for name, incarnation in stored.incarnations.items():
            self.residents[name].incarnation = incarnation
        for name, frozen in state["engines"].items():
            self._thaw(self.residents[name], frozen)
        set_rng_state(state["rng"])

    def _thaw(self, resident: Resident, frozen: Mapping[str, Any]) -> None:
        assert resident.thaw is not None, f"{resident.name} cannot be made again of a state"
        resident.engine = resident.thaw(self.network.link(resident.name), resident.incarnation, frozen)
        resident.engine.thaw(frozen)


def _check(event: WorldEvent, islands: Sequence[str]) -> None:
    wanted = 2 if event.kind in ("cut", "heal") else 1
    known = event.kind in get_args(EventKind) and set(event.islands) <= set(islands)
    if not known or len(set(event.islands)) != wanted or len(event.islands) != wanted:
        raise ConfigError(
            "an event of the world cannot happen",
            got=f"{event.kind} of {list(event.islands)}",
            wanted=f"crash, restart, hang or resume of one island, cut or heal of two of {list(islands)}",
        )
