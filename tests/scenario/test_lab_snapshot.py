"""A virtual world that is stopped after any event, stored, and made again goes on to the same bytes."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import torch

from isthmus.checkpoint import LocalStorage, MemoryStorage, Storage, load_latest, save
from isthmus.errors import CheckpointError
from isthmus.lab import WorldEvent
from isthmus.observe import records
from isthmus.terms import Phase
from isthmus.transport import LinkQuality
from worlds import RUN, Settings, SmallWorld, Toy

SETTINGS = Settings(
    codec="int4", window_steps=4, flight_steps=2, budget_steps=24, save_every_steps=5, join_wait_s=4, finish_wait_s=20
)
QUALITY = LinkQuality(delay_s=0.3, rate_bits_per_s=20e3, loss=0.05, duplication=0.1, reordering=0.3, reordering_s=1.5)
SCRIPT = (
    WorldEvent(8.0, "cut", ("a", "b")),
    WorldEvent(11.5, "heal", ("a", "b")),
    WorldEvent(9.3, "hang", ("c",)),
    WorldEvent(13.1, "resume", ("c",)),
    WorldEvent(15.2, "crash", ("b",)),
    WorldEvent(16.0, "cut", ("a", "c")),
    WorldEvent(19.7, "restart", ("b",)),
    WorldEvent(21.0, "heal", ("a", "c")),
)
MESH = 4


class Noisy(Toy):
    """A toy whose training draws from the process's generator, which all islands share."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x + 0.05 * torch.randn_like(x) if self.training else x)


def new_world(script: int = 0) -> SmallWorld:
    """A world that nobody lives in yet; script 0 is the one above, others are random; the last is of a mesh."""
    return SmallWorld(
        "abc",
        dataclasses.replace(SETTINGS, rule="mesh" if script == MESH else "pair"),
        quality=QUALITY,
        seed=script,
        step_s={"b": 1.3, "c": 0.7},
        toy=lambda name: Noisy(),
        events=SCRIPT if script == 0 else random_script(script),
    )


def random_script(seed: int) -> tuple[WorldEvent, ...]:
    dice, events = random.Random(seed), []
    for kind, ends in (("cut", "heal"), ("hang", "resume"), ("crash", "restart")) * 2:
        islands = tuple(dice.sample("abc", 2 if kind == "cut" else 1))
        at_s = dice.uniform(0.5, 25.0)
        events += [WorldEvent(at_s, kind, islands), WorldEvent(at_s + dice.uniform(0.5, 8.0), ends, islands)]
    return tuple(events)


def started(script: int = 0) -> SmallWorld:
    torch.manual_seed(script)
    return new_world(script).start()


def stored(world: SmallWorld, storage: Storage | None = None) -> Storage:
    storage = storage or MemoryStorage()
    save(storage, 0, world.state_dict())
    return storage


def made_again(storage: Storage, world: SmallWorld) -> SmallWorld:
    """The stored world, of a new one, in a process whose generators stand elsewhere."""
    torch.manual_seed(12345)
    random.seed(12345)
    found = load_latest(storage)
    assert found is not None
    world.load_state_dict(found[0])
    return world


def content(storage: Storage) -> bytes:
    with storage.open("checkpoint-00000001.safetensors") as file:
        return file.read()


@dataclass
class Told:
    """All that a world did so far, to compare."""

    records: dict[str, list[bytes]]
    losses: dict[str, list[float]]

    def then(self, later: Told) -> Told:
        return Told(
            {name: lines + later.records[name] for name, lines in self.records.items()},
            {name: losses + later.losses[name] for name, losses in self.losses.items()},
        )


def told(world: SmallWorld) -> Told:
    islands = world.islands.items()
    return Told(
        {name: [msgspec.json.encode(record) for record in island.records] for name, island in islands},
        {name: list(island.losses) for name, island in islands},
    )


def digests(world: SmallWorld) -> dict[str, str]:
    return {name: island.engine.slow.digest() for name, island in world.islands.items()}


def stop_after(events: int) -> Callable[[], bool]:
    left = iter(range(events, -1, -1))
    return lambda: next(left) == 0


@functools.cache
def never_stopped(script: int = 0) -> tuple[SmallWorld, Told, bytes]:
    world = started(script)
    world.run()
    assert len(world["a"].of(records.Meeting)) >= 4
    return world, told(world), content(stored(world))


def assert_as_if_never_stopped(world: SmallWorld, before: Told, script: int = 0) -> None:
    """``world`` has ended; ``before`` is what was told before it was made again."""
    reference, whole, end = never_stopped(script)
    together = before.then(told(world))
    for name in world.names:
        assert together.losses[name] == whole.losses[name], name
        assert together.records[name] == whole.records[name], name
    assert world.clock.now_s() == reference.clock.now_s()
    assert digests(world) == digests(reference)
    assert content(stored(world)) == end


# -- chosen moments ----------------------------------------------------------------------------------------------------


def phase_of(world: SmallWorld, name: str) -> Phase | None:
    return world[name].engine.phase if world.world.is_alive(name) else None


def published_and_not_met(world: SmallWorld) -> bool:
    return any(edge.mine for name in "ac" for _, _, edge in world[name].engine.memory.all_edges())


