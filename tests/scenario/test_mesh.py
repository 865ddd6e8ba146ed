"""The mesh rule on the virtual clock: all average with all, and what a loss, a restart or a bad link does to that."""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict

import pytest
import torch

from isthmus.checkpoint import MemoryStorage, load_latest, save
from isthmus.observe import records
from isthmus.schedule import SURGE_CODEC
from isthmus.terms import Phase
from isthmus.transport import LinkQuality
from worlds import Inhabitant, Settings, SmallWorld, assert_agreed, assert_no_fork

SETTINGS = Settings(window_steps=6, flight_steps=4, save_every_steps=5, budget_steps=70, finish_wait_s=60, rule="mesh")
SPEEDS = {"b": 1.7, "c": 0.6, "d": 1.2}
ROUGH = LinkQuality(delay_s=0.3, rate_bits_per_s=40_000, loss=0.1, duplication=0.2, reordering=0.3, reordering_s=2.0)

Round = tuple[int, int, int]
"""(fragment, epoch, version)."""


def started(names: str = "abc", step_s: dict[str, float] | None = None, **changes: object) -> SmallWorld:
    return SmallWorld(names, dataclasses.replace(SETTINGS, **changes), step_s=step_s).start()


def rounds_of(island: Inhabitant) -> dict[Round, list[records.Meeting]]:
    """An island's records of every meeting of all, one for each other island; of one applied again the later ones."""
    rounds: defaultdict[Round, dict[str, records.Meeting]] = defaultdict(dict)
    for record in island.of(records.Meeting):
        rounds[record.fragment, record.epoch, record.version][record.peer] = record
    return {at: list(told.values()) for at, told in rounds.items()}


def assert_same_outcomes(world: SmallWorld) -> None:
    """Whoever applied a meeting had all others' publications, the same ones, and came to the same reference."""
    outcomes = defaultdict(set)
    for name, island in world.islands.items():
        for at, told in rounds_of(island).items():
            assert sorted(record.peer for record in told) == sorted(set(world.names) - {name})
            shares = {record.peer: (record.peer_publication, record.peer_weight) for record in told}
            shares[name] = (told[0].publication, told[0].weight)
            assert sum(weight for _, weight in shares.values()) == 1.0
            outcomes[at].add((told[0].reference, tuple(sorted(shares.items()))))
    assert all(len(alike) == 1 for alike in outcomes.values())


def assert_ended_alike(world: SmallWorld) -> None:
    engines = [island.engine for island in world.islands.values()]
    assert all(engine.phase is Phase.DONE for engine in engines)
    assert not any(engine.core.provisional for engine in engines)
    assert len({engine.slow.digest() for engine in engines}) == 1
    assert_agreed(world)


def rounds_after(world: SmallWorld, name: str, t_s: float) -> int:
    return sum(told[0].wall_s > t_s for told in rounds_of(world[name]).values())


# -- undisturbed -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("names", "codec"), [("abc", "fp32"), ("abcd", "int4")])
def test_islands_of_unequal_speed_hold_the_same_reference_after_every_round_and_end_with_the_same_bits(names, codec):
    world = started(names, SPEEDS, codec=codec)
    world.run()
    assert_same_outcomes(world)
    assert_ended_alike(world)
    assert all(len(rounds_of(island)) >= 10 for island in world.islands.values())
    final = [record for record in world["c"].of(records.Meeting) if record.final]
    assert len(final) == 2 * (len(names) - 1)


def test_weights_are_the_tokens_that_each_island_trained_since_the_last_round():
    world = started("abc", SPEEDS, budget_steps=80)
    world.run_to_step("a", 55)
    steady = [told for told in rounds_of(world["a"]).values() if told[0].version >= 2]
    own = {record.publication: record.weight for told in steady for record in told}
    faster = {record.publication: record.peer_weight for told in steady for record in told if record.peer == "c"}
    assert len(own) >= 3
    mean_own, mean_faster = (sum(shares.values()) / len(shares) for shares in (own, faster))
    assert mean_faster / mean_own == pytest.approx(1 / SPEEDS["c"], rel=0.25)


def test_a_slow_island_or_link_makes_nobody_wait():
    world = started("abc", {"c": 4.0})
    world.network.shape("c", "a", LinkQuality(delay_s=9.0))
    world.run_to_step("a", 1)
    trained_s = world.clock.now_s()
    world.run_to_step("a", 41)
    assert world.clock.now_s() - trained_s == pytest.approx(40)
    departed = [record for record in world["a"].of(records.Departure) if record.fragment == 0]
    assert [record.step for record in departed] == list(range(3, 41, 6))
    assert not all(record.published for record in departed)
    assert any(record.late for record in world["a"].of(records.Meeting))


