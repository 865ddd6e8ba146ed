"""A checkpoint holds everything: what is killed and started again goes on as if it had never stopped."""

from __future__ import annotations

import dataclasses
import functools

import pytest
import torch

from isthmus.checkpoint import FaultPlan, MemoryStorage, load_latest
from isthmus.observe import records
from worlds import Settings, SmallWorld, assert_agreed

STEADY = Settings(window_steps=12, flight_steps=10, save_every_steps=6, budget_steps=60)
"""Departures at every sixth step; flights so long that a restart of a step or two makes nothing late."""

LAST = 40


@functools.cache
def never_stopped(names: str) -> SmallWorld:
    world = SmallWorld(names, STEADY).start()
    run_all_to_step(world, LAST)
    return world


def saving(at_step: int) -> Settings:
    return dataclasses.replace(STEADY, save_every_steps=at_step)


def run_all_to_step(world: SmallWorld, step: int) -> None:
    for name in world.names:
        world.run_to_step(name, step)


def meetings(world: SmallWorld, name: str) -> list[tuple[object, ...]]:
    """What was applied, in which step, with what weight, to what result."""
    return [
        (m.fragment, m.peer, m.epoch, m.version, m.arrived_step, m.weight, m.late, m.reference)
        for m in world[name].of(records.Meeting)
        if m.step < LAST
    ]


def assert_as_if_never_stopped(world: SmallWorld) -> None:
    reference = never_stopped("".join(world.names))
    for name in world.names:
        assert world[name].losses[:LAST] == reference[name].losses[:LAST], name
        assert meetings(world, name) == meetings(reference, name), name


def damage_newest_checkpoint(storage: MemoryStorage) -> str:
    name = storage.names()[-1]
    with storage.open(name) as file:
        content = bytearray(file.read())
    content[len(content) // 2] ^= 1
    storage.write_atomic(name, [bytes(content)])
    return name


@pytest.mark.parametrize("killed_at", [6, 15])
def test_one_island_killed_right_after_a_save_goes_on_as_if_never_stopped(killed_at):
    world = SmallWorld("a", saving(killed_at)).start()
    world.run_to_step("a", killed_at)
    world.kill("a")
    world.start("a")
    run_all_to_step(world, LAST)
    assert_as_if_never_stopped(world)
    assert torch.equal(world["a"].slow(), never_stopped("a")["a"].slow())


def test_one_island_killed_between_saves_trains_the_lost_steps_again_alike():
    world = SmallWorld("a", STEADY).start()
    world.run_to_step("a", 16)
    world.kill("a")
    world.start("a")
    run_all_to_step(world, LAST)
    losses = world["a"].losses
    assert losses[16:20] == losses[12:16]
    del losses[12:16]
    assert_as_if_never_stopped(world)


@pytest.mark.parametrize("killed_at", [6, 7, 14, 18, 21, 30])
def test_a_pair_killed_right_after_a_save_goes_on_as_if_never_stopped(killed_at):
    world = SmallWorld("ab", saving(killed_at)).start()
    run_all_to_step(world, killed_at)
    world.kill("a", "b")
    world.start("a", "b")
    run_all_to_step(world, LAST)
    assert len(meetings(world, "a")) >= 4
    assert_as_if_never_stopped(world)
    world.run()
    assert_agreed(world)
    assert world["a"].engine.slow.digest() == world["b"].engine.slow.digest()


@pytest.mark.parametrize("killed", ["a", "b"])
@pytest.mark.parametrize("killed_at", [7, 14, 21, 28])
def test_one_of_a_pair_back_before_anything_was_late_changes_nothing(killed, killed_at):
    world = SmallWorld("ab", saving(killed_at)).start()
    run_all_to_step(world, killed_at)
    world.kill(killed)
    world.start(killed)
    run_all_to_step(world, LAST)
    assert_as_if_never_stopped(world)


def test_a_damaged_newest_checkpoint_is_passed_over_for_the_one_before():
    world = SmallWorld("ab", STEADY).start()
    run_all_to_step(world, 20)
    world.kill("a")
    damaged = damage_newest_checkpoint(world["a"].storage)
    _, found = load_latest(world["a"].storage)
    assert [skipped.name for skipped in found.skipped] == [damaged.rpartition(".")[0]]
    world.start("a")
    assert world["a"].engine.memory.step == 12
    assert world["a"].model.state_dict()["seen"].any()
    world.run()
    assert_agreed(world)
    assert world["a"].engine.slow.digest() == world["b"].engine.slow.digest()


def test_a_full_disk_is_an_alarm_and_training_goes_on():
    world = SmallWorld("ab", STEADY)
    world["a"].faults = FaultPlan(capacity_bytes=30_000)
    world.start()
    run_all_to_step(world, LAST)
    kept, alarms = world["a"].of(records.Checkpoint), world["a"].of(records.Alarm)
    assert kept and alarms and len(kept) + len(alarms) == LAST // 6
    assert all("no checkpoint was written" in alarm.what and alarm.severity == "error" for alarm in alarms)
    assert_as_if_never_stopped(world)
    world.kill("a")
    world.start("a")
    assert world["a"].engine.memory.step == kept[-1].step


def test_an_island_started_again_after_a_whole_end_keeps_the_joint_model():
    world = SmallWorld("ab").start()
    world.run()
    digest = world["a"].engine.slow.digest()
    world["a"].engine.save()
    world.kill("a", "b")
    world.start("a")
    world.run(at_most_s=100)
    assert world["a"].engine.slow.digest() == digest
    assert not world["a"].engine.core.provisional
