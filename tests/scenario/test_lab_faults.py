"""Scripted faults strike at their time and nowhere else; what they leave alone trains on, what comes back goes on."""

from __future__ import annotations

import dataclasses

import pytest

from isthmus.errors import ConfigError
from isthmus.lab import WorldEvent
from isthmus.observe import records
from isthmus.terms import Phase
from worlds import Inhabitant, Settings, SmallWorld, assert_agreed

SETTINGS = Settings(window_steps=6, flight_steps=2, save_every_steps=5, budget_steps=40, finish_wait_s=30)


def struck(names: str, *events: tuple[float, str, str], **changes: object) -> SmallWorld:
    script = [WorldEvent(at_s, kind, tuple(islands)) for at_s, kind, islands in events]
    return SmallWorld(names, dataclasses.replace(SETTINGS, **changes), events=script).start()


def run_to(world: SmallWorld, time_s: float) -> None:
    """Let everything happen that does before ``time_s``."""
    world.pass_s(time_s - world.clock.now_s() - 1e-9)


def phases(world: SmallWorld) -> dict[str, Phase | None]:
    return {name: island.engine.phase if world.world.is_alive(name) else None for name, island in world.islands.items()}


def met_with(island: Inhabitant, peer: str, from_s: float, until_s: float = float("inf")) -> int:
    meetings = island.of(records.Meeting)
    return sum(meeting.peer == peer and from_s <= meeting.wall_s < until_s for meeting in meetings)


# -- crashes -----------------------------------------------------------------------------------------------------------


def test_a_crashed_island_that_nothing_restarts_is_not_waited_for():
    world = struck("abc", (15.0, "crash", "b"))
    world.run()
    assert phases(world) == {"a": Phase.DONE, "b": None, "c": Phase.DONE}
    assert world.world.is_over
    lost = [change.wall_s for change in world["a"].of(records.PeerChange) if change.peer == "b" and not change.up]
    assert lost == [pytest.approx(17.0, abs=1.1)]
    assert met_with(world["a"], "c", 20.0) >= 4
    assert met_with(world["a"], "b", 18.0) == 0


def test_a_world_in_which_everybody_crashed_is_over():
    world = struck("ab", (15.0, "crash", "a"), (16.0, "crash", "b"), (90.0, "cut", "ab"))
    world.run()
    assert phases(world) == {"a": None, "b": None}
    assert world.clock.now_s() == 16.0


def test_a_crash_comes_before_the_step_of_its_instant():
    untouched = SmallWorld("a", SETTINGS).start()
    untouched.run_to_step("a", 6)
    world = struck("a", (untouched.clock.now_s(), "crash", "a"))
    world.run()
    assert world["a"].losses == untouched["a"].losses[:5]
    assert world.clock.now_s() == untouched.clock.now_s()


def test_a_restarted_island_resumes_from_its_storage_and_the_others_never_stopped():
    world = struck("abc", (17.2, "crash", "b"), (26.0, "restart", "b"))
    run_to(world, 17.2)
    b, step = world["b"], world["b"].engine.memory.step
    assert step % 5
    a_step = world["a"].engine.memory.step
    run_to(world, 26.0)
    assert not world.world.is_alive("b")
    assert world["a"].engine.memory.step - a_step in (8, 9)
    world.run(lambda: world.world.is_alive("b"))
    assert world.clock.now_s() == 26.0
    assert b.engine.incarnation == 2
    assert b.engine.memory.step == step - step % 5
    world.run()
    assert set(phases(world).values()) == {Phase.DONE}
    assert met_with(b, "a", 26.0) >= 2
    assert_agreed(world)


def test_a_restart_that_lies_far_ahead_is_waited_for():
    world = struck("ab", (10.0, "crash", "b"), (300.0, "restart", "b"))
    world.run(lambda: world["a"].engine.phase is Phase.DONE)
    assert world.clock.now_s() < 150.0
    assert not world.world.is_over
    world.run()
    assert phases(world) == {"a": Phase.DONE, "b": Phase.DONE}
    assert world.clock.now_s() > 300.0
    assert world["b"].of(records.PhaseChange)[-1].wall_s > 300.0


def test_an_island_that_the_script_starts_late_takes_the_runs_weights():
    world = SmallWorld("ab", SETTINGS, events=[WorldEvent(20.0, "restart", ("b",))]).start("a")
    world.run()
    b = world["b"]
    assert phases(world) == {"a": Phase.DONE, "b": Phase.DONE}
    assert b.records[0].wall_s >= 20.0
    assert any(meeting.adopted for meeting in b.of(records.Meeting))
    assert world["a"].engine.slow.digest() == b.engine.slow.digest()


