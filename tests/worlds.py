"""Small virtual worlds for scenario tests: real engines, a toy model, memory links, a virtual clock."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import nn

from isthmus.checkpoint import FaultPlan, FaultyStorage, MemoryStorage, load_latest
from isthmus.clock import VirtualClock
from isthmus.lab import Resident, World, WorldEvent
from isthmus.observe import records
from isthmus.schedule import OuterPlan, OuterStep
from isthmus.session import Effects, Engine, Plan, Training, cut_model
from isthmus.session.copies import Place, SideStream
from isthmus.session.memory import Rule
from isthmus.transport import LinkQuality, MemoryLink, MemoryNetwork, MemorySettings
from isthmus.transport.link import Link

RUN = "ab" * 32
BATCH = 8

# The toy's tensors are far too small to share among threads.
torch.set_num_threads(1)

R = TypeVar("R", bound=records.Common)


class Toy(nn.Module):
    """A few matrices, a norm, and a float buffer that every forward in training moves."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.layers = nn.ModuleList(nn.Linear(6, 6, bias=False) for _ in range(3))
        self.norm = nn.LayerNorm(6)
        self.register_buffer("seen", torch.zeros(6))
        for layer in self.layers:
            layer.weight.data = torch.randn(6, 6, generator=generator) * 0.4

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen += x.mean(0)
        for layer in self.layers:
            x = torch.tanh(layer(self.norm(x)))
        return x


class Batches:
    """Random batches by cursor, as resumable as real data."""

    def __init__(self, slot: int) -> None:
        self.slot, self.cursor = slot, 0

    def next(self) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1000 * self.slot + self.cursor)
        self.cursor += 1
        return torch.randn(BATCH, 6, generator=generator)

    def seek(self, cursor: int) -> None:
        self.cursor = cursor

    def state_dict(self) -> dict[str, int]:
        return {"cursor": self.cursor}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.cursor = state["cursor"]


@dataclass
class Settings:
    """Of all islands of a small world."""

    codec: str = "int4"
    window_steps: int = 6
    fragments: int = 2
    flight_steps: int = 2
    outer: OuterPlan = field(default_factory=lambda: OuterPlan(OuterStep(0.7, 0.5), calm_rounds=0, calm_share=0.0))
    budget_steps: int = 40
    save_every_steps: int = 10**9
    join_wait_s: float = 5.0
    finish_wait_s: float = 30.0
    own_window_steps: dict[str, int] = field(default_factory=dict)
    rule: Rule = "pair"
    side: SideStream | None = None
    meetings: int = 1
    mixed_momentum: bool = False


@dataclass
class Inhabitant:
    """One island, with what outlives its process: storage and records."""

    name: str
    slot: int
    storage: MemoryStorage
    records: list[records.Record]
    resident: Resident
    model: Toy
    losses: list[float] = field(default_factory=list)
    faults: FaultPlan = field(default_factory=FaultPlan)

    @property
    def engine(self) -> Engine:
        assert self.resident.engine is not None
        return self.resident.engine

    def of(self, kind: type[R]) -> list[R]:
        return [record for record in self.records if isinstance(record, kind)]

    def alarms(self) -> list[str]:
        return [alarm.what for alarm in self.of(records.Alarm)]

    def fast(self) -> torch.Tensor:
        weights = self.model.state_dict()
        return torch.cat([weights[name].flatten() for name in self.engine.slow.slow_weights()])

    def slow(self) -> torch.Tensor:
        return torch.cat([tensor.flatten() for tensor in self.engine.slow.slow_weights().values()])


