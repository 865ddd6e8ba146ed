"""An island that dies costs the others nothing, and comes back into agreement from whatever its disk still holds."""

from __future__ import annotations

import dataclasses
import hashlib
import random

import pytest
import torch

from isthmus.checkpoint import CrashError, FaultPlan, FaultyStorage
from isthmus.observe import records
from isthmus.rows import leaf_digests
from isthmus.terms import Phase
from worlds import BATCH, Inhabitant, Settings, SmallWorld, assert_agreed, assert_no_fork

SETTINGS = Settings(window_steps=6, flight_steps=4, save_every_steps=5, budget_steps=60, finish_wait_s=60)


def started(names: str = "ab", step_s: dict[str, float] | None = None, **changes: object) -> SmallWorld:
    return SmallWorld(names, dataclasses.replace(SETTINGS, **changes), step_s=step_s).start()


def assert_ended_alike(world: SmallWorld) -> None:
    """The run is over, whole, and the joint model is one."""
    engines = [island.engine for island in world.islands.values()]
    assert all(engine.phase is Phase.DONE for engine in engines)
    assert not any(engine.core.provisional for engine in engines)
    assert len({engine.slow.digest() for engine in engines}) == 1
    assert_agreed(world)


def meetings_after(world: SmallWorld, name: str, t_s: float) -> int:
    return sum(record.wall_s > t_s for record in world[name].of(records.Meeting))


# -- the survivor ------------------------------------------------------------------------------------------------------


def test_what_an_island_published_when_it_left_reaches_its_partner_though_it_never_comes_back():
    settings = dataclasses.replace(SETTINGS, budget_steps=400, window_steps=20, fragments=2)
    worlds = [SmallWorld("ab", settings).start() for _ in range(2)]
    for world, leaves in zip(worlds, (True, False), strict=True):
        world.run_to_step("b", 37)
        before = len(world["a"].of(records.Meeting))
        tokens = world["b"].engine.memory.tokens
        if leaves:
            world["b"].engine.leave()
            world.run(lambda each=world: each["b"].engine.has_sent)
            world.pass_s(1.0)  # what was sent arrives, though its sender has gone
        world.kill("b")
        world.run_to_step("a", 90)
        met = world["a"].of(records.Meeting)[before:]
        assert len(met) == (2 if leaves else 0)
        known = world["a"].engine.memory.peers["b"].tokens
        assert known >= tokens if leaves else known < tokens


def test_the_survivor_trains_on_at_full_speed_says_so_and_writes_it_down():
    world = started()
    world.run_to_step("a", 20)
    killed_s, step = world.clock.now_s(), world["a"].engine.memory.step
    world.kill("b")
    world.pass_s(20)
    a = world["a"]
    assert a.engine.memory.step - step == 20
    lost = [record for record in a.of(records.PeerChange) if not record.up]
    assert [record.peer for record in lost] == ["b"]
    assert lost[0].wall_s - killed_s <= 3.0 + 1e-6
    assert lost[0].reason == "no longer answers"
    departures = [record for record in a.of(records.Departure) if record.wall_s > lost[0].wall_s]
    assert len(departures) >= 5
    assert not any(record.published for record in departures)


def test_a_publication_to_a_lost_partner_no_longer_holds_back_others():
    world = started("abcd")
    world.run_to_step("a", 15)
    world.kill("b")
    lost_s = world.clock.now_s() + 3
    world.pass_s(30)
    assert any(edge.mine for edge in world["a"].engine.memory.edges["b"])
    assert meetings_after(world, "a", lost_s) >= 4
    assert {record.peer for record in world["a"].of(records.Meeting) if record.wall_s > lost_s + 3} == {"c"}
    assert_no_fork(world, "a", "c")


def test_an_island_whose_partner_never_comes_back_ends_its_run_provisionally():
    world = started()
    world.run_to_step("a", 20)
    world.kill("b")
    world.run()
    assert world["a"].engine.phase is Phase.DONE
    assert world["a"].engine.core.provisional


# -- coming back -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("away_s", [0.0, 1.0, 8.0, 25.0])
@pytest.mark.parametrize("killed", ["a", "b"])
def test_an_island_back_from_its_checkpoint_agrees_on_every_edge_and_meets_again(killed, away_s):
    world = started()
    world.run_to_step("a", 23)
    world.kill(killed)
    world.pass_s(away_s)
    world.start(killed)
    back_s = world.clock.now_s()
    world.pass_s(25)
    assert meetings_after(world, killed, back_s) >= 3
    world.run()
    assert_ended_alike(world)
    joined = world[killed].of(records.Joined)
    assert [record.how for record in joined] == ["fresh", "checkpoint"] or not joined