def test_a_fragment_goes_to_all_others_as_the_same_bytes_of_one_codec():
    world = started("abcd", budget_steps=40)
    world.run()
    sent = defaultdict(list)
    for record in world["a"].of(records.Published):
        sent[record.publication].append(record)
    assert len(sent) >= 10
    for told in sent.values():
        assert {record.peer for record in told} == {"b", "c", "d"}
        assert len({(record.codec, record.payload_bytes) for record in told}) == 1
    codecs = {told[0].codec for told in sent.values()}
    assert codecs <= {"int4", SURGE_CODEC, "fp32"} and "int4" in codecs


def test_all_edges_of_a_fragment_share_one_reference_in_memory_and_in_a_checkpoint():
    world = started("abcd")
    world.run_to_step("a", 30)
    engine = world["a"].engine
    state = engine.slow.state_dict()
    assert set(state["references"]) == {("b", 0), ("b", 1)}
    again = SmallWorld("abcd", SETTINGS).start()["a"].engine.slow
    again.load_state_dict(state)
    for peer in "bcd":
        for fragment in (0, 1):
            assert again.reference_hash(peer, fragment) == engine.slow.reference_hash(peer, fragment)
    assert again.state_dict()["shared"] == state["shared"]


@pytest.mark.slow
def test_what_comes_too_early_for_an_island_behind_a_slow_link_is_asked_for_and_every_round_goes_on():
    world = started("abc", budget_steps=120)
    world.network.shape("c", "b", LinkQuality(delay_s=8.0))
    world.run(lambda: any(edge.early for edge in world["b"].engine.memory.edges["a"]))
    world.run_to_step("a", 110)
    assert_same_outcomes(world)
    arrived = sorted({told[0].wall_s for at, told in rounds_of(world["b"]).items() if at[0] == 0})
    assert len(arrived) >= 7
    assert max(later - earlier for earlier, later in itertools.pairwise(arrived)) <= 13
    world.run()
    assert_ended_alike(world)


# -- losses ------------------------------------------------------------------------------------------------------------


def test_a_killed_island_stops_the_averaging_and_nobodys_training_and_each_other_one_says_so_once():
    world = started("abcd")
    world.run_to_step("a", 20)
    world.kill("d")
    killed_s, step = world.clock.now_s(), world["a"].engine.memory.step
    world.pass_s(20)
    assert world["a"].engine.memory.step - step == 20
    for name in "abc":
        assert rounds_after(world, name, killed_s + 5) == 0
        departed = [record for record in world[name].of(records.Departure) if record.wall_s > killed_s + 3]
        assert len(departed) >= 5 and not any(record.published for record in departed)
        (alarm,) = world[name].alarms()
        assert alarm == "d cannot be reached: by the mesh rule nothing is averaged without it; training goes on"


def test_an_island_that_starts_without_another_one_says_so():
    world = SmallWorld("abc", SETTINGS).start("a", "b")
    world.run_to_step("a", 10)
    assert not world["a"].of(records.Meeting)
    assert [what.partition(":")[0] for what in world["a"].alarms()] == ["c cannot be reached"]


@pytest.mark.parametrize("away_s", [0.0, 8.0, 25.0])
@pytest.mark.parametrize("killed", ["a", "c"])
def test_after_the_restart_from_a_checkpoint_all_average_again_and_end_alike(killed, away_s):
    world = started("abc", SPEEDS)
    world.run_to_step("a", 23)
    world.kill(killed)
    world.pass_s(away_s)
    world.start(killed)
    back_s = world.clock.now_s()
    world.pass_s(25)
    assert all(rounds_after(world, name, back_s) >= 2 for name in world.names)
    assert_no_fork(world)
    world.run()
    assert_same_outcomes(world)
    assert_ended_alike(world)


@pytest.mark.parametrize("index", [0, 1, 3, 5])
def test_an_island_killed_at_any_step_of_a_window_agrees_again(index):
    world = started("abc", SPEEDS, save_every_steps=4)
    world.run_to_step("b", 18 + index)
    world.kill("b")
    world.pass_s(0.5 * index)
    world.start("b")
    world.run()
    assert_ended_alike(world)


