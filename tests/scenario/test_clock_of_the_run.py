"""Progress follows the tokens of all islands as last heard; late, lossy and cut links only make meetings late."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from isthmus.observe import records
from isthmus.schedule import OuterPlan, OuterStep
from isthmus.terms import Phase
from isthmus.transport import LinkQuality
from worlds import BATCH, Settings, SmallWorld, assert_no_fork

SETTINGS = Settings(window_steps=6, flight_steps=4, budget_steps=60, finish_wait_s=60)
PULSE_STEPS = SETTINGS.window_steps // SETTINGS.fragments
BUDGET_TOKENS = 2 * BATCH * SETTINGS.budget_steps


def run_recording_progress(world: SmallWorld) -> dict[str, list[float]]:
    seen: dict[str, list[float]] = {name: [] for name in world.names}

    def note() -> bool:
        for name, values in seen.items():
            if (engine := world[name].resident.engine) is not None:
                values.append(engine.core.progress)
        return False

    world.run(note)
    return seen


def assert_over_and_alike(world: SmallWorld) -> None:
    engines = [island.engine for island in world.islands.values()]
    assert all(engine.phase is Phase.DONE for engine in engines)
    assert not any(engine.core.provisional for engine in engines)
    assert len({engine.slow.digest() for engine in engines}) == 1
    assert_no_fork(world)


# -- the clock ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fast", ["a", "b"])
def test_islands_at_three_to_one_end_together_when_the_budget_is_spent(fast):
    slow = "b" if fast == "a" else "a"
    world = SmallWorld("ab", SETTINGS, step_s={slow: 3.0}).start()
    progress = run_recording_progress(world)
    for values in progress.values():
        assert values == sorted(values)
        assert values[-1] == 1.0
    tokens = {name: world[name].engine.memory.tokens for name in "ab"}
    assert sum(tokens.values()) - BUDGET_TOKENS <= PULSE_STEPS * BATCH * 4
    assert tokens[fast] == pytest.approx(3 * tokens[slow], abs=(PULSE_STEPS + 3) * 3 * BATCH)
    ended_s = [ended(world, name).wall_s for name in "ab"]
    assert abs(ended_s[0] - ended_s[1]) <= PULSE_STEPS * 3.0 + 1
    assert_over_and_alike(world)


def ended(world: SmallWorld, name: str) -> records.PhaseChange:
    return next(record for record in world[name].of(records.PhaseChange) if record.phase is Phase.FINISHING)


@pytest.mark.parametrize("lost", ["fast", "slow"])
@pytest.mark.parametrize("how", ["killed", "cut off"])
def test_a_silent_partner_cannot_freeze_the_run(lost, how):
    world = SmallWorld("ab", SETTINGS, step_s={"b": 3.0}).start()
    world.run_to_step("a", 30)
    survivor = "b" if lost == "fast" else "a"
    last_heard = world[survivor].engine.memory.peers["a" if lost == "fast" else "b"].tokens
    if how == "killed":
        world.kill("a" if lost == "fast" else "b")
    else:
        world.network.partition("a", "b")
    world.run(lambda: world[survivor].resident.is_over)
    memory = world[survivor].engine.memory
    assert last_heard > 0
    own_tokens = BUDGET_TOKENS - memory.run_tokens + memory.tokens
    assert memory.tokens == -(-own_tokens // BATCH) * BATCH
    assert world[survivor].engine.core.progress == 1.0


def test_an_island_alone_trains_the_whole_budget_itself():
    world = SmallWorld("ab", SETTINGS).start("a")
    world.run()
    assert world["a"].engine.memory.tokens == BUDGET_TOKENS
    assert world["a"].engine.core.provisional


def test_each_island_may_have_a_window_of_its_own():
    world = SmallWorld("ab", dataclasses.replace(SETTINGS, own_window_steps={"a": 4, "b": 10})).start()
    world.run()
    rounds = {name: len(world[name].of(records.Departure)) for name in "ab"}
    assert rounds["a"] > 2 * rounds["b"]
    weights = [record.weight for record in world["a"].of(records.Meeting) if not record.final]
    assert len(weights) >= 10
    assert_over_and_alike(world)


def test_the_outer_step_is_calm_in_the_last_share_of_the_whole_runs_tokens():
    outer = OuterPlan(OuterStep(0.7, 0.5), calm_rounds=1, calm_share=0.25)
    world = SmallWorld("ab", dataclasses.replace(SETTINGS, outer=outer), step_s={"b": 3.0}).start()
    world.run()
    for name in "ab":
        departures = world[name].of(records.Departure)
        gains = [record.outer_lr for record in departures]
        assert set(gains[:2]) == {1.0} and gains[2] == 0.7
        first_calm = gains.index(1.0, 2)
        assert set(gains[first_calm:]) == {1.0}
        before, after = departures[first_calm - 1].tokens, departures[first_calm].tokens
        share = {"a": 0.75, "b": 0.25}[name] * BUDGET_TOKENS
        assert before - 4 * PULSE_STEPS * BATCH <= 0.75 * share <= after + 4 * PULSE_STEPS * BATCH


# -- links -------------------------------------------------------------------------------------------------------------

IN_ORDER = {
    "several windows late": LinkQuality(delay_s=20.0),
    "lossy": LinkQuality(delay_s=0.2, loss=0.3),
}
OUT_OF_ORDER = {
    "repeating": LinkQuality(delay_s=0.2, duplication=0.5, reordering_s=8.0),
    "reordering": LinkQuality(delay_s=0.2, reordering=0.5, reordering_s=8.0),
    "all of it": LinkQuality(delay_s=4.0, loss=0.2, duplication=0.2, reordering=0.3, reordering_s=6.0),
}


def lived_on(quality: LinkQuality, names: str = "ab", *, seed: int, budget_steps: int = 60) -> SmallWorld:
    settings = dataclasses.replace(SETTINGS, finish_wait_s=200, budget_steps=budget_steps)
    return SmallWorld(names, settings, quality=quality, seed=seed, step_s={"b": 1.3}).start()


@pytest.mark.parametrize("kind", IN_ORDER)
def test_a_pair_on_a_late_or_lossy_link_ends_with_the_same_bits(kind):
    world = lived_on(IN_ORDER[kind], seed=1)
    world.run()
    assert_over_and_alike(world)
    assert len(world["a"].of(records.Meeting)) >= 4


@pytest.mark.parametrize("kind", OUT_OF_ORDER)
def test_a_pair_whose_messages_come_again_and_out_of_order_ends_alike_or_says_who_is_provisional(kind):
    world = lived_on(OUT_OF_ORDER[kind], seed=1)
    world.run()
    a, b = world["a"].engine, world["b"].engine
    assert a.phase is b.phase is Phase.DONE
    assert a.slow.digest() == b.slow.digest() or a.core.provisional or b.core.provisional
    assert len(world["a"].of(records.Meeting)) >= 5
    assert_no_fork(world)


def test_a_link_cut_for_the_middle_third_costs_no_step_and_the_ends_meet_again():
    world = SmallWorld("ab", SETTINGS).start()
    world.run_to_step("a", 20)
    world.network.partition("a", "b")
    cut_s = world.clock.now_s()
    world.pass_s(20)
    world.network.heal("a", "b")
    healed_s = world.clock.now_s()
    assert world["a"].engine.memory.step == 40
    world.run()
    met_s = [record.wall_s for record in world["a"].of(records.Meeting)]
    assert not any(cut_s + 1 < at_s < healed_s for at_s in met_s)
    assert sum(at_s > healed_s for at_s in met_s) >= 6
    assert_over_and_alike(world)


# -- more than two -----------------------------------------------------------------------------------------------------


def spread(world: SmallWorld) -> float:
    """The largest distance of an island's slow weights from the islands' mean, relative to the mean."""
    flat = torch.stack([island.slow() for island in world.islands.values()])
    mean = flat.mean(0)
    return float((flat - mean).norm(dim=1).max() / mean.norm())


@pytest.mark.slow
@pytest.mark.parametrize("names", ["abc", "abcd", "abcde"])
@pytest.mark.parametrize("kind", ["lossy", "reordering"])
def test_several_islands_on_bad_links_keep_meeting_without_a_fork(names, kind):
    world = lived_on((IN_ORDER | OUT_OF_ORDER)[kind], names, seed=2, budget_steps=40)
    world.run()
    assert all(island.engine.phase is Phase.DONE for island in world.islands.values())
    for name in names:
        assert len(world[name].of(records.Meeting)) >= 2, name
    assert_no_fork(world)


@pytest.mark.parametrize("names", ["abc", "abcd", "abcde"])
def test_several_islands_come_closer_at_the_end_of_the_run(names):
    world = lived_on(LinkQuality(delay_s=0.2), names, seed=0, budget_steps=40)
    world.run(lambda: any(island.engine.phase is Phase.FINISHING for island in world.islands.values()))
    apart = spread(world)
    world.run()
    assert min(len(island.of(records.Meeting)) for island in world.islands.values()) >= 7
    assert spread(world) < apart
    assert_no_fork(world)