@pytest.mark.parametrize("killed_at", [17, 19, 20, 23, 24])
def test_tokens_that_were_mixed_and_then_lost_in_a_crash_count_once(killed_at):
    world = started(save_every_steps=10)
    world.run_to_step("b", killed_at)
    held = world["a"].engine.memory.peers["b"].held.header
    world.kill("b")
    world.start("b")
    assert world["b"].engine.memory.step == killed_at - killed_at % 10
    step = world["b"].engine.memory.step
    world.run(lambda: world["b"].engine.memory.step > step)
    memory, own_tokens = world["b"].engine.memory, step * BATCH
    shown = max(own_tokens, held.tokens)
    assert memory.tokens == shown + BATCH
    assert memory.cursor == shown // BATCH + 1
    assert world["b"].train[2].cursor == memory.cursor
    assert any("live on at a" in what for what in world["b"].alarms()) == (held.tokens > own_tokens)
    world.run()
    assert_ended_alike(world)
    for name in "ab":
        other = world["b" if name == "a" else "a"].engine.memory
        assert world[name].engine.memory.peers["b" if name == "a" else "a"].tokens <= other.tokens


def test_an_island_back_with_an_empty_disk_adopts_its_partners_weights_bit_for_bit():
    world = started()
    world.run_to_step("a", 23)
    world.kill("b")
    world.forget("b")
    world.start("b")
    world.run(lambda: world["b"].engine.phase is Phase.TRAINING)
    a, b = world["a"], world["b"]
    adopted = [record for record in b.of(records.Meeting) if record.adopted]
    assert {record.fragment for record in adopted} == set(b.engine.plan.fragments)
    assert all((record.weight, record.peer_weight) == (0.0, 1.0) for record in adopted)
    assert own_hashes(b) == [edge.reference for edge in a.engine.memory.edges["b"]]
    assert torch.equal(b.slow(), b.fast())
    world.run()
    assert_ended_alike(world)
    assert meetings_after(world, "b", adopted[-1].wall_s) >= 4


def test_both_killed_resume_each_from_its_own_checkpoint():
    world = started()
    world.run_to_step("a", 28)
    world.kill("a", "b")
    world.pass_s(3)
    world.start("a", "b")
    assert [world[name].engine.memory.step for name in "ab"] == [25, 25]
    world.run()
    assert_ended_alike(world)
    assert not any(record.epoch for name in "ab" for record in world[name].of(records.Meeting))


@pytest.mark.parametrize("lost", ["a", "b"])
@pytest.mark.parametrize("first", ["a", "b"])
def test_both_killed_and_one_disk_lost_the_other_one_counts(first, lost):
    world = started()
    world.run_to_step("a", 28)
    world.kill("a", "b")
    world.forget(lost)
    world.start(first)
    world.pass_s(1)
    world.start("b" if first == "a" else "a")
    world.run()
    assert_ended_alike(world)
    assert any(record.adopted for record in world[lost].of(records.Meeting))


@pytest.mark.parametrize("disk", ["kept", "lost"])
def test_an_island_started_behind_a_cut_agrees_again_once_it_heals(disk):
    world = started(budget_steps=90)
    world.run_to_step("a", 28)
    world.kill("b")
    world.network.partition("a", "b")
    if disk == "lost":
        world.forget("b")
    world.start("b")
    world.pass_s(12)
    assert world["b"].engine.phase is Phase.TRAINING
    world.network.heal("a", "b")
    healed_s = world.clock.now_s()
    world.pass_s(20)
    assert meetings_after(world, "b", healed_s) >= 2
    world.run()
    assert_ended_alike(world)


def test_an_island_that_started_alone_steps_aside_for_a_run_far_ahead():
    world = SmallWorld("ab", SETTINGS)
    world.network.partition("a", "b")
    world.start("a")
    world.run_to_step("a", 30)
    world.start("b")
    world.pass_s(10)
    assert world["b"].engine.phase is Phase.TRAINING and world["b"].engine.memory.step >= 3
    world.network.heal("a", "b")
    world.run(lambda: world["b"].engine.phase is Phase.JOINING, at_most_s=10)
    assert world["b"].engine.phase is Phase.JOINING
    world.run(lambda: world["b"].engine.phase is Phase.TRAINING, at_most_s=10)
    assert own_hashes(world["b"]) == [edge.reference for edge in world["a"].engine.memory.edges["b"]]
    assert any("ahead of this island's lone start" in what for what in world["b"].alarms())
    world.run()
    assert_ended_alike(world)