class SmallWorld:
    """Islands ``a``, ``b``, ... in slots 0, 1, ... on one virtual clock."""

    def __init__(
        self,
        names: str,
        settings: Settings | None = None,
        *,
        quality: LinkQuality | None = None,
        seed: int = 0,
        step_s: dict[str, float] | None = None,
        toy: Callable[[str], Toy] = lambda name: Toy(),
        link: Callable[[MemoryLink], Link] = lambda link: link,
        events: Sequence[WorldEvent] = (),
    ) -> None:
        self.names, self.settings = tuple(names), settings or Settings()
        self._step_s, self._toy, self._link = step_s or {}, toy, link
        self.clock = VirtualClock()
        self.network = MemoryNetwork(
            self.clock,
            seed,
            islands=self.names,
            run=RUN,
            settings=MemorySettings(quality=quality or LinkQuality(delay_s=0.01), detection_s=2.0),
        )
        self.world = World(self.clock, self.network, events)
        self.islands = {name: self._inhabitant(name, slot) for slot, name in enumerate(self.names)}
        for island in self.islands.values():
            self.world.add(island.resident)

    def __getitem__(self, name: str) -> Inhabitant:
        return self.islands[name]

    def start(self, *names: str) -> SmallWorld:
        for name in names or self.names:
            self.world.start(self.islands[name].resident)
        return self

    def run(self, until: Callable[[], bool] | None = None, *, at_most_s: float = 1000.0) -> None:
        self.world.run(until=until, at_most_s=at_most_s)

    def run_to_step(self, name: str, step: int) -> None:
        self.run(lambda: self[name].engine.memory.step >= step)
        assert self[name].engine.memory.step >= step

    def kill(self, *names: str) -> None:
        for name in names:
            self.world.crash(name)

    def pass_s(self, seconds: float) -> None:
        """Let virtual seconds pass."""
        self.run(at_most_s=seconds)

    def forget(self, name: str) -> None:
        """Lose an island's disk."""
        self.islands[name].storage = MemoryStorage()

    def state_dict(self) -> dict[str, Any]:
        """The world with all disks; records and losses are not part of it."""
        storages = {name: island.storage.state_dict() for name, island in self.islands.items()}
        return {"world": self.world.state_dict(), "storages": storages}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, island in self.islands.items():
            island.storage.load_state_dict(state["storages"][name])
        self.world.load_state_dict(state["world"], [island.resident for island in self.islands.values()])

    def _inhabitant(self, name: str, slot: int) -> Inhabitant:
        def make(link: MemoryLink, incarnation: int) -> Engine:
            found = load_latest(self.islands[name].storage)
            return thaw(link, incarnation, found and found[0])

        def thaw(link: MemoryLink, incarnation: int, state: Mapping[str, Any] | None) -> Engine:
            return self._engine(self.islands[name], link, incarnation, state)

        def train() -> tuple[int, int]:
            return self._train(self.islands[name])

        resident = Resident(name=name, make=make, thaw=thaw, train=train, step_s=self._step_s.get(name, 1.0))
        return Inhabitant(name, slot, MemoryStorage(), [], resident, self._toy(name))

    def _engine(
        self, island: Inhabitant, link: MemoryLink, incarnation: int, state: Mapping[str, Any] | None
    ) -> Engine:
        settings = self.settings
        island.model, self_data = self._toy(island.name), Batches(island.slot)
        optimizer = torch.optim.AdamW(island.model.parameters(), lr=0.02)
        peers = {other: slot for slot, other in enumerate(self.names) if other != island.name}
        cut = cut_model(
            island.model,
            num_fragments=settings.fragments,
            peers=tuple(peers),
            embedding_codec=settings.codec,
            mixed_momentum=settings.mixed_momentum,
            place=Place(side=settings.side),
        )
        plan = Plan(
            run=RUN,
            name=island.name,
            slot=island.slot,
            peers=peers,
            layout=cut.layout,
            initial=cut.slow.initial_hashes,
            window_steps=settings.own_window_steps.get(island.name, settings.window_steps),
            flight_steps=settings.flight_steps,
            outer=settings.outer,
            token_budget=settings.budget_steps * BATCH * len(self.names),
            save_every_steps=settings.save_every_steps,
            join_wait_s=settings.join_wait_s,
            finish_wait_s=settings.finish_wait_s,
            rule=settings.rule,
            meetings=settings.meetings,
        )
        effects = Effects(
            link=self._link(link),
            clock=self.clock,
            storage=FaultyStorage(island.storage, island.faults),
            sink=island.records.append,
            codec=settings.codec,
            layout_lines=cut.layout_lines,
        )
        island.train = (island.model, optimizer, self_data)
        return Engine(plan, cut.slow, Training(island.model, optimizer, self_data), effects, incarnation, state)

    def _train(self, island: Inhabitant) -> tuple[int, int]:
        model, optimizer, data = island.train
        island.losses.append(train_step(model, optimizer, data.next()))
        return BATCH, data.cursor


def assert_no_fork(world: SmallWorld, *names: str) -> None:
    """Each island holds the references that its tables name; at one epoch and version both ends hold the same."""
    for one, other in itertools.permutations(names or world.names, 2):
        engine, edges = world[one].engine, world[one].engine.memory.edges[other]
        held = [engine.slow.reference_hash(other, fragment) for fragment in engine.plan.fragments]
        assert held == [edge.reference for edge in edges], (one, other)
        for own, theirs in zip(edges, world[other].engine.memory.edges[one], strict=True):
            if (own.epoch, own.version) == (theirs.epoch, theirs.version):
                assert own.reference == theirs.reference, (one, other)


def assert_agreed(world: SmallWorld, *names: str) -> None:
    """No fork, and both ends of every edge stand at the same epoch and version."""
    assert_no_fork(world, *names)
    for one, other in itertools.permutations(names or world.names, 2):
        own, theirs = world[one].engine.memory.edges[other], world[other].engine.memory.edges[one]
        assert [(e.epoch, e.version) for e in own] == [(e.epoch, e.version) for e in theirs], (one, other)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> float:
    """One step towards a fixed nonlinear target."""
    loss = (model(x) - torch.sin(3 * x.roll(1, dims=1))).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()