MOMENTS: dict[str, Callable[[SmallWorld], bool]] = {
    "before anything": lambda world: True,
    "joining": lambda world: phase_of(world, "a") is Phase.JOINING and world.clock.now_s() > 0.3,
    "publications on their way": lambda world: world.clock.now_s() > 5.0 and published_and_not_met(world),
    "cut, not noticed": lambda world: 8.0 <= world.clock.now_s() < 9.0,
    "cut and an island hangs": lambda world: 10.5 < world.clock.now_s() < 11.5,
    "an island hangs": lambda world: 12.0 < world.clock.now_s() < 13.1,
    "dead, not noticed": lambda world: 15.2 <= world.clock.now_s() < 16.0,
    "dead and noticed": lambda world: 18.0 < world.clock.now_s() < 19.0,
    "joining again": lambda world: world.clock.now_s() >= 19.7 and phase_of(world, "b") is Phase.JOINING,
    "finishing": lambda world: any(phase_of(world, name) is Phase.FINISHING for name in "abc"),
    "one done": lambda world: any(phase_of(world, name) is Phase.DONE for name in "abc"),
    "over": lambda world: world.world.is_over,
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_world_stopped_at_a_chosen_moment_goes_on_to_the_same_bytes(moment):
    world = started()
    world.run(lambda: MOMENTS[moment](world))
    assert MOMENTS[moment](world)
    before = told(world)
    again = made_again(stored(world), new_world())
    again.run()
    assert_as_if_never_stopped(again, before)


# -- any moment --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("script", range(MESH + 1))
def test_a_world_stopped_at_random_events_and_made_again_each_time_ends_with_the_same_bytes(script):
    dice, world, before = random.Random(script), started(script), None
    while not world.world.is_over:
        world.run(stop_after(dice.choice((1, 2, 3, 10, 40))))
        before = told(world) if before is None else before.then(told(world))
        world = made_again(stored(world), new_world(script))
    assert before is not None
    assert_as_if_never_stopped(world, before, script)


@pytest.mark.slow
def test_what_is_made_again_is_what_was_stored_all_along_the_run():
    world, stops = started(), 0
    while not world.world.is_over:
        storage = stored(world)
        assert content(stored(made_again(storage, new_world()))) == content(storage), world.clock.now_s()
        world.run(stop_after(11))
        stops += 1
    assert stops > 20


def test_taking_a_snapshot_changes_nothing():
    world = started()
    for _ in range(20):
        world.run(stop_after(11))
        stored(world)
    world.run()
    assert_as_if_never_stopped(world, Told({name: [] for name in "abc"}, {name: [] for name in "abc"}))


@pytest.mark.slow
def test_a_world_goes_on_to_the_same_bytes_in_another_process(tmp_path):
    world = started()
    world.run(lambda: world.clock.now_s() > 17.0)
    stored(world, LocalStorage(tmp_path))
    here = Path(__file__)
    code = f"import sys; sys.path[:0] = {[str(here.parent.parent), str(here.parent)]}; import {here.stem} as this"
    code += "; print(this.goes_on(sys.argv[1]))"
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == hashlib.sha256(never_stopped()[2]).hexdigest()


def goes_on(folder: str) -> str:
    """The digest of everything at the end of a run that was stopped elsewhere."""
    world = made_again(LocalStorage(Path(folder)), new_world())
    world.run()
    return hashlib.sha256(content(stored(world))).hexdigest()


def misfits() -> SmallWorld:
    """Islands with other initial weights, and one with another model."""
    toys = {"a": Toy(), "b": Toy(seed=1), "c": Narrow()}
    return SmallWorld("abc", SETTINGS, toy=lambda name: toys[name])


class Narrow(Toy):
    """A toy with a layer less."""

    def __init__(self) -> None:
        super().__init__()
        del self.layers[-1]


def brief_life() -> SmallWorld:
    """One island that crashes before its first checkpoint, and starts again."""
    events = [WorldEvent(3.0, "crash", ("a",)), WorldEvent(5.0, "restart", ("a",))]
    return SmallWorld("a", SETTINGS, toy=lambda name: Noisy(), events=events)


@pytest.mark.parametrize(
    ("make", "stop_s"), [(misfits, 0.015), (misfits, 0.05), (misfits, 9.0), (brief_life, 2.0), (brief_life, 4.0)]
)
def test_odd_worlds_go_on_to_the_same_bytes(make, stop_s):
    ends = []
    for stops in (False, True):
        torch.manual_seed(7)
        world = make().start()
        if stops:
            world.pass_s(stop_s)
            world = made_again(stored(world), make())
        world.run()
        ends.append(content(stored(world)))
    assert ends[0] == ends[1]


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_a_snapshot_of_other_islands_or_of_another_version_or_run_is_refused():
    world = started()
    state = world.world.state_dict()
    residents = [island.resident for island in new_world().islands.values()]
    with pytest.raises(CheckpointError, match="another version; got 99; wanted 1"):
        new_world().world.load_state_dict(state | {"format": 99}, residents)
    with pytest.raises(CheckpointError, match="other islands"):
        new_world().world.load_state_dict(state, residents[:2])
    with pytest.raises(CheckpointError, match="other islands"):
        SmallWorld("abd").world.load_state_dict(state, residents)
    state["engines"]["a"]["run"] = RUN[::-1]
    with pytest.raises(CheckpointError, match="another run"):
        new_world().world.load_state_dict(state, residents)