def test_what_the_script_holds_for_later_does_not_happen_after_the_run():
    world = struck("ab", (500.0, "crash", "a"), (501.0, "restart", "a"))
    world.run()
    assert world.clock.now_s() < 100.0
    assert phases(world) == {"a": Phase.DONE, "b": Phase.DONE}


# -- hangs -------------------------------------------------------------------------------------------------------------


def test_a_hung_island_neither_trains_nor_answers_and_the_others_train_on():
    world = struck("abc", (12.5, "hang", "b"), (36.5, "resume", "b"))
    run_to(world, 12.5)
    a, b = world["a"], world["b"]
    a_step, b_step, b_records = a.engine.memory.step, b.engine.memory.step, len(b.records)
    run_to(world, 36.5)
    assert a.engine.memory.step - a_step == 24
    assert (b.engine.memory.step, len(b.records)) == (b_step, b_records)
    assert met_with(a, "b", 18.0) == 0
    assert met_with(a, "c", 18.0) >= 3
    assert phases(world)["b"] is Phase.TRAINING


def test_a_resumed_island_finds_what_came_meanwhile_and_goes_on_as_the_same():
    world = struck("ab", (12.5, "hang", "b"), (27.5, "resume", "b"))
    run_to(world, 27.5)
    b, came = world["b"], len(world["b"].of(records.Received))
    step = b.engine.memory.step
    world.run(lambda: b.engine.memory.step == step + 1)
    assert len(b.of(records.Received)) > came
    world.run()
    assert not [change for change in world["a"].of(records.PeerChange) if not change.up]
    assert b.engine.incarnation == 1
    assert met_with(b, "a", 27.5) >= 3
    assert not b.engine.core.provisional
    assert world["a"].engine.slow.digest() == b.engine.slow.digest()


def test_a_hang_delays_an_islands_steps_by_its_length_and_changes_nothing_else_of_them():
    plain, hung = SmallWorld("a", SETTINGS).start(), struck("a", (12.3, "hang", "a"), (20.4, "resume", "a"))
    plain.run()
    hung.run()
    assert hung["a"].losses == plain["a"].losses
    assert hung.clock.now_s() == pytest.approx(plain.clock.now_s() + 8.1)


def test_an_island_that_hangs_for_ever_is_not_waited_for():
    world = struck("abc", (12.5, "hang", "b"))
    world.run()
    assert phases(world) == {"a": Phase.DONE, "b": Phase.TRAINING, "c": Phase.DONE}


def test_a_hung_island_that_crashes_comes_back_from_its_storage_and_a_resume_does_nothing_to_it():
    world = struck("ab", (12.5, "hang", "b"), (14.0, "crash", "b"), (15.0, "resume", "b"), (18.0, "restart", "b"))
    world.run(lambda: world.clock.now_s() >= 15.0)
    assert phases(world)["b"] is None
    world.run()
    assert world["b"].engine.incarnation == 2
    assert phases(world) == {"a": Phase.DONE, "b": Phase.DONE}
    assert_agreed(world)


# -- cuts --------------------------------------------------------------------------------------------------------------


def test_a_cut_ends_the_trade_of_one_pair_until_it_heals():
    world = struck("abc", (12.5, "cut", "ba"), (32.5, "heal", "ab"), budget_steps=60)
    world.run()
    a = world["a"]
    changes = [(change.up, change.wall_s) for change in a.of(records.PeerChange) if change.peer == "b"]
    assert [up for up, _ in changes] == [True, False, True]
    assert changes[1][1] == pytest.approx(14.5, abs=1.1)
    assert changes[2][1] == pytest.approx(32.5, abs=1.1)
    assert met_with(a, "b", 0.0, 12.5) >= 1
    assert met_with(a, "b", 15.5, 32.5) == 0
    assert met_with(a, "c", 15.5, 32.5) >= 3
    assert met_with(a, "b", 32.5) >= 2
    assert all(island.engine.phase is Phase.DONE for island in world.islands.values())


# -- the script --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "islands"),
    [("crash", ("mars",)), ("explode", ("a",)), ("cut", ("a",)), ("cut", ("a", "a")), ("hang", ("a", "b"))],
)
def test_an_event_that_cannot_happen_is_refused_before_anything_does(kind, islands):
    with pytest.raises(ConfigError, match=r"cannot happen; got .*; wanted crash, restart"):
        SmallWorld("ab", SETTINGS, events=[WorldEvent(1.0, kind, islands)])


def test_events_happen_in_the_order_of_their_times_however_they_are_given():
    world = SmallWorld(
        "ab", SETTINGS, events=[WorldEvent(20.0, "restart", ("b",)), WorldEvent(10.0, "crash", ("b",))]
    ).start()
    world.run()
    assert world["b"].engine.incarnation == 2
