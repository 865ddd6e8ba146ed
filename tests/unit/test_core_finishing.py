"""The end of a run: last departures, last meetings without loss, and no waiting for ever."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from isthmus import schedule
from isthmus.codec import WHOLE_CODEC
from isthmus.session.orders import Arrive, Depart, Mode, Warn
from isthmus.session.trade import LOSSLESS
from isthmus.terms import TAG_BITS, Ending, EndPlan, LinkAlarm, PeerDown, Phase, Pulse, Standing
from lone_core import LoneCore, headers, published, sent
from toy_islands import make_plans
from toy_world import Faults, World


def finishing(core: LoneCore) -> list:
    core.core.finish(core.now_s)
    return core.feed()


def standing_of(name: str, *, number: int = 1, mass: int = 100, **fields: int | bytes) -> Ending:
    """What a peer says at its end."""
    return Ending(standings={name: Standing(number=number, mass=mass, reach=("ash",), **fields)})


def at_the_end_with_birch(core: LoneCore, **fields: int) -> list:
    """Birch is at the end, too, and follows the plan that is then made; all that ash does."""
    orders = finishing(core) + core.say("birch", standing_of("birch", **fields))
    number = next(message.plan.number for message in sent(orders, Ending) if message.plan is not None)
    return orders + core.say("birch", standing_of("birch", number=2, plan=number, **fields))


def done(world: World, *names: str) -> bool:
    return all(world[name].core.phase is Phase.DONE for name in names)


def settled(world: World, *names: str) -> bool:
    """Whether these islands hold the same weights."""
    return all(world[name].held.slow == world[names[0]].held.slow for name in names)


def test_the_end_begins_with_a_plain_departure_of_every_fragment():
    core = LoneCore(num_fragments=3)
    core.start()
    departs = [order for order in finishing(core) if isinstance(order, Depart)]
    assert departs == [Depart(fragment, *schedule.CALM) for fragment in range(3)]


def test_when_both_are_at_the_end_the_lowest_slot_plans_one_meeting_and_every_fragment_is_published_as_it_is():
    core = LoneCore(num_fragments=2, window_steps=50)
    core.start()
    core.step()
    orders = at_the_end_with_birch(core)
    plans = [message.plan for message in sent(orders, Ending) if message.plan is not None]
    assert plans[-1].members == ("ash", "birch") and plans[-1].binding
    assert sorted(published(orders)) == [("birch", 0), ("birch", 1)]
    assert {(header.codec, header.ending) for header in headers(orders)} == {(WHOLE_CODEC, plans[-1].tag(0))}


def test_the_mass_of_an_island_is_its_tokens_of_the_last_window():
    core = LoneCore(window_steps=4, flight_steps=0)
    core.start()
    core.step(9)
    core.publish_from("birch", 7)
    orders = at_the_end_with_birch(core, mass=50)
    (plan,) = {message.plan for message in sent(orders, Ending)} - {None}
    (step,) = plan.steps
    assert (step.low_mass, step.high_mass) == (400, 50)
    assert [header.weight_tokens for header in headers(orders)] == [400]


def test_the_outcome_is_the_runs_once_most_islands_hold_it():
    core = LoneCore()
    core.start()
    core.step()
    at_the_end_with_birch(core)
    tag = core.edge("birch").mine.ending
    number = tag >> TAG_BITS
    orders = core.publish_from("birch", 7, codec=WHOLE_CODEC, ending=tag, weight_tokens=100, run_tokens=100)
    assert [order.mode for order in orders if isinstance(order, Arrive)] == [Mode.MERGE]
    assert core.core.phase is Phase.FINISHING and core.core.provisional
    voted = {"number": 3, "plan": number, "result": number, "vote": number}
    core.say("birch", standing_of("birch", **voted, digest=b"of other weights"))
    assert core.core.phase is Phase.FINISHING and core.core.provisional
    core.say("birch", standing_of("birch", **voted | {"number": 4}, digest=core.core.memory.end_digest))
    assert core.core.phase is Phase.DONE and not core.core.provisional


def test_where_all_hold_the_outcome_and_too_many_may_not_vote_it_is_provisional_at_once():
    core = LoneCore()
    core.start()
    core.step()
    at_the_end_with_birch(core)
    tag = core.edge("birch").mine.ending
    number = tag >> TAG_BITS
    core.publish_from("birch", 7, codec=WHOLE_CODEC, ending=tag, weight_tokens=100, run_tokens=100)
    held = {"plan": number, "result": number, "vote": 0}
    core.say("birch", standing_of("birch", number=3, **held, digest=b"of other weights"))
    assert core.core.phase is Phase.FINISHING
    core.say("birch", standing_of("birch", number=4, **held, digest=core.core.memory.end_digest))
    assert core.core.phase is Phase.DONE and core.core.provisional
    assert core.core.memory.end_result == number, "it keeps the outcome that both hold"


def test_an_answer_of_a_partner_that_still_trains_is_a_correction_and_not_the_end():
    core = LoneCore()
    core.start()
    finishing(core)
    orders = core.publish_from("birch", 7, final=False, codec=LOSSLESS)
    assert [order.mode for order in orders if isinstance(order, Arrive)] == [Mode.CORRECT]
    assert core.core.phase is Phase.FINISHING


def test_a_training_island_does_not_answer_a_knock_of_the_end():
    core = LoneCore()
    core.start()
    core.publish_from("birch", 7, final=True, ending=1 << TAG_BITS | 1, codec=WHOLE_CODEC)
    assert published(core.step(2)) == [("birch", 0)] and not headers(core.orders)[0].ending


def test_once_a_plan_is_followed_no_other_meeting_changes_the_weights():
    core = LoneCore(num_islands=3)
    core.start()
    core.step(2)
    ((peer, _),) = published(core.orders)
    core.feed(PeerDown(peer, "cut off"))
    finishing(core)
    for name in ("birch", "cedar"):
        core.say(name, standing_of(name))
    core.greet(peer)
    assert not [order for order in core.publish_from(peer, 9) if isinstance(order, Arrive)]


def test_a_knock_from_before_the_end_is_answered():
    core = LoneCore(window_steps=50)
    core.start()
    core.publish_from("birch", 7)
    assert [(header.ending, header.codec) for header in headers(finishing(core))] == [(0, "")]


def test_knocks_are_answered_in_one_order_whatever_the_process():
    core = LoneCore(num_islands=8, window_steps=50)
    core.start()
    for place, peer in enumerate(reversed(core.plan.peers)):
        core.publish_from(peer, 7 + place)
    assert [peer for peer, _ in published(finishing(core))] == sorted(core.plan.peers)


def test_done_is_told_by_a_pulse():
    core = LoneCore()
    core.start()
    finishing(core)
    core.now_s = 60.0
    orders = core.feed()
    assert [pulse.phase for pulse in sent(orders, Pulse)][-1] is Phase.DONE


def test_an_island_that_is_done_is_not_knocked_at():
    core = LoneCore(num_islands=3)
    core.start()
    core.pulse_from("birch", Phase.DONE)
    assert published(core.step(2)) == [("cedar", 0)]


@pytest.mark.parametrize("lag_s", [0.0, 7.0])
def test_two_islands_end_with_the_same_weights_and_finals_for_every_fragment(lag_s):
    world = World(make_plans(2, 3, window_steps=3), step_s={"ash": 0.5, "birch": 0.5})
    world.start_all()
    world.run(20.0)
    world["ash"].finish()
    world.run(lag_s)
    world["birch"].finish()
    assert world.run(20.0, lambda: done(world, "ash", "birch"))
    assert settled(world, "ash", "birch")
    for island in world.islands.values():
        assert island.modes[Mode.MERGE] == 3 and not island.core.provisional


def test_a_finishing_island_keeps_a_training_one_company_without_a_storm():
    world = World(make_plans(2, 1, window_steps=2, finish_wait_s=100.0), step_s={"ash": 0.2, "birch": 1.0})
    world.start_all()
    world.run(10.0)
    world["ash"].finish()
    before = world.published["ash"]
    world.run(60.0)
    assert world["ash"].core.phase is Phase.FINISHING
    assert world.published["ash"] - before <= 60 / 2 + 2
    assert world.hellos["ash"] <= 4 + 60 / world["ash"].plan.hello_every_s
    assert world.hellos["birch"] <= 4 + 70 / (6 * world["birch"].plan.hello_every_s)


def at_the_end(num_islands: int, num_fragments: int = 1, **changes: object) -> World:
    """Islands whose training is over."""
    plans = make_plans(num_islands, num_fragments, **changes)
    world = World(plans, step_s=dict.fromkeys(plans, 0.5))
    world.start_all()
    world.run(20.0)
    for name in world.islands:
        world[name].finish()
    return world


def ends_alike(world: World, *names: str, seconds: float = 600.0) -> bool:
    """Whether these islands come to the end of the run with the same weights."""
    ended = world.run(seconds, lambda: done(world, *names))
    return ended and settled(world, *names) and not any(world[name].core.provisional for name in names)


@pytest.mark.parametrize("num_islands", range(2, 13))
def test_any_number_of_islands_end_with_the_same_weights(num_islands):
    world = at_the_end(num_islands, 2)
    assert ends_alike(world, *world.islands, seconds=60.0)
    meetings = sum(island.modes[Mode.MERGE] for island in world.islands.values()) / (2 * num_islands)
    assert meetings <= num_islands.bit_length() + 1


@pytest.mark.parametrize("lost", ["ash", "cedar", "elm"])
@pytest.mark.parametrize("after_s", [0.15, 0.25, 0.35, 0.45, 0.6])
def test_an_island_that_is_lost_in_the_middle_of_the_end_is_left_out_and_the_others_end_alike(lost, after_s):
    world = at_the_end(5, 2, finish_wait_s=20.0)
    world.run(after_s)
    world.crash(lost)
    assert ends_alike(world, *(name for name in world.islands if name != lost))


def test_an_island_that_was_lost_comes_back_and_takes_what_the_others_hold():
    world = at_the_end(5, finish_wait_s=20.0)
    world["cedar"].snapshot()
    world.run(0.2)
    world.crash("cedar")
    world.run(5.0)
    world.start("cedar", world["cedar"].snapshots[-1])
    world.run(3.0)
    world["cedar"].finish()
    assert ends_alike(world, *world.islands)


def test_of_a_run_cut_in_two_the_greater_part_ends_and_the_smaller_is_provisional():
    world = at_the_end(5, finish_wait_s=20.0)
    for one in ("ash", "birch"):
        for other in ("cedar", "dogwood", "elm"):
            world.cut(one, other)
    assert ends_alike(world, "cedar", "dogwood", "elm")
    assert world.run(600.0, lambda: done(world, "ash", "birch"))
    assert settled(world, "ash", "birch")
    assert world["ash"].core.provisional and world["birch"].core.provisional


@pytest.mark.parametrize("cut_after_s", [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8])
def test_however_late_a_run_is_cut_in_two_no_two_outcomes_are_both_the_runs(cut_after_s):
    world = at_the_end(5, 2, finish_wait_s=20.0)
    world.run(cut_after_s)
    for one in ("ash", "birch"):
        for other in ("cedar", "dogwood", "elm"):
            world.cut(one, other)
    assert world.run(600.0, lambda: done(world, *world.islands))
    final = [name for name in world.islands if not world[name].core.provisional]
    assert len(final) >= 3 and settled(world, *final)


def test_islands_that_cannot_all_reach_each_other_end_alike():
    plans = make_plans(6, 2)
    world = World(plans, step_s=dict.fromkeys(plans, 0.5))
    world.start_all()
    world.run(0.5)
    for pair in itertools.combinations(plans, 2):
        if "cedar" not in pair:
            world.cut(*pair)
    world.run(20.0)
    for name in world.islands:
        world[name].finish()
    assert ends_alike(world, *world.islands)


@pytest.mark.parametrize("seed", range(20))
def test_on_a_network_that_loses_repeats_and_reorders_all_end_alike(seed):
    plans = make_plans(7, 2, finish_wait_s=60.0)
    world = World(plans, seed=seed, step_s=dict.fromkeys(plans, 0.5))
    world.faults = Faults(loss=0.2, duplicates=0.2, delay_s=(0.05, 2.0))
    world.start_all()
    world.run(30.0)
    for name in world.islands:
        world[name].finish()
    assert ends_alike(world, *world.islands)


def test_an_island_whose_partner_is_silent_ends_provisionally_after_the_wait():
    core = LoneCore(finish_wait_s=60.0)
    core.start()
    finishing(core)
    core.now_s = 59.0
    core.feed()
    assert core.core.phase is Phase.FINISHING and core.core.waits_for == ("birch",)
    core.now_s = 60.0
    core.feed()
    assert core.core.phase is Phase.DONE and core.core.provisional


def test_an_island_whose_partner_is_dead_waits_for_it_and_then_ends_provisionally():
    core = LoneCore(finish_wait_s=60.0)
    core.start()
    core.feed(PeerDown("birch", "lost"))
    finishing(core)
    assert core.core.phase is Phase.FINISHING and core.core.waits_for == ("birch",)
    core.now_s = 60.0
    core.feed()
    assert core.core.phase is Phase.DONE and core.core.provisional
    assert core.core.waits_for == ()


def test_a_link_that_is_cut_when_the_run_ends_costs_nothing_if_it_comes_back():
    world = World(make_plans(2), step_s={"ash": 0.5, "birch": 0.5})
    world.start_all()
    world.run(20.0)
    world.cut("ash", "birch")
    world.run(1.0)
    world["ash"].finish()
    world["birch"].finish()
    world.run(5.0)
    assert not done(world, "ash") and not done(world, "birch")
    world.connect("ash", "birch")
    assert world.run(20.0, lambda: done(world, "ash", "birch"))
    assert not world["ash"].core.provisional and settled(world, "ash", "birch")


def test_an_answer_that_never_comes_keeps_nobody_from_the_end():
    core = LoneCore(num_islands=3, finish_wait_s=60.0)
    core.start()
    core.step(2)
    ((silent, _),) = published(core.orders)
    (other,) = {"birch", "cedar"} - {silent}
    finishing(core)
    core.say(other, standing_of(other))
    assert not any(message.plan for message in sent(core.orders, Ending))
    core.now_s = 60.0
    core.say(other, standing_of(other, number=2))
    core.now_s = 120.0
    orders = core.say(other, standing_of(other, number=3))
    assert [message.plan.members for message in sent(orders, Ending) if message.plan][-1] == ("ash", other)


def test_an_island_whose_partner_ended_and_left_does_not_wait():
    core = LoneCore()
    core.start()
    core.pulse_from("birch", Phase.DONE)
    core.feed(PeerDown("birch", "left"))
    finishing(core)
    assert core.core.phase is Phase.DONE and core.core.provisional


def test_an_island_alone_in_its_roster_is_done_at_once():
    core = LoneCore(num_islands=1, num_fragments=2)
    core.feed()
    core.step(3)
    finishing(core)
    assert core.core.phase is Phase.DONE and not core.core.provisional


@pytest.mark.parametrize("knocked", [False, True])
def test_a_last_publication_that_cannot_be_coded_is_not_tried_for_ever(knocked):
    world = World(make_plans(2, finish_wait_s=10.0), step_s={"ash": 0.5, "birch": 0.5})
    world.start_all()
    world.run(20.0)
    world["ash"].withholds = lambda header: bool(header.ending)
    if knocked:
        world["birch"].finish()
        world.run(2.0)
    world["ash"].finish()
    assert world.run(15.0, lambda: done(world, "ash"))
    assert world["ash"].core.provisional
    assert sum("was not published" in what for what in world["ash"].warnings) <= 2


def test_a_newcomer_is_served_by_a_finishing_island():
    world = World(make_plans(2, finish_wait_s=30.0), step_s={"ash": 0.5, "birch": 0.5})
    world.start("ash")
    world.run(20.0)
    world["ash"].finish()
    world.start("birch")
    assert world.run(20.0, lambda: world["birch"].core.phase is Phase.TRAINING)


def test_a_restart_in_the_middle_of_the_end_ends_all_the_same():
    world = World(make_plans(2, 2, finish_wait_s=60.0), step_s={"ash": 0.5, "birch": 0.5})
    world.start_all()
    world.run(20.0)
    world["ash"].finish()
    world["birch"].snapshot()
    world.crash("birch")
    world.run(2.0)
    world.start("birch", world["birch"].snapshots[-1])
    world.run(3.0)
    world["birch"].finish()
    assert world.run(50.0, lambda: done(world, "ash", "birch"))
    assert settled(world, "ash", "birch") and not world["ash"].core.provisional


def test_that_an_island_leaves_once_it_is_done_is_no_alarm():
    core = LoneCore(num_islands=3)
    core.start()
    core.pulse_from("birch", Phase.DONE)
    assert not core.feed(LinkAlarm("birch", "cannot be reached"))
    assert core.feed(LinkAlarm("cedar", "cannot be reached")) == [Warn("cannot be reached", "cedar")]


def test_what_a_full_disk_does_not_hold_is_not_told_and_the_others_end_without_that_island():
    world = World(make_plans(3, finish_wait_s=10.0))
    world.start_all()
    world.run(20.0)
    world["cedar"].disk_full = True
    for name in world.islands:
        world[name].finish()
    assert world.run(200.0, lambda: done(world, "ash", "birch"))
    assert not world["ash"].core.provisional and settled(world, "ash", "birch")
    told = world["ash"].core.freeze_end().standings.get("cedar")
    assert told is None or (told.plan, told.vote) == (0, 0)
    assert world["cedar"].memory.end_plan, "it follows the plan, for itself"


def test_an_island_whose_disk_has_room_again_in_time_ends_with_the_others():
    world = World(make_plans(3, finish_wait_s=20.0))
    world.start_all()
    world.run(20.0)
    world["cedar"].disk_full = True
    for name in world.islands:
        world[name].finish()
    world.run(10.0)
    assert not done(world, "ash") and not done(world, "cedar")
    world["cedar"].disk_full = False
    assert world.run(200.0, lambda: done(world, *world.islands))
    assert not any(island.core.provisional for island in world.islands.values())
    assert settled(world, *world.islands)


def test_an_island_that_lost_what_it_held_follows_no_plan_that_takes_it_to_hold_it_still():
    core = LoneCore()
    core.start()
    finishing(core)
    plan = EndPlan(
        run=core.plan.run, number=1 << 40, author="birch", members=("ash", "birch"), steps=(), result=7, base=7,
        binding=True,
    )  # fmt: skip
    standing = standing_of("birch", plan=plan.number, result=7, vote=7)
    core.say("birch", msgspec.structs.replace(standing, plan=plan))
    assert core.core.memory.end_plan != plan.number and core.core.provisional


def test_an_island_whose_weights_nobody_takes_does_not_keep_the_others_from_ending():
    world = World(make_plans(4, finish_wait_s=10.0))
    world.start_all()
    world.run(20.0)
    for name in ("ash", "birch", "dogwood"):
        world[name].refuses_payload = lambda header: header.sender == "cedar"
    for name in world.islands:
        world[name].finish()
    assert world.run(300.0, lambda: done(world, *world.islands))
    assert settled(world, "ash", "birch", "dogwood") and world["cedar"].core.provisional
    assert not any(world[name].core.provisional for name in ("ash", "birch", "dogwood"))