@pytest.mark.parametrize("index", range(6))
def test_an_island_killed_at_any_step_of_a_window_agrees_again(index):
    world = started(save_every_steps=4)
    world.run_to_step("b", 18 + index)
    world.kill("b")
    world.pass_s(0.5 * index)
    world.start("b")
    world.run()
    assert_ended_alike(world)


@pytest.mark.parametrize("pumps", [0, 1, 2, 3, 6])
def test_an_island_killed_while_it_joins_joins_at_the_next_start(pumps):
    world = started()
    world.run_to_step("a", 23)
    world.kill("b")
    world.forget("b")
    for _ in range(2):
        world.start("b")
        world.pass_s(0.06 * pumps)
        world.kill("b")
    world.start("b")
    world.run()
    assert_ended_alike(world)
    assert any(record.adopted for record in world["b"].of(records.Meeting))


@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.1, 0.2, 0.5])
def test_an_island_killed_while_the_run_ends_ends_it_after_its_restart(after_s):
    world = started()
    world.run(lambda: world["b"].engine.phase is Phase.FINISHING)
    world.pass_s(after_s)
    world.kill("b")
    world.pass_s(0.1)
    world.start("b")
    world.run()
    engines = [world[name].engine for name in "ab"]
    assert all(engine.phase is Phase.DONE for engine in engines)
    same = engines[0].slow.digest() == engines[1].slow.digest()
    assert same or engines[1].core.provisional


# -- many crashes ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_twenty_kills_at_random_instants_leave_one_model_and_no_fork():
    world, crashes_in_checkpoint = live_through_crashes(seed=0, kills=20)
    assert crashes_in_checkpoint >= 4
    assert_ended_alike(world)


def live_through_crashes(*, seed: int, kills: int) -> tuple[SmallWorld, int]:
    """Kill either island at random instants, in one case of three inside a checkpoint, and start it again.

    Returns:
        The world after the end of the run, and how often a checkpoint was cut short.
    """
    dice, cut_short = random.Random(seed), 0
    world = started(budget_steps=30 + 8 * kills, save_every_steps=3)
    for _ in range(kills):
        name = dice.choice("ab")
        if dice.random() < 1 / 3:
            cut_short += crashes_in_checkpoint(world, name, dice.randrange(40))
        else:
            world.pass_s(dice.uniform(1, 12))
        world.kill(name)
        world.pass_s(dice.choice([0, dice.uniform(0, 8)]))
        world.start(name)
    world.run()
    return world, cut_short


def crashes_in_checkpoint(world: SmallWorld, name: str, point: int) -> bool:
    """Whether the island crashed, as planned, at a point of its next checkpoints."""
    engine, faults = world[name].engine, FaultPlan(crash_at=point)
    engine.effects = dataclasses.replace(engine.effects, storage=FaultyStorage(world[name].storage, faults))
    try:
        world.pass_s(20)
    except CrashError:
        return True
    return False


def own_hashes(island: Inhabitant) -> list[bytes]:
    """H of the slow weights of every fragment, to compare with references."""
    weights = island.engine.slow.slow_weights()
    return [
        hashlib.sha256(
            b"".join(leaf_digests(weights[entry.name].view(-1, entry.row_length)) for entry in fragment.entries)
        ).digest()
        for fragment in island.engine.slow.fragments
    ]


def test_every_fragment_meets_in_every_window_again_after_a_restart():
    settings = Settings(window_steps=6, flight_steps=4, save_every_steps=5, budget_steps=120)
    world = SmallWorld("ab", settings).start()
    world.run_to_step("b", 23)
    world.kill("b")
    world.pass_s(8)
    world.start("b")
    world.run_to_step("a", 110)
    for fragment in range(settings.fragments):
        arrived = [m.arrived_step for m in world["a"].of(records.Meeting) if m.fragment == fragment]
        assert [later - earlier for earlier, later in zip(arrived[-6:], arrived[-5:], strict=False)] == [6] * 5