def test_all_killed_resume_each_from_its_own_checkpoint():
    world = started("abc")
    world.run_to_step("a", 28)
    world.kill("a", "b", "c")
    world.pass_s(3)
    world.start()
    assert [world[name].engine.memory.step for name in "abc"] == [25, 25, 25]
    world.run()
    assert_ended_alike(world)
    assert not any(record.epoch for name in "abc" for record in world[name].of(records.Meeting))


def test_an_island_back_with_an_empty_disk_adopts_the_outcome_of_a_round_of_all():
    world = started("abc")
    world.run_to_step("a", 23)
    world.kill("b")
    world.forget("b")
    world.start("b")
    world.run(lambda: world["b"].engine.phase is Phase.TRAINING)
    b = world["b"]
    adopted = [record for record in b.of(records.Meeting) if record.adopted]
    assert {(record.fragment, record.peer) for record in adopted} == {(0, "a"), (0, "c"), (1, "a"), (1, "c")}
    assert all(record.weight == 0.0 and record.peer_weight == 0.5 for record in adopted)
    assert torch.equal(b.slow(), b.fast())
    world.run()
    assert_same_outcomes(world)
    assert_ended_alike(world)
    assert rounds_after(world, "b", adopted[-1].wall_s) >= 4


def test_an_island_that_comes_late_to_the_run_joins_it():
    world = SmallWorld("abc", SETTINGS).start("a", "b")
    world.run_to_step("a", 20)
    world.start("c")
    world.run(lambda: world["c"].engine.phase is Phase.TRAINING)
    assert {record.fragment for record in world["c"].of(records.Meeting) if record.adopted} == {0, 1}
    world.run()
    assert_ended_alike(world)


def test_two_of_three_back_with_empty_disks_adopt_what_the_third_holds():
    world = started("abc")
    world.run_to_step("a", 23)
    world.kill("a", "c")
    world.forget("a")
    world.forget("c")
    world.start("a", "c")
    world.run()
    for name in "ac":
        adopted = [record for record in world[name].of(records.Meeting) if record.adopted and record.peer == "b"]
        assert {record.fragment for record in adopted} == {0, 1}
        assert all(record.peer_weight == 1.0 for record in adopted)
    assert_ended_alike(world)


def test_an_island_that_never_comes_back_leaves_the_others_provisional():
    world = started("abc")
    world.run_to_step("a", 20)
    world.kill("c")
    world.run()
    assert all(world[name].engine.phase is Phase.DONE and world[name].engine.core.provisional for name in "ab")


@pytest.mark.parametrize("seed", range(4))
def test_publications_lost_repeated_and_reordered_are_mended_by_hello(seed):
    settings = dataclasses.replace(SETTINGS, budget_steps=100)
    world = SmallWorld("abc", settings, quality=ROUGH, seed=seed, step_s=SPEEDS).start()
    world.run_to_step("a", 80)
    assert len(rounds_of(world["a"])) >= 6
    assert_same_outcomes(world)
    for one, other in ("ab", "ac", "bc", "ba", "ca", "cb"):
        world.network.shape(one, other, LinkQuality(delay_s=0.1))
    world.run()
    assert_same_outcomes(world)
    assert_ended_alike(world)


def test_a_cut_between_two_stops_all_and_heals():
    world = started("abc")
    world.run_to_step("a", 20)
    world.network.partition("b", "c")
    cut_s = world.clock.now_s()
    world.pass_s(25)
    assert all(rounds_after(world, name, cut_s + 6) == 0 for name in world.names)
    world.network.heal("b", "c")
    healed_s = world.clock.now_s()
    world.pass_s(20)
    assert all(rounds_after(world, name, healed_s) >= 2 for name in world.names)
    assert not any(record.epoch for name in world.names for record in world[name].of(records.Meeting))
    world.run()
    assert_ended_alike(world)


# -- stopped as a whole ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("stopped_s", [17.0, 31.0, 38.3])
def test_a_stored_world_goes_on_as_if_it_had_never_stopped(stopped_s):
    def make() -> SmallWorld:
        return SmallWorld("abc", SETTINGS, quality=ROUGH, seed=3, step_s=SPEEDS)

    whole = make().start()
    whole.run()
    world = make().start()
    world.pass_s(stopped_s)
    before = {name: list(island.records) for name, island in world.islands.items()}
    storage = MemoryStorage()
    save(storage, 0, world.state_dict())
    again = make()
    found = load_latest(storage)
    assert found is not None
    again.load_state_dict(found[0])
    again.run()
    for name, island in again.islands.items():
        assert before[name] + island.records == whole[name].records
        assert island.engine.slow.digest() == whole[name].engine.slow.digest()
